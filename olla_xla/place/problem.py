"""The placement problem (dynamic storage allocation) and its answer.
A block is live over the half-open interval [lower, upper) and needs `size` bytes at one offset for
all of it. Blocks that are live at the same time must not share a byte; the highest end of any block
is to be small, or at most a given capacity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.check.blocks import check_blocks
from olla_xla.errors import InputError
from olla_xla.problem.plan_parts import StopReason
from olla_xla.solvers.linear import Status


@dataclasses.dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Blocks to place; all arrays are int64 with one entry for each block.

    Attributes:
      names: for messages and files; unique.
      lower, upper: live over [lower, upper), in any unit of time.
      size: bytes. alignment: the offset must be a multiple of it (bytes, at least 1).
      fixed: the offset if the block is pinned, else -1 (bytes).
      group: blocks of one group get one offset (in-place sharing); their intervals may overlap.
      space: memory space; every space is an arena of its own.
      capacity: bytes of each memory space that has a limit; in others the height is minimised.
    """

    names: tuple[str, ...]
    lower: NDArray[np.int64]
    upper: NDArray[np.int64]
    size: NDArray[np.int64]
    alignment: NDArray[np.int64]
    fixed: NDArray[np.int64]
    group: NDArray[np.int64]
    space: NDArray[np.int64]
    capacity: Mapping[int, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        lower: Sequence[int] | NDArray[np.int64],
        upper: Sequence[int] | NDArray[np.int64],
        size: Sequence[int] | NDArray[np.int64],
        *,
        names: Sequence[str] | None = None,
        alignment: int | Sequence[int] | NDArray[np.int64] = 1,
        fixed: Sequence[int] | NDArray[np.int64] | None = None,
        group: Sequence[int] | NDArray[np.int64] | None = None,
        space: Sequence[int] | NDArray[np.int64] | None = None,
        capacity: int | Mapping[int, int] | None = None,
    ) -> PlacementProblem:
        """Builds and validates a problem; by default nothing is pinned, grouped or limited.

        Args:
          lower, upper, size, fixed, group, space: [blocks], as the fields.
          alignment: one value for all blocks, or one each.
          capacity: one value for all memory spaces, or by space, or None.

        Raises:
          InputError: values do not fit together, or one is out of range; the message says which.
        """
        n = len(size)
        spaces = _array(space if space is not None else np.zeros(n), n, "space")
        if isinstance(alignment, int | np.integer):
            alignment = np.full(n, alignment)
        if capacity is None:
            capacity = {}
        elif not isinstance(capacity, Mapping):
            capacity = {int(s): int(capacity) for s in np.unique(spaces)}
        problem = cls(
            names=tuple(str(i) for i in range(n)) if names is None else tuple(names),
            lower=_array(lower, n, "lower"),
            upper=_array(upper, n, "upper"),
            size=_array(size, n, "size"),
            alignment=_array(alignment, n, "alignment"),
            fixed=_array(fixed if fixed is not None else np.full(n, -1), n, "fixed"),
            group=_array(group if group is not None else np.arange(n), n, "group"),
            space=spaces,
            capacity=dict(capacity),
        )
        problem._validate()
        return problem

    def __len__(self) -> int:
        return len(self.size)

    def _validate(self) -> None:
        if len(self.names) != len(self) or len(set(self.names)) != len(self):
            raise InputError(f"{len(self)} blocks need {len(self)} different names")
        for bad, why in (
            (self.lower >= self.upper, "lower {lower} must be below upper {upper}"),
            (self.size < 0, "size {size} must not be negative"),
            (self.alignment < 1, "alignment {alignment} must be at least 1"),
            (self.fixed < -1, "fixed offset {fixed} must not be negative"),
            (
                (self.fixed >= 0) & (self.fixed % np.maximum(self.alignment, 1) != 0),
                "fixed offset {fixed} is not a multiple of its alignment {alignment}",
            ),
        ):
            if bad.any():
                i = int(np.argmax(bad))
                values = {k: int(getattr(self, k)[i]) for k in _FIELDS}
                raise InputError(f"block {self.names[i]}: {why.format(**values)}")
        for space, bytes in self.capacity.items():
            if bytes < 0:
                raise InputError(f"capacity {bytes} of memory space {space} must not be negative")
        self._validate_groups()

    def _validate_groups(self) -> None:
        order = np.argsort(self.group, kind="stable")
        for i, j in zip(order, order[1:], strict=False):
            if self.group[i] != self.group[j]:
                continue
            pair = f"blocks {self.names[i]} and {self.names[j]} must share one offset"
            if self.space[i] != self.space[j]:
                raise InputError(f"{pair}, but they are in different memory spaces")
            if self.fixed[i] != self.fixed[j]:
                raise InputError(f"{pair}, but their fixed offsets differ")

    def check(self, offsets: NDArray[np.int64]) -> dict[int, int]:
        """Has the verifier check offsets, int64 [blocks]; returns memory space -> bytes it needs.
        Raises CheckError if they break a constraint; the message names the blocks.
        """
        return check_blocks(
            self.lower.tolist(),
            self.upper.tolist(),
            self.size.tolist(),
            offsets.tolist(),
            names=self.names,
            capacity=self.capacity,
            alignment=self.alignment.tolist(),
            fixed=self.fixed.tolist(),
            group=self.group.tolist(),
            space=self.space.tolist(),
        )


_FIELDS = ("lower", "upper", "size", "alignment", "fixed")


def _array(values: Sequence[int] | np.ndarray, n: int, what: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.shape != (n,):
        raise InputError(f"{what} has shape {array.shape}; {n} blocks need one value each")
    result = array.astype(np.int64)
    if not np.array_equal(result, array):
        raise InputError(f"{what} must contain whole numbers below 2**63")
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Packing:
    """Offsets for a PlacementProblem, with what is known about them.

    Attributes:
      offsets: int64 [blocks], bytes; None where no packing was found.
      heights: memory space -> bytes it needs; empty where no packing was found.
      bounds: memory space -> bytes below which no packing exists.
      status: OPTIMAL (all heights equal their bounds), FEASIBLE (a packing within every capacity
        given), INFEASIBLE or UNKNOWN.
      stopped_by: why the search ended.
      source: what found it: "best_fit", "greedy_size", ..., "repair", "search"; "ilp, highs" where
        an integer program lowered it last.
      nodes: search nodes visited.
      seconds: time taken. size: variables and rows of all integer programs that were solved.
    """

    offsets: NDArray[np.int64] | None
    heights: Mapping[int, int]
    bounds: Mapping[int, int]
    status: Status
    stopped_by: StopReason
    source: str
    nodes: int
    seconds: float
    size: tuple[int, int] = (0, 0)

    @property
    def height(self) -> int:
        """Bytes of all memory spaces together; 0 where no packing was found."""
        return sum(self.heights.values())

    @property
    def bound(self) -> int:
        """Bytes below which no packing of all memory spaces together exists."""
        return sum(self.bounds.values())

    @property
    def gap(self) -> float:
        """(height - bound) / bound; infinite where no packing was found."""
        if self.offsets is None:
            return float("inf")
        return (self.height - self.bound) / max(self.bound, 1)
