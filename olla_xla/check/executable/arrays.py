"""From how many arrays a fusion reads equal values.

XLA passes an array to a fusion's code once, however many operands it is. LLVM does not know that
two arrays hold equal values. Where a rewrite makes them one array, LLVM finds common
subexpressions, and may round sums of products otherwise.
"""

from collections.abc import Collection, Iterable

from olla_xla.check.executable.numbering import Numbers, named
from olla_xla.check.executable.program import Op

_Extents = tuple[int, tuple[int, ...]]
"""Element type and dimensions."""

_NONE = frozenset[object]()

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
    """Records from which arrays outside a fusion the operations inside it read their operands.

    `alike`: (parameter of a loop's body, tuple index) -> the array that this element always is.
    """

    def __init__(self, fusion: Op, alike: Alike) -> None:
        given = zip(fusion.called[0].parameters, fusion.operands, strict=True)
        self._from = {p: frozenset([array_of(operand, alike)]) for p, operand in given}
        self._read: list[tuple[Op, _Extents, bytes, frozenset[object]]] = []

    def note(self, op: Op, read: list[Numbers]) -> None:
        """Records which arrays outside the fusion `op` reads, or, if it only moves elements,
        passes on; `read`: value numbers of its operands.
        """
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
                extents = operand.shape.element_type, operand.shape.dimensions
                self._read += ((op, extents, number, origin) for number in numbers.values())

    def candidates(self, among: Collection[Op] | None = None) -> dict[bytes, frozenset[object]]:
        """Value number -> outside arrays it is read from; only of shapes that several arrays have.

        `among`: operations inside the fusion whose reads count; None: all.
        """
        sources: dict[bytes, frozenset[object]] = {}
        read: dict[_Extents, dict[bytes, frozenset[object]]] = {}
        for op, extents, number, origin in self._read:
            if among is None or op in among:
                alike = read.setdefault(extents, {})
                alike[number] = alike.get(number, _NONE) | origin
        for alike in read.values():
            if len(_NONE.union(*alike.values())) > 1:
                sources |= alike
        return sources


def several(read: Iterable[tuple[bytes, frozenset[object]]]) -> list[bytes]:
    """Picks the numbers that several arrays hold from `read`: (value number, arrays that hold it).

    Returns each such number, ascending, followed by a hash of how many arrays hold it.
    """
    origins: dict[bytes, frozenset[object]] = {}
    for number, origin in read:
        origins[number] = origins.get(number, _NONE) | origin
    counts = ((n, len(origin)) for n, origin in origins.items() if len(origin) > 1)
    return [part for n, count in sorted(counts) for part in (n, named((count,)))]


def array_of(op: Op, alike: Alike) -> object:
    """Returns a key that tells whether two operations return the same array.

    It is the operation that makes the array, before bitcasts; for a get-tuple-element what `alike`
    has for (tuple operation, tuple index), else (key of the tuple operation, tuple index).
    """
    op = op.behind("bitcast")
    if op.opcode == "get-tuple-element":
        whole, k = op.operands[0], op.proto.tuple_index
        return alike[whole, k] if (whole, k) in alike else (array_of(whole, alike), k)
    return op
