"""What a sweep says in one line each: means over its models, and the rows that fall behind."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Comparison", "comparisons"]

Row = Mapping[str, str]

WORSE = 0.0005
"""Share by which a plan must be larger to count as worse."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Rows compared in one way. Shares of one.

    Attributes:
      what: what is below what. target, batch_size: of the rows; "all" where they do not matter.
      values: by row, how far below.
      names: of the rows. aim: what the mean should reach, or None where the worst counts.
    """

    what: str
    target: str
    batch_size: str
    names: tuple[str, ...]
    values: tuple[float, ...]
    aim: float | None

    @property
    def mean(self) -> float:
        """Over all rows alike."""
        return statistics.fmean(self.values)

    @property
    def worst(self) -> tuple[str, float]:
        """The row that is least below, and by how much."""
        k = min(range(len(self.values)), key=lambda k: self.values[k])
        return self.names[k], self.values[k]

    @property
    def worse(self) -> tuple[str, ...]:
        """Rows where the plan is larger."""
        pairs = zip(self.names, self.values, strict=True)
        return tuple(name for name, value in pairs if value < -WORSE)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """One way of comparing: rows of which mode and target, by batch size or not; the aims."""

    what: str
    mode: str
    target: str
    value: Callable[[Row], float]
    needs: str
    aims: Mapping[str, float] = dataclasses.field(default_factory=dict)


def _below(after: str, *before: str) -> Callable[[Row], float]:
    """How far one column is below the least of others."""
    return lambda row: 1 - float(row[after]) / min(float(row[b]) for b in before)


_KINDS = (
    _Kind(
        "arena of our order below an eager framework's reserved memory (predicted)", "eager", "",
        _below("placed_bytes", "eager_reserved_bytes"), "placed_bytes", {"1": 0.304, "32": 0.361},
    ),
    _Kind(
        "arena of our order below an eager framework's live memory (predicted)", "eager", "",
        _below("placed_bytes", "eager_live_bytes"), "placed_bytes",
    ),
    _Kind(
        "fragmentation: our arena above its live memory, negative", "eager", "",
        lambda row: 1 - float(row["placed_bytes"]) / float(row["peak_bytes"]), "placed_bytes",
    ),
    _Kind(
        "planned below XLA's default (assigned)", "order", "cpu",
        _below("planned_bytes", "xla_bytes"), "planned_bytes", {"all": 0.30},
    ),
    _Kind(
        "planned below XLA's memory-optimized scheduler (assigned)", "order", "cpu",
        _below("planned_bytes", "memory_optimized_bytes"), "memory_optimized_bytes", {"all": 0.30},
    ),
    _Kind(
        "planned below the better of both (assigned)", "order", "cpu",
        _below("planned_bytes", "xla_bytes", "memory_optimized_bytes"), "memory_optimized_bytes",
    ),
    _Kind(
        "planned below XLA's default (assigned)", "order", "h100",
        _below("planned_bytes", "xla_bytes"), "planned_bytes",
    ),
    _Kind(
        "planned below XLA's default, 5 % time may be added (assigned)", "overhead", "cpu",
        _below("planned_bytes", "xla_bytes"), "planned_bytes",
    ),
    _Kind(
        "planned below XLA's default, 5 % time may be added (assigned)", "overhead", "h100",
        _below("planned_bytes", "xla_bytes"), "planned_bytes", {"32": 0.25},
    ),
)  # fmt: skip


def comparisons(rows: Sequence[Row]) -> list[Comparison]:
    """Every comparison that the rows allow: for each batch size, and for all together."""
    found = []
    sizes = sorted({row["batch_size"] for row in rows}, key=int)
    for kind in _KINDS:
        for size in (*sizes, "all"):
            mine = [
                row for row in rows
                if row["mode"] == kind.mode and row[kind.needs]
                and kind.target in ("", row["target"]) and size in ("all", row["batch_size"])
            ]  # fmt: skip
            if not mine or (size == "all" and len(sizes) == 1 and not kind.aims.get("all")):
                continue
            found.append(
                Comparison(
                    kind.what,
                    kind.target or "any",
                    size,
                    tuple(f"{row['model']}, batch {row['batch_size']}" for row in mine),
                    tuple(map(kind.value, mine)),
                    kind.aims.get(size),
                )
            )
    return found
