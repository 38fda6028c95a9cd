"""Checks that a GPU's dynamic_slice_fusion thunks take the slices that the module's indices give.

The host computes the address of such a slice from the number of a loop's iteration, by a start and
a stride that XLA found when it compiled (`hlo.gpu_executable`). Here the module's own index is
computed for each iteration (`scalars`), clamped as XLA defines the operations, and both must agree.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from hlo.gpu_executable import GpuExecutable, GpuThunk, MovingSlice
from hlo.wire import slice_ranges
from olla_xla.check.executable.element_order import digits
from olla_xla.check.executable.program import Body, Op, Program
from olla_xla.check.executable.scalars import UNKNOWN, Known, OutOfStepsError, Scalars
from olla_xla.errors import CheckError

_CUTS = ("dynamic-slice", "slice")
_STILL = ("bitcast", "reshape", "get-tuple-element", "copy")


@dataclasses.dataclass(frozen=True)
class FollowedSlices:
    """How many slices of GPU thunks were compared with the module's indices, and which were not.

    Attributes:
      slices: how many slices of thunks. addresses: how many addresses of them, in all iterations.
      left: why others were not compared, a line each.
      wrong: what differs, a line for each thunk: with the iteration and both addresses.
    """

    slices: int = 0
    addresses: int = 0
    left: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


def check_moving_slices(program: Program, executable: GpuExecutable) -> FollowedSlices:
    """Compares where slices in GPU thunks begin with the module's indices, in every iteration;
    returns what differs, and what could not be compared.
    """
    thunks = {t.name: t for t in executable.all_thunks if any(s.is_cut for s in t.slices)}
    if not thunks:
        return FollowedSlices()
    follower = _SliceFollower(thunks)
    thunk_of = {op: thunks[op.name] for op in program.run_ops() if op.name in thunks}
    for op, thunk in thunk_of.items():
        try:
            follower.pair(op, thunk)
        except CheckError as error:
            follower.wrong[op] = str(error)
    scalars = follower.scalars = Scalars(thunk_of, follower.visit)
    try:
        scalars.run(program.entry, [UNKNOWN] * len(program.entry.parameters))
    except OutOfStepsError:
        follower.left["iterations beyond the number that can be checked"] = None
    for loop in scalars.blind:
        follower.left[f"iterations of {loop.name} after the 16th, as their count is unknown"] = None
    for name in thunks.keys() - {op.name for op in follower.seen}:
        follower.left[f"{name} was not reached"] = None
    wrong = tuple(follower.wrong.values())
    return FollowedSlices(follower.slices, follower.addresses, tuple(follower.left), wrong)


class _SliceFollower:
    """Compares where a fusion's slices begin by the module's indices and by the fusion's thunk."""

    scalars: Scalars

    def __init__(self, thunks: Mapping[str, GpuThunk]) -> None:
        self._thunks = thunks
        self._pairs: dict[Op, list[tuple[MovingSlice, Op]]] = {}
        self.slices = self.addresses = 0
        self.left: dict[str, None] = {}
        self.seen: set[Op] = set()
        self.wrong: dict[Op, str] = {}

    def pair(self, op: Op, thunk: GpuThunk) -> None:
        """Matches a thunk's slices to operations in fusion `op`, and notes which are unclear.
        CheckError if sizes differ, or its copies take other bytes.
        """
        self._pairs[op] = pairs = []
        _check_copies(thunk)
        for cut, part in _paired(op.called[0], thunk):
            if part is None:
                self.left[f"{thunk}, as it is unknown which slice of {_which(cut)} it takes"] = None
                continue
            shape = part.operands[1].shape if cut.is_result else part.shape
            if shape.bytes != cut.size:
                raise CheckError(
                    f"{thunk} takes {cut.size:,} bytes of {_which(cut)}, but {part.name} "
                    f"has {shape.bytes:,}"
                )
            pairs.append((cut, part))
        self.slices += len(pairs)

    def visit(self, op: Op, operands: Sequence[Known], iterations: tuple[int, ...]) -> None:
        """Compares the addresses of fusion `op`'s slices in one iteration; notes which differ, and
        which are unknown. `operands`: what is known of the fusion's operands. `iterations`: of each
        loop around it.
        """
        self.seen.add(op)
        known = self.scalars.run(op.called[0], operands, iterations)
        for cut, part in self._pairs[op]:
            begin = self._begin(part, known)
            if begin is None:
                self.left[f"the index of {part.name}, which depends on more than constants"] = None
                continue
            last = part.operands[0].shape.bytes - cut.size
            actual = min(max(cut.offset(iterations), 0), last)
            if actual != begin:
                verb = "writes" if cut.is_result else "reads"
                where = f" in iteration {', '.join(map(str, iterations))}" if iterations else ""
                said = (
                    f"{self._thunks[op.name]} {verb} bytes [{actual:,}, "
                    f"{actual + cut.size:,}) of {_which(cut)}{where}, but the index of "
                    f"{part.name} gives [{begin:,}, {begin + cut.size:,})"
                )
                self.wrong.setdefault(op, said)
            self.addresses += 1

    def _begin(self, part: Op, known: Mapping[Op, Known]) -> int | None:
        """Where the slice that `part` takes or writes begins, in bytes; None if it is unknown."""
        whole = part.operands[0].shape
        if part.opcode == "slice":
            starts: list[int | None] = [start for start, _, _ in slice_ranges(part.proto)]
        else:
            first = 1 if part.opcode == "dynamic-slice" else 2
            cut = part.shape if first == 1 else part.operands[1].shape
            extents = zip(part.operands[first:], whole.dimensions, cut.dimensions, strict=True)
            starts = []
            for index, extent, size in extents:
                number = known.get(index, UNKNOWN)
                if extent == size:
                    starts.append(0)
                elif isinstance(number, bytes):
                    starts.append(self.scalars.integers.clamped(number, extent - size + 1))
                else:
                    starts.append(None)
        if any(start is None for start in starts):
            return None
        pairs = zip(starts, digits(whole), strict=True)
        return sum(s * d for s, (_, d) in pairs if s is not None) * whole.element_bits // 8


def _paired(body: Body, thunk: GpuThunk) -> Iterator[tuple[MovingSlice, Op | None]]:
    """Yields each moving slice of a thunk, with what takes it in fusion `body`; None if unclear.

    Operands of what the fusion runs come in its order. Where nothing is run but a copy, the slice
    is the result itself.
    """
    roots = body.result.operands if body.result.opcode == "tuple" else (body.result,)
    ends = [root.behind(*_STILL) for root in roots]
    first = ends[0]
    if first.opcode == "dynamic-update-slice":
        first = first.operands[1].behind(*_STILL)
    is_copy = first.opcode in (*_CUTS, "parameter")
    read = [first] if is_copy else [operand.behind(*_STILL) for operand in first.operands]
    given = [cut for cut in thunk.slices if not cut.is_result]
    for k, cut in enumerate(given):
        if not cut.is_cut:
            continue
        alike = [op for op in body.ops if _takes(op, cut)]
        part = read[k] if len(read) == len(given) else None
        if part is None or part not in alike:
            part = alike[0] if len(alike) == 1 else None
        yield cut, part
    for cut in thunk.slices:
        if cut.is_result and cut.is_cut:
            end = ends[cut.number] if cut.number < len(ends) else None
            is_update = end is not None and end.opcode == "dynamic-update-slice"
            yield cut, end if is_update else None


def _takes(op: Op, cut: MovingSlice) -> bool:
    """Whether `op` slices the parameter that `cut` names, to the extents that `cut` has."""
    if op.opcode not in _CUTS or op.shape.dimensions != cut.dimensions:
        return False
    source = op.operands[0].behind(*_STILL)
    return source.opcode == "parameter" and source.proto.parameter_number == cut.number


def _check_copies(thunk: GpuThunk) -> None:
    """Raises CheckError if inner thunks leave `thunk`'s slices, or a lone copy misses a part."""
    for inner in thunk.embedded:
        for access in inner.accesses:
            place = access.slice
            known = place.allocation < len(thunk.slices)
            if not known or place.end > thunk.slices[place.allocation].size:
                raise CheckError(f"{thunk} accesses bytes outside of its slices")
        if inner.kind.endswith("copy") and len(thunk.embedded) == 1:
            places = [(a.slice.offset, a.slice.size, a.writes) for a in inner.accesses]
            if places != [(0, s.size, s.is_result) for s in thunk.slices]:
                raise CheckError(f"{thunk} does not copy its whole slice")


def _which(cut: MovingSlice) -> str:
    return f"{'result' if cut.is_result else 'operand'} {cut.number}"
