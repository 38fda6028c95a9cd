"""For pytest: the fixture `olla_xla_audit`, and OLLA_XLA_AUDIT=1 for a whole test suite.

With the variable set, each executable that the tests compile is audited; a test whose executables
have findings fails, with the report. Installing olla_xla adds this to pytest (`pytest11`), so it
stands beside the package: pytest loads it for every test suite, and most want nothing of olla_xla.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from olla_xla.tools.audit.report import Audit

_VARIABLE = "OLLA_XLA_AUDIT"


def pytest_configure(config: pytest.Config) -> None:
    """Pytest's hook before tests: begins to audit all compiles if the environment asks for it."""
    if os.environ.get(_VARIABLE):
        from olla_xla.compile.environment import switch

        if switch(_VARIABLE):
            config.pluginmanager.register(_EveryTest())


class _EveryTest:
    """The audits of one process of pytest; processes of pytest-xdist hand theirs to the first.

    Attributes:
      count: executables. wrong: how many of them have findings.
      failed: a line for each that could not be audited.
    """

    def __init__(self) -> None:
        from olla_xla.tools.after_jax import after_jax
        from olla_xla.tools.audit.every_compile import AuditedTests

        self.own = AuditedTests()
        self.count = self.wrong = 0
        self.failed: list[str] = []
        after_jax(self.own.begin)

    @pytest.fixture(autouse=True)
    def _olla_xla_audited(self) -> Iterator[None]:
        before = len(self.own.wrong)
        yield
        if wrong := self.own.wrong[before:]:
            pytest.fail("\n".join(map(str, wrong)), pytrace=False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Adds this process's audits, and hands all to the process that started it, if one did."""
        self._add(self.own.count, len(self.own.wrong), self.own.failed)
        if (handed := getattr(session.config, "workeroutput", None)) is not None:
            handed[_VARIABLE] = (self.count, self.wrong, self.failed)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Adds the audits of a process of pytest-xdist that has ended."""
        self._add(*getattr(node, "workeroutput", {}).get(_VARIABLE, (0, 0, [])))

    def _add(self, count: int, wrong: int, failed: list[str]) -> None:
        self.count += count
        self.wrong += wrong
        self.failed += failed

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """A line on all audits, and one for each that failed."""
        total = f"{self.count:,} executables were checked, {self.wrong:,} of them have errors"
        for line in (total, *self.failed):
            terminalreporter.write_line(f"olla_xla audit: {line}")

    def pytest_unconfigure(self) -> None:
        """Ends the audits of compiles."""
        self.own.end()


@pytest.fixture
def olla_xla_audit() -> Callable[..., Audit]:
    """Audits a function, as `olla_xla.audit`, and fails the test where something is wrong."""
    from olla_xla.tools.audit.every_compile import audited

    def checked(fn: Any, *args: Any, **kwargs: Any) -> Audit:
        report = audited(fn, *args, **kwargs)
        if not report:
            pytest.fail(str(report), pytrace=False)
        return report

    return checked
