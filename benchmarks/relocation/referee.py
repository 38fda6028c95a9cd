"""The referee of rewritten buffer slices: the same steps must move the same bytes.

It runs both programs side by side without computing anything: every byte of memory carries the
name of the write that put it there. Each read must find the same writes' bytes, in the same order,
before and after. It knows nothing of lifetimes, blocks or how the new places were found.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence

from olla_xla.errors import CheckError

__all__ = ["Area", "Part", "Step", "check_relocation"]


@dataclasses.dataclass(frozen=True)
class Part:
    """Bytes [offset, offset + size) of an area that a step reads, writes, or both."""

    area: int
    offset: int
    size: int
    reads: bool
    writes: bool


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a program, with the parts of memory that it names, in a fixed order."""

    name: str
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Area:
    """An allocation: its bytes, whether it begins with something in it, and is read at the end.

    `writable`: a step may write to it.
    """

    size: int
    filled: bool = False
    kept: bool = False
    writable: bool = True


def check_relocation(
    before: Sequence[Step],
    after: Sequence[Step],
    areas: Mapping[int, Area],
    sizes: Mapping[int, int],
    *,
    alignment: int = 64,
) -> None:
    """Checks that steps with new places compute what they did, run one after the other.

    Args:
      before, after: the same steps, part by part, with the old and the new places.
      areas: by index, as they were.
      sizes: bytes of the areas whose size is another now.
      alignment: of every place that changed.

    Raises:
      CheckError: naming the step: a part leaves its area, lies at an odd address, overlaps with
        another of its step otherwise than it did, reads other bytes than it did or bytes that
        nothing wrote; or what is left at the end differs.
    """
    resized = {index for index, size in sizes.items() if size != areas[index].size}
    if any(areas[index].filled or areas[index].kept for index in resized):
        raise CheckError("arguments and outputs must keep their sizes")
    new_areas = {i: dataclasses.replace(a, size=sizes.get(i, a.size)) for i, a in areas.items()}
    old, new = _Memory(areas), _Memory(new_areas)
    if len(before) != len(after):
        raise CheckError(f"{len(before)} steps became {len(after)}")
    for number, (x, y) in enumerate(zip(before, after, strict=True)):
        _check_parts(x, y, new_areas, alignment)
        for p, q in zip(x.parts, y.parts, strict=True):
            if p.reads and (found := old.read(p)) != new.read(q):
                raise CheckError(f"{x.name} would read other bytes than {_writers(found, before)}")
        for k, (p, q) in enumerate(zip(x.parts, y.parts, strict=True)):
            if p.writes:
                old.write(p, (number, k))
                new.write(q, (number, k))
    for index, area in areas.items():
        whole = Part(index, 0, area.size, reads=True, writes=False)
        if area.kept and old.read(whole, undefined=True) != new.read(whole, undefined=True):
            raise CheckError(f"allocation {index}, an output, would end with other bytes")


def _check_parts(x: Step, y: Step, areas: Mapping[int, Area], alignment: int) -> None:
    """Checks one step's new places: inside their areas, aligned, overlapping as before."""
    if x.name != y.name or len(x.parts) != len(y.parts):
        raise CheckError(f"step {x.name} became {y.name}")
    for p, q in zip(x.parts, y.parts, strict=True):
        if (p.size, p.reads, p.writes) != (q.size, q.reads, q.writes):
            raise CheckError(f"a part of {x.name} has another size or use")
        area = areas.get(q.area)
        if area is None or q.offset < 0 or q.offset + q.size > area.size:
            raise CheckError(f"a part of {x.name} leaves allocation {q.area}")
        if p == q:
            continue
        if q.offset % alignment:
            raise CheckError(f"a part of {x.name} lies at {q.offset}, not aligned to {alignment}")
        if not area.writable:
            raise CheckError(f"a part of {x.name} moved to allocation {q.area}, which is read-only")
    for i, p in enumerate(x.parts):
        for j in range(i):
            other = x.parts[j]
            if p.writes or other.writes:
                was, now = _overlap(p, other), _overlap(y.parts[i], y.parts[j])
                if was != now:
                    raise CheckError(f"parts {j} and {i} of {x.name} overlap otherwise: {now}")


def _overlap(p: Part, q: Part) -> int | None:
    """The offset of p minus that of q if they share bytes, else None."""
    if p.area != q.area or p.offset >= q.offset + q.size or q.offset >= p.offset + p.size:
        return None
    return p.offset - q.offset


_Write = tuple[int, int]
_Found = list[tuple[int, int, _Write, int]]


def _writers(found: _Found, steps: Sequence[Step]) -> str:
    names = {steps[w[0]].name if w[0] >= 0 else f"argument {w[1]}" for _, _, w, _ in found}
    return ", ".join(sorted(names))


class _Memory:
    """Which write each byte comes from, by area: intervals (start, write, address of its start)."""

    def __init__(self, areas: Mapping[int, Area]) -> None:
        self._starts: dict[int, list[int]] = {i: [0] for i in areas}
        # The last field is the address that byte 0 of the write would have in the area.
        self._owners: dict[int, list[tuple[_Write, int] | None]] = {
            i: [((-1, i), 0) if a.filled else None] for i, a in areas.items()
        }
        self._sizes = {i: a.size for i, a in areas.items()}

    def read(self, part: Part, *, undefined: bool = False) -> _Found:
        """A part's contents: (start, stop, write, first byte of the write), relative to it."""
        starts, owners = self._starts[part.area], self._owners[part.area]
        end = part.offset + part.size
        found: _Found = []
        k = bisect.bisect_right(starts, part.offset) - 1
        while k < len(starts) and starts[k] < end:
            low = max(starts[k], part.offset)
            high = min(starts[k + 1] if k + 1 < len(starts) else end, end)
            owner = owners[k]
            if owner is None and not undefined:
                raise CheckError(
                    f"bytes of allocation {part.area} are read before they are written"
                )
            if owner is not None and low < high:
                write, base = owner
                piece = (low - part.offset, high - part.offset, write, low - base)
                last = found[-1] if found else None
                if last and last[2] == write and last[1] == piece[0] and (
                    last[3] + last[1] - last[0] == piece[3]
                ):  # fmt: skip
                    piece = (last[0], piece[1], write, last[3])
                    found.pop()
                found.append(piece)
            k += 1
        return found

    def write(self, part: Part, write: _Write) -> None:
        """Puts a write's bytes where the part lies."""
        if not part.size:
            return
        starts, owners = self._starts[part.area], self._owners[part.area]
        end = part.offset + part.size
        first = bisect.bisect_left(starts, part.offset)
        last = bisect.bisect_left(starts, end)
        rest = owners[last - 1]
        new_starts: list[int] = [part.offset]
        new_owners: list[tuple[_Write, int] | None] = [(write, part.offset)]
        if end < self._sizes[part.area] and (last == len(starts) or starts[last] != end):
            new_starts.append(end)
            new_owners.append(rest)
        starts[first:last] = new_starts
        owners[first:last] = new_owners
