"""How many arrays a fusion is given that hold the same.

XLA passes an array to a fusion's code once, whatever operands it is. Of two arrays that hold the
same LLVM does not know that they do; where they become one, it finds arithmetic to be common, and
may round sums of products otherwise.
"""

from __future__ import annotations

from olla_xla.check.executable.numbering import Numbers, hashed, named
from olla_xla.check.executable.program import Op

__all__ = ["Alike", "Arrays", "array_of"]

Alike = dict[tuple[Op, int], object]
"""(parameter of a loop's body, element of it that no iteration changes) -> the array that it begins
as, and is: two elements that begin as one array are one."""

_MOVED = {
    **dict.fromkeys("bitcast broadcast copy reshape reverse slice transpose".split(), 1),
    **dict.fromkeys(["dynamic-slice", "get-tuple-element"], 1),
    "dynamic-update-slice": 2,
}
"""Opcodes that hand on elements of their first operands, and of how many."""


class Arrays:
    """The arrays that values inside a fusion were taken from.

    An array is an operation outside, before bitcasts.
    """

    def __init__(self) -> None:
        self._from: dict[Op, frozenset[object]] = {}
        self._read: dict[bytes, set[object]] = {}

    @classmethod
    def of(cls, fusion: Op, alike: Alike) -> Arrays:
        """Those of a fusion's operands; `alike` are the elements of loops' states that it knows."""
        arrays = cls()
        for parameter, operand in zip(fusion.called[0].parameters, fusion.operands, strict=True):
            arrays._from[parameter] = frozenset([array_of(operand, alike)])
        return arrays

    def note(self, op: Op, read: list[Numbers]) -> None:
        """Notes what an operation inside takes from them: numbers of its operands."""
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
        """What is computed with and taken from several arrays, and from how many; or nothing."""
        return b"".join(
            number + hashed(named((len(arrays),)))
            for number, arrays in sorted(self._read.items())
            if len(arrays) > 1
        )


def array_of(op: Op, alike: Alike) -> object:
    """What tells an array from others."""
    while op.opcode == "bitcast":
        (op,) = op.operands
    if op.opcode == "get-tuple-element":
        whole, k = op.operands[0], op.proto.tuple_index
        return alike[whole, k] if (whole, k) in alike else (array_of(whole, alike), k)
    return op
