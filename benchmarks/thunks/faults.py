"""Faults that are drawn from several executables and kinds, and their table."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence

from olla_xla.cli.report.tables import Table

Fault = tuple[str, str, str, str]
"""The executable, the kind of fault, what was done, and what is said of it, or ""."""


def in_turn(sources: Iterable[Iterator[Fault]], count: int) -> list[Fault]:
    """`count` faults, one of each source in turn, for as long as it has some."""
    left, found = list(sources), list[Fault]()
    while left and len(found) < count:
        made = [(source, next(source, None)) for source in left[: count - len(found)]]
        found += [fault for _, fault in made if fault is not None]
        left = [*left[len(made) :], *(source for source, fault in made if fault is not None)]
    return found


def faults_table(found: Sequence[Fault]) -> Table:
    """A line for each kind of fault, and one for each that was missed."""
    made = collections.Counter(kind for _, kind, _, _ in found)
    caught = collections.Counter(kind for _, kind, _, said in found if said)
    lines = [(kind, str(n), str(caught[kind]), "") for kind, n in sorted(made.items())]
    lines += [(kind, "1", "0", f"{name}: {what}") for name, kind, what, said in found if not said]
    return Table(headings=("fault:", "made", "caught", "missed:"), rows=lines, title="faults")
