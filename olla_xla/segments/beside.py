"""How much work of a scan's iteration can overlap with copies of its slices."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.extend.core import primitives

from olla_xla.segments.equations import bytes_of, inner_jaxprs, is_variable, operands
from olla_xla.segments.trace import Inliner

_OF_A_BYTE = 50.0
"""Operations of a matrix product that take as long as making a byte without one: memory moves a
byte in the time of about 200 (an H100, a TPU v5e), and about four equations run in one kernel."""


class _TimedEquation(NamedTuple):
    work: float
    reads: frozenset[Any]
    makes: frozenset[Any]


class Beside:
    """Estimates how much of a scan body's work can overlap with copying a slice of one result or
    argument to or from host memory. Work is in floating-point operations of matrix products in one
    iteration; other equations, also in calls and checkpoints, count by the time they take.
    """

    def __init__(self, equations: Sequence[Any]) -> None:
        self._names: dict[Any, Any] = {}
        flat = Inliner(_called).equations(equations, self._names)
        self._steps = [
            _TimedEquation(_work(e), frozenset(operands(e)), frozenset(e.outvars)) for e in flat
        ]

    @property
    def work(self) -> float:
        """The work, in operations, of all equations of a scan's body in one iteration."""
        return math.fsum(step.work for step in self._steps)

    def after(self, result: Any) -> float:
        """Returns the work, in operations, of the equations after the one that makes `result`, or
        of all if none does: it can overlap with the copy of `result` to host memory.
        """
        name, work = self._named(result), 0.0
        for step in reversed(self._steps):
            if name in step.makes:
                break
            work += step.work
        return work

    def before(self, argument: Any) -> float:
        """Returns the work, in operations, of the equations before the first that reads `argument`,
        or of all if none does: it can overlap with the copy of `argument` from host memory.
        """
        ahead = itertools.takewhile(lambda step: argument not in step.reads, self._steps)
        return math.fsum(step.work for step in ahead)

    def _named(self, atom: Any) -> Any:
        return self._names.get(atom, atom) if is_variable(atom) else None


def _called(e: Any) -> Any:
    """Returns the only jaxpr that an equation calls, if it is no scan and its operands fit; or
    None.
    """
    inner = inner_jaxprs(e)
    if e.primitive is primitives.scan_p or len(inner) != 1:
        return None
    is_same = [v.aval for v in inner[0].invars] == [v.aval for v in e.invars]
    return inner[0] if is_same else None


def _work(e: Any) -> float:
    made, p = math.fsum(map(bytes_of, e.outvars)), e.params
    inner = [sum(map(_work, jaxpr.eqns)) for jaxpr in inner_jaxprs(e)]
    if inner:
        return p.get("length", 1) * max(inner)
    if e.primitive is primitives.dot_general_p:
        left = e.invars[0].aval.shape
        return (
            2.0 * e.outvars[0].aval.size * math.prod(left[d] for d in p["dimension_numbers"][0][0])
        )
    if e.primitive is primitives.conv_general_dilated_p:
        kernel = e.invars[1].aval
        each = kernel.size / max(kernel.shape[p["dimension_numbers"].rhs_spec[0]], 1)
        return 2.0 * e.outvars[0].aval.size * each
    return _OF_A_BYTE * made
