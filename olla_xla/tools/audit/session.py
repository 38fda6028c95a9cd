"""The audits of one run of a test suite. Importing this does not import JAX.

It is apart from the plugin, of whose names pytest asks attributes, which would load late modules.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from hlo.late import late

if TYPE_CHECKING:
    from olla_xla.tools.audit import audit, every_compile
    from olla_xla.tools.audit.report import Audit
else:
    audit = late("olla_xla.tools.audit.audit")
    every_compile = late("olla_xla.tools.audit.every_compile")


class Session:
    """The audits of all executables that a run of pytest compiles.

    Attributes:
      count: executables. wrong: reports on those with findings.
      failed: a line for each that could not be audited.
    """

    def __init__(self) -> None:
        self.count = 0
        self.wrong: list[Audit] = []
        self.failed: list[str] = []
        self._open = contextlib.ExitStack()

    def begin(self) -> None:
        """Begins to audit every executable that is compiled."""
        self._open.enter_context(every_compile.every_compile(self.found, self.failed.append))

    def end(self) -> None:
        """Ends what `begin` began: compiles are not audited any more."""
        self._open.close()

    def found(self, report: Audit) -> None:
        """Counts an executable's audit, and keeps it if something is wrong."""
        self.count += 1
        if not report:
            self.wrong.append(report)


def audited(fn: Any, *args: Any, **kwargs: Any) -> Audit:
    """`olla_xla.audit`, loaded when it is called."""
    return audit.audit(fn, *args, **kwargs)
