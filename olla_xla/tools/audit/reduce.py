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
    """Cuts all from an audited program that its first finding does not need; audits what is left.

    What is cut are results, instructions that nothing left needs, what computes arrays before
    (they become arguments) and elements of loops' states. After each cut the rest is audited again,
    and the cut is taken back unless it has the same finding and no other, and is followed as far.
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
        """Applies a cut to all `options` at once or, if that loses the finding, to each half."""
        if not options or self._cut(lambda cut: apply(cut, options)) or len(options) == 1:
            return
        middle = len(options) // 2
        self._halves(options[:middle], apply)
        self._halves(options[middle:], apply)

    def _cut(self, work: Callable[[CutModule], None]) -> bool:
        """Applies a cut and audits what is left; False, and undone, if the finding is lost."""
        if not self._left:
            return False
        self._left -= 1
        cut = self._of_best()
        try:
            work(cut)
            found = audit_parts(_with(self.best.parts, cut.finish()))
        except (HloError, LookupError, ValueError):  # of what no longer holds together
            return False
        said = {(f.check, f.message) for f in found.findings}
        if said != {self._first} or not set(found.left) <= set(self.best.left):
            return False
        self.best = dataclasses.replace(found, seconds=self.best.seconds)
        return True


def _with(parts: ExecutableParts, module: bytes) -> ExecutableParts:
    """Puts a cut module in the parts of an executable; a GPU's code is cut, a CPU's left out."""
    executable = b""
    if parts.executable and parts.target == CUDA.name:
        left = (i.name for c in module_from_bytes(module).computations for i in c.instructions)
        executable = cut_down(parts.executable, frozenset(left), unsnapped)
    return parts._replace(module=module, executable=executable, stablehlo="", before=b"")
