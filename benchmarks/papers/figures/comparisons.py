"""Comparisons over the rows of a sweep: means over the models, and rows with a worse result."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.driver import Column, table_of
from benchmarks.papers.figures.published import TOTAL_REDUCTION
from olla_xla.cli.report.tables import Table, percent

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
      label: a short name. above: the values are how far above, and less is better.
    """

    what: str
    label: str
    target: str
    batch_size: str
    names: tuple[str, ...]
    values: tuple[float, ...]
    aim: float | None
    above: bool = False

    @property
    def mean(self) -> float:
        """Over all rows alike."""
        return statistics.fmean(self.values)

    @property
    def worst(self) -> tuple[str, float]:
        """The row that is least below (or most above), and by how much."""
        sign = -1 if self.above else 1
        k = min(range(len(self.values)), key=lambda k: sign * self.values[k])
        return self.names[k], self.values[k]

    @property
    def met(self) -> bool | None:
        """Whether the mean reaches the aim; None where there is none."""
        if self.aim is None:
            return None
        return self.mean <= self.aim + WORSE if self.above else self.mean >= self.aim

    @property
    def worse(self) -> tuple[str, ...]:
        """Rows where the plan is larger."""
        sign = -1 if self.above else 1
        pairs = zip(self.names, self.values, strict=True)
        return tuple(name for name, value in pairs if sign * value < -WORSE)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """One way of comparing: rows of which mode and target, by batch size or not; the aims."""

    what: str
    label: str
    mode: str
    target: str
    value: Callable[[Row], float]
    needs: str
    aims: Mapping[str, float] = dataclasses.field(default_factory=dict)
    above: bool = False


def _below(after: str, *before: str) -> Callable[[Row], float]:
    """How far one column is below the least of others."""
    return lambda row: 1 - float(row[after]) / min(float(row[b]) for b in before)


_PAPER = {str(mark.batch_size): mark.value / 100 for mark in TOTAL_REDUCTION}
"""What the OLLA paper saves of an eager framework's memory; only like is held against it."""

_KINDS = (
    _Kind(
        "unfused against unfused: arena of our order below what an eager framework reserves "
        "(predicted)", "eager", "eager", "", _below("placed_bytes", "eager_reserved_bytes"),
        "placed_bytes", _PAPER,
    ),
    _Kind(
        "unfused against unfused: arena of our order below what is live eagerly (predicted)",
        "eager, live",
        "eager", "", _below("placed_bytes", "eager_live_bytes"), "placed_bytes",
    ),
    _Kind(
        "fragmentation: arena of our order above its own live memory (predicted)",
        "fragmentation", "eager", "",
        lambda row: float(row["placed_bytes"]) / float(row["peak_bytes"]) - 1, "placed_bytes",
        {"all": 0.0}, above=True,
    ),
    *(
        _Kind(
            "fused against unfused: planned (assigned) below what an eager framework reserves "
            "(predicted)", f"{target}: eager", "order", target,
            _below("planned_bytes", "eager_reserved_bytes"), "eager_reserved_bytes",
        )
        for target in ("cpu", "h100")
    ),
    _Kind(
        "fused against fused: planned below XLA's default (assigned)", "cpu: XLA", "order", "cpu",
        _below("planned_bytes", "xla_bytes"), "planned_bytes", {"all": 0.30, **_PAPER},
    ),
    _Kind(
        "fused against fused: planned below XLA's memory-optimized scheduler (assigned)",
        "cpu: XLA mem.", "order", "cpu", _below("planned_bytes", "memory_optimized_bytes"),
        "memory_optimized_bytes", {"all": 0.30},
    ),
    _Kind(
        "fused against fused: planned below the better of both (assigned)", "cpu: better", "order",
        "cpu",
        _below("planned_bytes", "xla_bytes", "memory_optimized_bytes"), "memory_optimized_bytes",
    ),
    _Kind(
        "fused against fused: planned below XLA's default (assigned)", "h100: XLA", "order",
        "h100", _below("planned_bytes", "xla_bytes"), "planned_bytes", _PAPER,
    ),
    _Kind(
        "fused against fused: planned below XLA's default, 5 % time may be added (assigned)",
        "cpu: +5 %", "overhead", "cpu", _below("planned_bytes", "xla_bytes"), "planned_bytes",
    ),
    _Kind(
        "fused against fused: planned below XLA's default, 5 % time may be added (assigned)",
        "h100: +5 %", "overhead", "h100", _below("planned_bytes", "xla_bytes"), "planned_bytes",
        {"32": 0.25},
    ),
)  # fmt: skip


def comparisons(rows: Sequence[Row]) -> list[Comparison]:
    """Every comparison that the rows allow: for each batch size, and for all together."""
    found = []
    rows = _with_eager(rows)
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
                    kind.label,
                    kind.target or "any",
                    size,
                    tuple(f"{row['model']}, batch {row['batch_size']}" for row in mine),
                    tuple(map(kind.value, mine)),
                    kind.aims.get(size),
                    kind.above,
                )
            )
    return found


def _with_eager(rows: Sequence[Row]) -> list[Row]:
    """The rows, those of mode order with what an eager framework reserves for the same step."""

    def step(row: Row) -> tuple[str, ...]:
        return row["model"], row["batch_size"], row["optimizer"]

    reserved = {step(row): row["eager_reserved_bytes"] for row in rows if row["mode"] == "eager"}
    return [
        {**row, "eager_reserved_bytes": reserved.get(step(row), "")}
        if row["mode"] == "order"
        else row
        for row in rows
    ]


def comparison_table(found: Sequence[Comparison]) -> Table:
    """One line for each comparison; the column `larger` counts rows where the plan takes more."""
    met = {None: "-", True: "met", False: "missed"}
    columns = (
        Column("what:", "what"),
        Column("target:", "target"),
        Column("batch:", "batch_size"),
        Column("rows", lambda c: len(c.values)),
        Column("mean %", lambda c: percent(c.mean, 1)),
        Column("aim %", lambda c: percent(c.aim, 1)),
        Column("met:", lambda c: met[c.met]),
        Column("worst %", lambda c: percent(c.worst[1], 2)),
        Column("at:", lambda c: c.worst[0]),
        Column("larger", lambda c: len(c.worse)),
    )
    return table_of(found, columns, "Means over the rows of a sweep; totals include arguments.")


def model_table(found: Sequence[Comparison]) -> Table:
    """A line for each model and batch size, a column for each comparison."""
    labels = list(dict.fromkeys(c.label for c in found))
    shares = {
        (c.label, name): value for c in found for name, value in zip(c.names, c.values, strict=True)
    }
    names = list(dict.fromkeys(name for c in found for name in c.names))
    lines = [(n, *(percent(shares.get((label, n)), 1) for label in labels)) for n in names]
    return Table(("model:", *labels), lines, "The same by model, %.")
