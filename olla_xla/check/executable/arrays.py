"""From how many arrays a fusion reads equal values.

XLA passes an array to a fusion's code once, however many operands it is. LLVM does not know that
two arrays hold equal values. Where a rewrite makes them one array, LLVM finds common
subexpressions, and may round sums of products otherwise.
"""

from __future__ import annotations

from olla_xla.check.executable.numbering import Numbers, hashed, named
from olla_xla.check.executable.program import Op

Alike = dict[tuple[Op, int], object]
"""(parameter of a loop's body, element of it that no iteration changes) -> the array that it is
initialised with. Two elements with one initial array are that array."""

_MOVED = {
    **dict.fromkeys("bitcast broadcast copy reshape reverse slice transpose".split(), 1),
    **dict.fromkeys(["dynamic-slice", "get-tuple-element"], 1),
    "dynamic-update-slice": 2,
}
"""Opcode -> how many of its first operands its result takes elements from."""


class Arrays:
    """The arrays outside a fusion (`array_of`) that values inside it come from."""

    def __init__(self) -> None:
        self._from: dict[Op, frozenset[object]] = {}
        self._read: dict[bytes, set[object]] = {}

    @classmethod
    def of(cls, fusion: Op, alike: Alike) -> Arrays:
        """The arrays of a fusion's operands; `alike` has those of loop states (see `Alike`)."""
        arrays = cls()
        for parameter, operand in zip(fusion.called[0].parameters, fusion.operands, strict=True):
            arrays._from[parameter] = frozenset([array_of(operand, alike)])
        return arrays

    def note(self, op: Op, read: list[Numbers]) -> None:
        """Notes which arrays an operation inside reads; `read` has its operands' numbers."""
        if op.opcode in ("concatenate", "tuple"):
            count = len(op.operands)
        else:
            count = _MOVED.get(op.opcode, 0)
        if count:
            given = (self._from.get(o, frozenset()) for o in op.operands[:count])
            self._from[op] = frozenset().union(*given)
            return
        for operand, numbers in zip(op.operands, read, strict=True):
            if origin := self._from.get(operand):
                for number in numbers.values():
                    self._read.setdefault(number, set()).update(origin)

    def several(self) -> bytes:
        """The numbers that were read from several arrays, each with the count; b"" if none."""
        return b"".join(
            number + hashed(named((len(arrays),)))
            for number, arrays in sorted(self._read.items())
            if len(arrays) > 1
        )


def array_of(op: Op, alike: Alike) -> object:
    """The identity of an array: the operation that made it, or an element of its tuple."""
    while op.opcode == "bitcast":
        (op,) = op.operands
    if op.opcode == "get-tuple-element":
        whole, k = op.operands[0], op.proto.tuple_index
        return alike[whole, k] if (whole, k) in alike else (array_of(whole, alike), k)
    return op
