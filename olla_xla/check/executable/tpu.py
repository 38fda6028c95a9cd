"""What XLA:TPU does after its scheduler: parts of arrays are brought to VMEM, and joined there."""

import dataclasses
import json
from collections.abc import Callable, Sequence

from hlo.shapes import Shape
from olla_xla.check.executable.program import Op

_JOINED = "ConcatBitcast"
"""Target of the custom call that joins adjacent parts of one array in memory."""


def decisive_config(op: Op) -> bytes:
    """The part of an instruction's backend_config that decides what it computes, on a TPU; or b"".

    That is a custom call's own, or all if it is no JSON object. The rest says how XLA runs it, and
    is chosen after the scheduler: windows, priorities, memory for intermediates.
    """
    if op.opcode != "custom-call":
        return b""
    try:
        config = json.loads(op.proto.backend_config)
    except ValueError:
        return op.proto.backend_config
    if not isinstance(config, dict):
        return op.proto.backend_config
    own = config.get("custom_call_config")
    return json.dumps(own, sort_keys=True).encode() if own else b""


Cast = Callable[[bytes, Shape, Shape], bytes]
"""Of an array's number, its shape and another one: the number of the array's bitcast to that."""


@dataclasses.dataclass(frozen=True)
class _Part:
    """A slice of an array: the array's value number and shape, [start, limit) in each dimension."""

    source: bytes
    shape: Shape
    ranges: tuple[tuple[int, int], ...]


class Parts:
    """Recognises custom calls that join parts of an array, from the slices that it has met."""

    def __init__(self) -> None:
        self._found: dict[bytes, list[_Part]] = {}
        """Those of one number: slices of equal rows have the same."""

    def of(self, op: Op, read: Sequence[bytes], number: bytes, cast: Cast) -> bytes:
        """The value number of `op`: a bitcast's if it joins all parts of an array, else `number`.

        If it is a slice, it is remembered. `read`: value numbers of its operands. `number`: by
        `Numbering.plain`. `cast` gives the number of a bitcast.
        """
        if op.opcode == "slice":
            self.note(op, read[0], number)
        elif op.opcode == "custom-call" and (joined := self._joined(op, read)) is not None:
            return cast(*joined, op.shape)
        return number

    def note(self, op: Op, source: bytes, number: bytes) -> None:
        """Remembers a slice, its number and its source's, if it takes every element of a range."""
        if all(d.stride == 1 for d in op.proto.slice_dimensions):
            known = self._found.setdefault(number, [])
            part = _Part(source, op.operands[0].shape, _ranges(op))
            if part not in known:
                known.append(part)

    def _joined(self, op: Op, numbers: Sequence[bytes]) -> tuple[bytes, Shape] | None:
        """(value number, shape) of the array whose adjacent parts a custom call joins in memory.

        XLA lists them in the order of arrival, not of position. What is joined is a bitcast of the
        array: parts of a row of bytes may make up an array of another shape. None if the call does
        not join, or the parts do not make up an array. `numbers`: of its operands.
        """
        cuts = _cuts(op)
        if not cuts:
            return None
        known = [
            [part for part in self._found.get(n, ()) if part.ranges == _ranges(cut)]
            for n, cut in zip(numbers, cuts, strict=True)
        ]
        for source in dict.fromkeys(part.source for part in known[0]):
            parts = [part for of in known for part in of if part.source == source]
            shape = parts[0].shape
            if len(parts) == len(cuts) and _lies_alike(op.shape, shape) and _make_up(parts):
                return source, shape
        return None


def _make_up(parts: Sequence[_Part]) -> bool:
    """Whether slices of one array, cut along one dimension, have each of its elements once."""
    extents = [(0, extent) for extent in parts[0].shape.dimensions]
    cut = [k for k, whole in enumerate(extents) if any(p.ranges[k] != whole for p in parts)]
    if len(cut) != 1:
        return False
    ends = sorted(part.ranges[cut[0]] for part in parts)
    starts = [0, *(limit for _, limit in ends)]
    return [start for start, _ in ends] == starts[:-1] and starts[-1] == extents[cut[0]][1]


def joined_at(op: Op) -> list[tuple[int, ...]] | None:
    """Start indices, in the whole array, of each slice that `op` joins in place; or None."""
    cuts = _cuts(op)
    return None if cuts is None else [tuple(start for start, _ in _ranges(cut)) for cut in cuts]


def _cuts(op: Op) -> list[Op] | None:
    """The slices that `op` joins in place; None if it is no such call, or joins other arrays."""
    if op.proto.custom_call_target != _JOINED:
        return None
    slices = []
    for cut in op.operands:
        while cut.opcode in ("async-done", "async-update", "async-start"):
            cut = cut.called[0].result if cut.opcode == "async-start" else cut.operands[0]
        if cut.opcode != "slice":
            return None
        slices.append(cut)
    return slices


def _ranges(cut: Op) -> tuple[tuple[int, int], ...]:
    return tuple((d.start, d.limit) for d in cut.proto.slice_dimensions)


def _lies_alike(whole: Shape, source: Shape) -> bool:
    """Whether parts of `source` that are adjacent in it are so in `whole`, which they make up.

    That is if both are equal but for the memory space, or the source is a row of as many bytes.
    """
    blank = {"memory_space": 0, "key": b""}
    if len(source.dimensions) == 1 and whole.bytes == source.bytes:
        return True
    return dataclasses.replace(whole, **blank) == dataclasses.replace(source, **blank)
