"""Which scan residuals to keep within an allowance of time: an integer program, with its bound.

The variables are those of the minimum cut (`choice`): whether a scan residual is kept, and whether
what makes a value runs again. A price of memory finds only choices on the lower hull of bytes and
time. A row for the time also finds those between, and the solver's bound holds for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from olla_xla.remat.loops.choice import Choice, Gone, run_of
from olla_xla.solvers.bounds import whole_units
from olla_xla.solvers.linear import Limits, Model
from olla_xla.solvers.solve import solve

__all__ = ["Least", "least"]

_LIMITS = Limits(time_limit=20.0, node_limit=5000)
_UNIT = 1e-12
"""Seconds; times are whole numbers of it, so that rows are checked without rounding."""


@dataclasses.dataclass(frozen=True)
class Least:
    """What the integer program found.

    Attributes:
      gone: of each pair, what it drops and adds.
      bytes: of the scan residuals that stay, new ones too.
      bound: no choice from these recipes within the allowance keeps fewer bytes.
      seconds: that it adds, as the cost model has them operator by operator.
    """

    gone: tuple[Gone, ...]
    bytes: int
    bound: int
    seconds: float


def least(choices: Sequence[Choice], allowance: float, limits: Limits = _LIMITS) -> Least | None:
    """Keeps the fewest bytes of scan residuals.

    Args:
      choices: one for each pair of loops. allowance: seconds that may be added to the step, as the
        cost model has them operator by operator. limits: of the solver.

    Returns:
      None where no choice is within the allowance, or none is found.
    """
    model = Model("scan residuals")
    times: dict[int, int] = {}
    columns = [_add(model, choice, times) for choice in choices]
    gained = sum(_ticks(choice.free_seconds) for choice in choices)
    model.add_row(list(times), list(times.values()), upper=_ticks(allowance) + gained, tag="time")
    result = solve(model, limits)
    if result.x is None or result.value is None:
        return None
    gone = tuple(
        Gone(
            choice.without({n for n, column in kept.items() if result.x[column] < 0.5}),
            frozenset(n for n, column in anew.items() if result.x[column] > 0.5),
        )
        for choice, (kept, anew) in zip(choices, columns, strict=True)
    )
    ticks = sum(time for column, time in times.items() if result.x[column] > 0.5) - gained
    return Least(gone, round(result.value), whole_units(result.bound), ticks * _UNIT)


def _ticks(seconds: float) -> int:
    return round(seconds / _UNIT)


def _add(
    model: Model, choice: Choice, times: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Adds a pair's variables and rows; by number of a scan residual's value the column "it is
    kept", and by number of another one "it gets a scan residual".
    """
    table, prices = choice.table, choice.prices
    iterations = table.pair.writer.iterations
    kept: dict[int, int] = {}
    anew: dict[int, int] = {}
    runs: dict[object, int] = {}
    for number in choice.needed:
        recipe = choice.recipe(number)
        residual = next(iter(table.scan_residuals.get(number, ())), None)
        if residual is not None:
            kept[number] = model.add_variable(cost=residual.bytes, name=f"keep_{number}")
            times[kept[number]] = _ticks(iterations * prices.saved_seconds(residual))
        if recipe is not None and run_of(recipe) not in runs:
            column = model.add_variable(cost=prices.new_bytes(recipe), name=f"run_{number}")
            times[column] = _ticks(iterations * prices.seconds(recipe))
            runs[run_of(recipe)] = column
    for k, (seconds, numbers) in enumerate(prices.written_together):
        column = model.add_variable(cost=0, name=f"together_{k}")
        times[column] = _ticks(iterations * seconds)
        for number in numbers & kept.keys():
            model.add_row([column, kept[number]], [1, -1], lower=0, tag="together")
    taken: dict[int, int] = {}
    for number in choice.needed:
        recipe = choice.recipe(number)
        again = [] if recipe is None else [runs[run_of(recipe)]]
        if number in kept:
            made = [kept[number], *again]
            model.add_row(made, [1] * len(made), lower=1, tag="held")
        for need in choice.taken_with(number) if again else ():
            if need not in taken:
                taken[need] = model.add_variable(cost=0, name=f"taken_{need}")
                times[taken[need]] = _ticks(choice.taken_seconds(need))
            columns = [taken[need], kept[need], again[0]]
            model.add_row(columns, [1, -1, -1], lower=-1, tag="taken")
        for need in choice.made_with(number):
            other = choice.recipe(need)
            ways = [] if other is None else [runs[run_of(other)]]
            if choice.can_be_kept(need):
                if need not in anew:
                    size, seconds = choice.kept_anew(need)
                    anew[need] = model.add_variable(cost=size, name=f"new_{need}")
                    times[anew[need]] = _ticks(seconds)
                ways.append(anew[need])
            if not ways:
                model.fix(again[0], 0)
            else:
                model.add_row([*ways, again[0]], [1] * len(ways) + [-1], lower=0, tag="needed")
    return kept, anew
