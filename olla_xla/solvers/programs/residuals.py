"""Which scan residuals to keep within a limit of time or of bytes: integer programs, with bounds.

The variables are those of the minimum cut (`choice`): whether a scan residual is kept, and whether
what makes a value runs again. A price of memory finds only choices on the lower hull of bytes and
time. A row for one of the two also finds those between, and the solver's bound holds for all of
them.
"""

from collections.abc import Sequence

from olla_xla.remat.loops.choice import Choice, Gone, SolvedChoices, run_of
from olla_xla.solvers.linear import LinearModel, SolverLimits
from olla_xla.solvers.solve import solve, whole_units

LIMITS = SolverLimits(time_limit=20.0, node_limit=5000)
"""Of a solver, unless others are given."""

_UNIT = 1e-12  # seconds; times are whole numbers of it, so that rows are checked without rounding


def least(
    choices: Sequence[Choice], allowance: float, limits: SolverLimits | None = None
) -> SolvedChoices | None:
    """Solves for the fewest bytes of scan residuals (arrays that a forward loop stores for a
    backward loop) within an allowance of added time. None where no choice is within it, or none is
    found.

    Args:
      choices: one for each pair of loops. allowance: seconds that may be added to the step, as the
        cost model has them operator by operator. limits: of the solver; None: LIMITS.
    """
    gained = sum(_ticks(choice.free_seconds) for choice in choices)
    return _solved(choices, _Columns(), _ticks(allowance) + gained, limits or LIMITS)


def quickest(
    choices: Sequence[Choice], most: int, limits: SolverLimits | None = None
) -> SolvedChoices | None:
    """Solves for the least added time that keeps at most `most` bytes of scan residuals (arrays
    that a forward loop stores for a backward loop). None where no choice keeps so few, or none is
    found.

    Args:
      choices: one for each pair of a forward and a backward loop. most: bytes, new scan residuals
        too. limits: of the solver; None: LIMITS.
    """
    return _solved(choices, _Columns(is_quick=True), most, limits or LIMITS)


class _Columns:
    """A model whose columns (variables) have bytes and seconds: one is the objective, the other a
    limit. Seconds are minimised if `is_quick`, else bytes.
    """

    def __init__(self, *, is_quick: bool = False) -> None:
        self.model = LinearModel("scan residuals")
        self.is_quick = is_quick
        self.bytes: dict[int, int] = {}
        self.ticks: dict[int, int] = {}

    def add(self, size: int, seconds: float, name: str) -> int:
        """Adds a 0/1 variable that takes so many bytes and seconds if 1; returns its column."""
        ticks = _ticks(seconds)
        column = self.model.add_variable(cost=ticks if self.is_quick else size, name=name)
        self.bytes[column], self.ticks[column] = size, ticks
        return column

    def limit(self, most: int) -> None:
        """Adds the row that the bytes (or ticks of 1e-12 s) not minimised are at most `most`."""
        row, tag = (self.bytes, "bytes") if self.is_quick else (self.ticks, "time")
        self.model.add_row(list(row), list(row.values()), upper=most, tag=tag)


def _solved(
    choices: Sequence[Choice], columns: _Columns, most: int, limits: SolverLimits
) -> SolvedChoices | None:
    """Solves for the best choice of scan residuals for all pairs of loops with at most `most` bytes
    or ticks of time (1e-12 s), whichever is not minimised; None if no point is found.
    """
    added = [_add(columns, choice) for choice in choices]
    columns.limit(most)
    result = solve(columns.model, limits)
    if result.x is None or result.value is None:
        return None
    gone = tuple(
        Gone(
            choice.without({n for n, column in kept.items() if result.x[column] < 0.5}),
            frozenset(n for n, column in anew.items() if result.x[column] > 0.5),
        )
        for choice, (kept, anew) in zip(choices, added, strict=True)
    )
    taken = [column for column in columns.bytes if result.x[column] > 0.5]
    ticks = sum(columns.ticks[c] for c in taken)
    ticks -= sum(_ticks(choice.free_seconds) for choice in choices)
    size = sum(columns.bytes[c] for c in taken)
    bound = 0 if columns.is_quick else whole_units(result.bound)
    return SolvedChoices(gone, size, bound, ticks * _UNIT)


def _ticks(seconds: float) -> int:
    return round(seconds / _UNIT)


def _add(columns: _Columns, choice: Choice) -> tuple[dict[int, int], dict[int, int]]:
    """Adds a pair of loops' variables and rows to the model; returns two dicts from value numbers
    to columns: of scan residuals, "it is kept", and of others, "it becomes a scan residual".
    """
    model, table, prices = columns.model, choice.table, choice.prices
    iterations = table.pair.writer.iterations
    kept: dict[int, int] = {}
    anew: dict[int, int] = {}
    runs: dict[object, int] = {}
    for number in choice.needed:
        recipe = choice.recipe(number)
        residual = next(iter(table.scan_residuals.get(number, ())), None)
        if residual is not None:
            seconds = iterations * prices.saved_seconds(residual)
            kept[number] = columns.add(residual.bytes, seconds, f"keep_{number}")
        if recipe is not None and run_of(recipe) not in runs:
            seconds = iterations * prices.seconds(recipe)
            runs[run_of(recipe)] = columns.add(prices.new_bytes(recipe), seconds, f"run_{number}")
    for k, (seconds, numbers) in enumerate(prices.written_together):
        column = columns.add(0, iterations * seconds, f"together_{k}")
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
                taken[need] = columns.add(0, choice.taken_seconds(need), f"taken_{need}")
            row = [taken[need], kept[need], again[0]]
            model.add_row(row, [1, -1, -1], lower=-1, tag="taken")
        for need in choice.made_with(number):
            other = choice.recipe(need)
            ways = [] if other is None else [runs[run_of(other)]]
            if choice.can_be_kept(need):
                if need not in anew:
                    anew[need] = columns.add(*choice.kept_anew(need), f"new_{need}")
                ways.append(anew[need])
            if not ways:
                model.fix(again[0], 0)
            else:
                model.add_row([*ways, again[0]], [1] * len(ways) + [-1], lower=0, tag="needed")
    return kept, anew
