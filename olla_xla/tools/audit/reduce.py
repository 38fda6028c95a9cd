"""A program with a finding, cut down to what the finding needs."""

import dataclasses
from collections.abc import Callable, Sequence

from hlo.backend import CUDA
from hlo.dumps.cut import CutModule
from hlo.gpu_executable import cut_down
from hlo.module import HloError, module_from_bytes
from olla_xla.memory.snappy import unsnapped
from olla_xla.tools.audit.audit import audit_parts
from olla_xla.tools.audit.report import Audit, ExecutableParts

_MOST = 200
"""Audits at most."""


def reduced(audit: Audit) -> Audit:
    """Removes from an audited program what its first finding does not need; audits what is left.
    Returns the last audit that has it; `audit` itself if nothing was found.

    Results, instructions and updates of elements of loops' states are removed; what computes arrays
    before becomes an argument. After each removal the rest is audited; it is undone unless the
    audit has the same finding and no other, and leaves nothing more unchecked.
    """
    return _Reducer(audit).best if audit.findings else audit


class _Reducer:
    def __init__(self, audit: Audit) -> None:
        self.best, self._left = audit, _MOST
        first = audit.findings[0]
        self._first = first.check, first.message
        self._needed = first.instructions
        self._cut(CutModule.ended)
        self._halves(self._of_best().inputs(), CutModule.opaque)
        self._halves(self._of_best().states(), CutModule.passed_on)

    def _of_best(self) -> CutModule:
        return CutModule(self.best.parts.module, self._needed)

    def _halves[T](
        self, options: Sequence[T], apply: Callable[[CutModule, Sequence[T]], None]
    ) -> None:
        """Removes `options` from the program, by `apply`, where the finding that is sought stays.
        All are removed at once or, if that loses the finding, each half alone, and so on.
        """
        if not options or self._cut(lambda cut: apply(cut, options)) or len(options) == 1:
            return
        middle = len(options) // 2
        self._halves(options[:middle], apply)
        self._halves(options[middle:], apply)

    def _cut(self, work: Callable[[CutModule], None]) -> bool:
        """Removes part of the program by `work`; returns whether the finding that is sought stays.
        If it does not, and after 200 audits of what is left, the program is as it was before.
        """
        if not self._left:
            return False
        self._left -= 1
        cut = self._of_best()
        try:
            work(cut)
            audited = audit_parts(_with(self.best.parts, cut.finish()))
        except (HloError, LookupError, ValueError):  # of what no longer holds together
            return False
        said = {(f.check, f.message) for f in audited.findings}
        if said != {self._first} or not set(audited.left) <= set(self.best.left):
            return False
        self.best = dataclasses.replace(audited, seconds=self.best.seconds)
        return True


def _with(parts: ExecutableParts, module: bytes) -> ExecutableParts:
    """Returns `parts` of an executable with a smaller module, without StableHLO and `before`.
    A GPU's executable keeps the thunks of instructions that are left; a CPU's is left out.
    """
    executable = b""
    if parts.executable and parts.target == CUDA.name:
        left = (i.name for c in module_from_bytes(module).computations for i in c.instructions)
        executable = cut_down(parts.executable, frozenset(left), unsnapped)
    return parts._replace(module=module, executable=executable, stablehlo="", before=b"")
