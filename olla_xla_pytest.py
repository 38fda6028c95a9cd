"""For pytest: the fixture `olla_xla_audit`, and OLLA_XLA_AUDIT=1 for a whole test suite.

With the variable set, each executable that the tests compile is audited; a test whose executables
have findings fails, with the report. Installing olla_xla adds this to pytest (`pytest11`), so it
stands beside the package: pytest loads it for every test suite, and most want nothing of olla_xla.
"""

from __future__ import annotations

import contextlib
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
        from olla_xla.tools.audit.every_compile import every_compile

        self.count = self.wrong = 0
        self.failed: list[str] = []
        self._new: list[str] = []
        self._open = contextlib.ExitStack()
        audits = every_compile(self._found, self.failed.append)
        after_jax(lambda: self._open.enter_context(audits))

    def _found(self, report: Audit) -> None:
        self.count += 1
        self.wrong += not report
        self._new += [] if report else [str(report)]

    @pytest.fixture(autouse=True)
    def _olla_xla_audited(self) -> Iterator[None]:
        yield
        if wrong := self._new:
            self._new = []
            pytest.fail("\n".join(wrong), pytrace=False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hands this process's audits to the process that started it, if one did."""
        if (handed := getattr(session.config, "workeroutput", None)) is not None:
            handed[_VARIABLE] = (self.count, self.wrong, self.failed)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Adds the audits of a process of pytest-xdist that has ended."""
        count, wrong, failed = getattr(node, "workeroutput", {}).get(_VARIABLE, (0, 0, []))
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
        self._open.close()


@pytest.fixture
def olla_xla_audit() -> Callable[..., Audit]:
    """Audits a function, as `olla_xla.audit`, and fails the test where something is wrong."""
    from olla_xla import audit

    def checked(*args: Any, **kwargs: Any) -> Audit:
        if not (report := audit(*args, **kwargs)):
            pytest.fail(str(report), pytrace=False)
        return report

    return checked
