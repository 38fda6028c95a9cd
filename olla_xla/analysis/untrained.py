"""What a train step carries of what it does not train: zeros, and state without gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hlo.module import Computation, Instruction, Module
from olla_xla.analysis.leaves import Leaf, stands_at
from olla_xla.analysis.op_names import Phase, phase_of
from olla_xla.analysis.reading import DERIVATIVE

_Reach = Mapping[tuple[int, ...], int]
"""By index of a result, a bit for each parameter that it is made from, and `_LEARNS`."""

_LEARNS = 1
"""Of what the derivative makes; parameter k has bit k + 1."""


@dataclasses.dataclass(frozen=True)
class Untrained:
    """Outputs of a train step that training never changes.

    Attributes:
      bytes: of results that are the same at every step, such as gradients of what is not trained,
        and of results that replace arguments and that no gradient reaches. paths: of these results.
    """

    bytes: int
    paths: tuple[str, ...]


def untrained(module: Module, taken: Sequence[Leaf], returned: Sequence[Leaf]) -> Untrained | None:
    """Finds outputs that training never changes; None: there are none, or no backward pass.

    Args:
      module: of the step. taken, returned: the arrays that the function takes and returns.
    """
    names = (i.op_name for c in module.computations for i in c.instructions)
    if not any(phase_of(name) is Phase.BACKWARD for name in names):
        return None
    reach = _through(module.entry, {})
    arrays = {leaf.number: leaf for leaf in taken if leaf.number is not None and leaf.shape}
    found = []
    for result in returned:
        index = () if result.number is None else (result.number,)
        index = index if index in reach else ()
        bits = reach.get(index, _LEARNS)
        read = [leaf for number, leaf in arrays.items() if bits >> (number + 1) & 1]
        alike = all(leaf.type == result.type for leaf in read)
        own = not read or any(stands_at(result, leaf) for leaf in read)
        if result.shape and not bits & _LEARNS and alike and own:
            found.append(result)
    paths = tuple(r.path for r in sorted(found, key=lambda r: -r.bytes))
    return Untrained(sum(r.bytes for r in found), paths) if found else None


def _through(computation: Computation, given: Mapping[int, _Reach]) -> _Reach:
    """What the result of a computation is made from; `given`: that of its parameters."""
    known: dict[Instruction, _Reach] = {}
    for i in computation.instructions:
        if i.opcode == "parameter":
            k = i.parameter_number
            known[i] = given.get(k, {(): 0 if given else 1 << (k + 1)})
            continue
        operands = [known.get(o, {(): _LEARNS}) for o in i.operands]
        if i.opcode == "tuple":
            known[i] = {(k,): _all(o) for k, o in enumerate(operands)}
        elif i.opcode == "get-tuple-element":
            whole = operands[0]
            known[i] = {(): whole.get((i.tuple_index,), _all(whole))}
        elif i.opcode in ("fusion", "call"):
            known[i] = _through(i.called[0], dict(enumerate(operands)))
        else:
            bits = 0
            for operand in operands:
                bits |= _all(operand)
            known[i] = {(): bits | _learns(i)}
    root = computation.root
    return {(): _LEARNS} if root is None else known[root]


def _learns(i: Instruction) -> int:
    """`_LEARNS` of an operation of the derivative that makes something of what it reads."""
    inside = [k for c in i.called for k in c.instructions]
    phases = {phase_of(k.op_name) for k in (i, *inside) if k.opcode != "broadcast"}
    return _LEARNS if phases & DERIVATIVE and i.operands else 0


def _all(reach: _Reach) -> int:
    found = 0
    for bits in reach.values():
        found |= bits
    return found
