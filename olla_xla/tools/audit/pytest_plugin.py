"""For pytest: the fixture `olla_xla_audit`, and OLLA_XLA_AUDIT=1 for a whole test suite.

With the variable set, each executable that the tests compile is audited; a test whose executables
have findings fails, with the report. Installing olla_xla adds this to pytest (`pytest11`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from olla_xla.compile.environment import switch
from olla_xla.tools.after_jax import after_jax
from olla_xla.tools.audit.every_compile import AuditedTests, audited

if TYPE_CHECKING:
    from olla_xla.tools.audit.report import Audit

_VARIABLE = "OLLA_XLA_AUDIT"

_KEY = pytest.StashKey[AuditedTests]()


def pytest_configure(config: pytest.Config) -> None:
    """Pytest's hook before tests: begins to audit all compiles if the environment asks for it."""
    if switch(_VARIABLE):
        config.stash[_KEY] = session = AuditedTests()
        after_jax(session.begin)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Pytest's hook after tests: ends the audits of compiles."""
    if _KEY in config.stash:
        config.stash[_KEY].end()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Pytest's hook for its summary: a line on all audits, and one for each that failed."""
    if (session := config.stash.get(_KEY, None)) is not None:
        wrong = len(session.wrong)
        lines = [f"{session.count:,} executables, {wrong:,} with findings", *session.failed]
        for line in lines:
            terminalreporter.write_line(f"olla_xla audit: {line}")


@pytest.fixture(autouse=True)
def _olla_xla_audited(request: pytest.FixtureRequest) -> Iterator[None]:
    session = request.config.stash.get(_KEY, None)
    before = 0 if session is None else len(session.wrong)
    yield
    if session is not None and (wrong := session.wrong[before:]):
        pytest.fail("\n".join(map(str, wrong)), pytrace=False)


@pytest.fixture
def olla_xla_audit() -> Callable[..., Audit]:
    """Audits a function, as `olla_xla.audit`, and fails the test where something is wrong."""

    def checked(fn: Any, *args: Any, **kwargs: Any) -> Audit:
        report = audited(fn, *args, **kwargs)
        if not report:
            pytest.fail(str(report), pytrace=False)
        return report

    return checked
