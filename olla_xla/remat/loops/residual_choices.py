"""Choices of scan residuals to recompute, from those that cost nothing to as many as can go.

Scan residuals that duplicate another one, and those that nothing reads, cost nothing. Of the rest,
each price of a byte has its cheapest choice (`choice`), an allowance of time the one that keeps the
fewest bytes, and a budget the one that takes the least time, by integer programs
(`remat.extensions`). A choice's time and total are those of the changed module.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from hlo.backend import platform
from hlo.module import HloError, Module
from hlo.rewrite.edit import Edit
from hlo.rewrite.loop_edit import LoopEdit
from hlo.rewrite.loops import change_loops
from olla_xla.errors import PlanMismatchError
from olla_xla.memory.kernels import Pattern, inherited, leaves
from olla_xla.memory.module_state import facts_of
from olla_xla.problem.plan_parts import LoopRecord
from olla_xla.remat import extensions
from olla_xla.remat.cost.path import path_seconds
from olla_xla.remat.cost.roofline import CostModel, module_work
from olla_xla.remat.loops.again import New
from olla_xla.remat.loops.checkpoints import Rerun, Thin, can_be_kept, least_every, residuals
from olla_xla.remat.loops.choice import Choice, Gone, SolvedChoices
from olla_xla.remat.loops.counted_loops import instructions_run
from olla_xla.remat.loops.pairs import ScanPair, pairs
from olla_xla.remat.loops.recipe import edits, recipe
from olla_xla.remat.loops.recipe_table import RecipeTable
from olla_xla.remat.loops.scan_residuals import ScanResidual
from olla_xla.remat.overlap import hide_transfers
from olla_xla.remat.purity import CONTROL

_FREE_PRICES = (0.0, 1e-15, 1e-13, 3e-13)
"""Prices of which the one of least predicted time is chosen where none may be added."""

_PRICES = (*_FREE_PRICES, 1e-12, 3e-12, 1e-11, 3e-11, 1e-10, 1e-9, 1e-8, 1.0)
"""Seconds that a byte is worth; an H100 moves one in 3e-13, a core of a CPU in 1e-10."""

_logger = logging.getLogger("olla_xla")

_MOST_RUN = 1 << 22
"""Instructions of all iterations: the check repeats fewer steps than these for each module."""

_LESS = 0.999
"""Part of an estimated time that is allowed next where that time was too much in the module."""

_ASKED = 6
"""Times that the integer program is solved, each time corrected by the changed module's time, or by
its total."""


@dataclasses.dataclass(frozen=True, eq=False)
class ResidualChoice:
    """A choice of scan residuals to recompute, and the module with that choice in it.

    Attributes:
      records: as `Plan.loops`. module: with the choice. target: "cpu", "cuda" or "tpu".
      seconds: predicted time that it adds, of operators one after the other; negative where it
        saves some. path_seconds: the same on a GPU's streams, where the saved work may have been
        hidden behind other work; on a CPU as `seconds`. moved: bytes, likewise.
      least_stack_bytes: no choice of the same time, added up operator by operator, keeps scan
        residuals of fewer bytes; 0 if not known.
      kernels: kernel name -> which of its arrays must share memory; copies as their originals.
    """

    records: tuple[LoopRecord, ...]
    module: Module
    target: str
    seconds: float = 0.0
    path_seconds: float = 0.0
    moved: int = 0
    least_stack_bytes: int = 0
    kernels: Mapping[str, Pattern] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> int:
        """Predicted total bytes of the changed module in XLA's order."""
        return facts_of(self.module, self.target).total


class ResidualChoices:
    """All choices of scan residuals to recompute in a module, by number. They come in the order of
    a rising price of memory, then `plain`, then those with checkpointed loops.

    Args:
      module: a scheduled one. target: "cpu", "cuda" or "tpu". cost: prices operators.
      kernels: kernel name -> which of its arrays must share memory; None: as in XLA's order.
      collectives: whether collectives may run again.
      beside: whether asynchronous operations are priced as overlapping, not one after the other.

    Attributes:
      module, target: as given.
      free: where no time may be added, one of the first so many is chosen, that of least time.
      plain: number of the choice that keeps least without new residuals of values in between, which
        leaves other orders and more time for other recomputation; None if nothing can go.
    """

    def __init__(
        self,
        module: Module,
        target: str,
        cost: CostModel,
        kernels: Mapping[str, Pattern] | None = None,
        *,
        collectives: bool = False,
        beside: bool = False,
    ) -> None:
        self.module = module
        self._kernels = kernels
        self.target = target
        self._cost = cost
        self._known: dict[tuple[LoopRecord, ...], ResidualChoice] = {}
        self._failed: dict[tuple[LoopRecord, ...], HloError | PlanMismatchError] = {}
        run = instructions_run(module)
        apart = _apart(pairs(module, target)) if run <= _MOST_RUN else []
        if run > _MOST_RUN:
            _logger.info(
                "no loops are changed: they run %s instructions; at most %s can be checked",
                f"{run:,}", f"{_MOST_RUN:,}",
            )  # fmt: skip
        self._beside, self._collectives = beside, collectives
        self._choices = [
            Choice(RecipeTable(pair, collectives=collectives), cost, beside=beside)
            for pair in apart
        ]
        self._safe = [
            Choice(
                RecipeTable(c.table.pair, collectives=collectives, gone=None), cost, beside=beside
            )
            if c.table.late or c.table.restores
            else c
            for c in self._choices
        ]
        """The same without what waits for scan residuals that may go (`RecipeTable.late`), and with
        nothing restored."""
        records = [self._named(self._gone(price)) for price in _PRICES]
        plain = self._named(self._gone(_PRICES[-1], new=False))
        self._priced = [r for r in dict.fromkeys([*records, plain]) if r]
        self.plain = self._priced.index(plain) if plain else None
        self.free = len({r for r in records[: len(_FREE_PRICES)] if r})

    @functools.cached_property
    def beside(self) -> ResidualChoices:
        """The choices of what to recompute in this module, if asynchronous operations overlap."""
        return ResidualChoices(
            self.module, self.target, self._cost, self._kernels,
            collectives=self._collectives, beside=True,
        )  # fmt: skip

    @functools.cached_property
    def _own_seconds(self) -> tuple[float, float]:
        return self._seconds(self.module)

    @functools.cached_property
    def _moved(self) -> int:
        return module_work(self.module, self.target).bytes

    @property
    def total(self) -> int:
        """Predicted total of the unchanged module in XLA's order, in bytes."""
        return facts_of(self.module, self.target).total

    @property
    def kernels(self) -> Mapping[str, Pattern]:
        """Kernel name -> which of its arrays must share memory: as given, or as in XLA's order."""
        if self._kernels is not None:
            return self._kernels
        return facts_of(self.module, self.target).all_kernels

    @functools.cached_property
    def _thin(self) -> list[tuple[LoopRecord, ...]]:
        """Choices with checkpointed loops (`checkpoints`), the one of least time first. Pairs that
        cannot be checkpointed keep the fewest bytes.
        """
        rest = {r[:2]: r for r in self._named(self._gone(_PRICES[-1]))}
        checkpointed = []
        for price in (0.0, _PRICES[-1]):
            thin = [_thinned(self.module, choice, price) for choice in self._safe]
            named = rest | {record[:2]: record for record in thin if record is not None}
            checkpointed += [tuple(named.values())] if any(thin) else []
        return list(dict.fromkeys(checkpointed))

    @property
    def thin(self) -> int:
        """The number of the first choice with checkpointed loops; all further ones have them."""
        return len(self._priced)

    def __len__(self) -> int:
        return len(self._priced) + len(self._thin)

    def choice(self, k: int) -> ResidualChoice:
        """Returns choice number `k`, written into a new module, with its predicted cost. Raises
        HloError or PlanMismatchError if it cannot be written.
        """
        count = len(self._priced)
        return self._written(self._priced[k] if k < count else self._thin[k - count])

    def gone(self, k: int) -> int:
        """Returns the device's bytes of residuals that choice `k` drops, or keeps only parts of."""
        count = len(self._priced)
        records = self._priced[k] if k < count else self._thin[k - count]
        return sum(residual.bytes for residual in self._dropped(records))

    def leaves_host(self, choice: ResidualChoice) -> bool:
        """Whether a choice drops scan residuals that lie in host memory."""
        return any(residual.whole.is_host for residual in self._dropped(choice.records))

    def _dropped(self, records: Iterable[LoopRecord]) -> Iterator[ScanResidual]:
        """Yields the scan residuals that `records` drop, or of which they keep only parts."""
        gone = {record[:2]: record.dropped for record in records}
        for pair in (choice.table.pair for choice in self._choices):
            dropped = gone.get((pair.writer.i.name, pair.reader.i.name), ())
            yield from (r for r in pair.scan_residuals if r.written in dropped)

    def within(self, allowance: float) -> ResidualChoice | None:
        """Finds the choice of fewest bytes of scan residuals that adds at most `allowance` seconds.

        The integer program adds up times of operators. It is solved again with an allowance
        corrected by how much the changed module's time differs. A choice that takes too long is not
        found again: the next allowance is below its estimated time. None where nothing was found.
        Raises HloError or PlanMismatchError if a choice cannot be written, as does `meeting`.
        """
        best, fewest = None, 0
        asked, low, high = allowance, -math.inf, math.inf
        seen: set[tuple[LoopRecord, ...]] = set()
        for _ in range(_ASKED):
            least = self._solved(extensions.fewest_bytes, asked)
            records = () if least is None else self._named(least.gone)
            if least is None or records in seen:
                low, following = max(low, asked), math.nan
            elif not records:
                break
            else:
                choice = self._written(records)
                following = asked + allowance - choice.path_seconds
                if choice.path_seconds > allowance:
                    high = min(high, least.seconds)
                else:
                    seen.add(records)
                    low = max(low, asked)
                    if best is None or least.bytes < fewest:
                        best = dataclasses.replace(choice, least_stack_bytes=least.bound)
                        fewest = least.bytes
            highest = high - (1 - _LESS) * abs(high)
            if math.isinf(high) and not following > asked:
                break
            asked = min(following, highest) if following > low else (low + highest) / 2
            if not low < asked:
                break
        return best

    def meeting(self, budget: int) -> ResidualChoice | None:
        """Finds the choice that adds least time of those whose total is at most `budget` bytes.

        The integer program adds up the bytes of scan residuals. It is solved again with a limit
        corrected by how far the changed module's total is from the budget. None if none was found.
        """
        residuals = (s for choice in self._choices for s in choice.table.pair.scan_residuals)
        asked = sum(s.bytes for s in residuals) - (self.total - budget)
        best, enough, much = None, -1, math.inf
        for _ in range(_ASKED):
            solved = self._solved(extensions.least_seconds, asked)
            records = () if solved is None else self._named(solved.gone)
            if solved is None or not records:
                break
            choice = self._written(records)
            following = asked + budget - choice.total
            if choice.total > budget:
                much = min(much, solved.bytes)
                following = min(following, solved.bytes - 1)
            else:
                enough = max(enough, asked)
                if best is None or choice.path_seconds < best.path_seconds:
                    best = choice
            if not enough < following < much and math.isfinite(much):
                following = (enough + int(much)) // 2
            if following <= enough:
                break
            asked = following
        return best

    def _gone(self, price: float, *, new: bool = True) -> list[Gone]:
        """What each pair of loops drops and, with `new`, adds if a byte costs `price` seconds."""
        wanted = [choice.gone(price, new=new) for choice in self._choices]
        return [
            gone if choice.is_possible(gone) else safe.gone(price, new=new)
            for choice, safe, gone in zip(self._choices, self._safe, wanted, strict=True)
        ]

    def _solved[Limit: (int, float)](
        self, solve: Callable[[Sequence[Choice], Limit], SolvedChoices | None], limit: Limit
    ) -> SolvedChoices | None:
        """Runs an integer program within a limit; where its choice cannot be written, once more
        without recipes that wait for scan residuals or restore arrays. None if it finds nothing.
        """
        solved = solve(self._choices, limit)
        if solved is None:
            return None
        both = zip(self._choices, solved.gone, strict=True)
        return solved if all(c.is_possible(gone) for c, gone in both) else solve(self._safe, limit)

    def _written(self, records: tuple[LoopRecord, ...]) -> ResidualChoice:
        if records in self._failed:
            raise self._failed[records]
        if records not in self._known:
            try:
                self._known[records] = self._made(records)
            except (HloError, PlanMismatchError) as error:
                self._failed[records] = error
                raise
        return self._known[records]

    def _made(self, records: tuple[LoopRecord, ...]) -> ResidualChoice:
        changes = edits(self.module, records, self.target)
        module = Edit(self.module).rewrite(change_loops, changes).module()
        if platform(self.target).runs_beside:
            module = hide_transfers(module, _bodies(module, records), self._cost)
        made = list(_made_of(self.module, changes))
        copies = _alike(self.module, module, made)
        now, before = self._seconds(module), self._own_seconds
        return ResidualChoice(
            records,
            module,
            self.target,
            now[0] - before[0],
            now[1] - before[1],
            module_work(module, self.target).bytes - self._moved,
            kernels=inherited(self.kernels, copies),
        )

    def _seconds(self, module: Module) -> tuple[float, float]:
        """Predicts the seconds of a run: (one operator after the other, on a GPU's streams). Both
        are the second with `beside`, and the first where nothing runs beside.
        """
        serial = self._cost.step_seconds(module)
        if not platform(self.target).runs_beside:
            return serial, serial
        path = path_seconds(module, self._cost)
        return path if self._beside else serial, path

    def _named(self, gone: Sequence[Gone]) -> tuple[LoopRecord, ...]:
        return tuple(
            _record(choice, one)
            for choice, one in zip(self._choices, gone, strict=True)
            if one.dropped
        )


def _record(choice: Choice, gone: Gone, every: int = 0) -> LoopRecord:
    table = choice.table
    kept = sorted((i.name, index) for i, index in map(table.given.__getitem__, gone.kept))
    names = table.pair.writer.i.name, table.pair.reader.i.name
    return LoopRecord(*names, tuple(sorted(gone.dropped)), every, tuple(kept))


def _bodies(module: Module, records: Sequence[LoopRecord]) -> set[str]:
    """Names of the body computations of the loops that records change."""
    loops = {name for record in records for name in record[:2]}
    return {
        i.called[0].name
        for c in module.control_computations
        for i in c.instructions
        if i.name in loops and i.opcode == "while"
    }


def _made_of(module: Module, changes: Sequence[LoopEdit]) -> Iterator[tuple[str, str]]:
    """Yields (copy's name, original's) of instructions that changes make, in their branches too."""
    made = [one for change in changes for one in change.made]
    yield from ((one.name, one.original) for one in made)
    originals = {one.original for one in made}
    branched = {
        i.name: i
        for c in module.control_computations
        for i in c.instructions
        if i.opcode in CONTROL and i.name in originals
    }
    for one in made:
        waiting = list(branched[one.original].called) if one.original in branched else []
        while waiting:
            for i in waiting.pop().instructions:
                yield one.inside(i.name), i.name
                waiting += i.called_control


def _alike(
    before: Module, after: Module, made: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yields the (copy, original) names in `made` whose operands and results have equal types and
    sizes, in the modules after and before.
    """

    def arrays(module: Module, names: set[str]) -> dict[str, list[tuple[int, int]]]:
        return {
            i.name: [
                (shape.element_type, shape.bytes)
                for shape in (source.shape.at(index) for source, index in leaves(i))
            ]
            for c in module.control_computations
            for i in c.instructions
            if i.name in names
        }

    old = arrays(before, {original for _, original in made})
    new = arrays(after, {name for name, _ in made})
    for name, original in made:
        if name in new and new[name] == old.get(original):
            yield name, original


def _thinned(view: Module, choice: Choice, price: float) -> LoopRecord | None:
    """Makes the record of a pair of checkpointed loops (only states of every k-th iteration are
    kept); None if they cannot be checkpointed. `view`: the module. `price`: seconds for a byte.
    """
    pair = choice.table.pair
    if not can_be_kept(pair):
        return None
    every = max(math.isqrt(pair.writer.iterations), 2)
    made = residuals(choice.table, Rerun(pair, New(view), every))
    gone = choice.gone(price, Thin(pair.writer.iterations, every, frozenset(made)))
    record = _record(choice, gone, every)
    try:
        checkpoints = recipe(view, pair, record).checkpoints
    except PlanMismatchError as error:
        _logger.info("loop %s stores the states of all iterations: %s", pair.writer.i.name, error)
        return None
    if checkpoints is None:
        return None
    return record._replace(every=least_every(pair, checkpoints))


def _apart(found: list[ScanPair]) -> list[ScanPair]:
    """Selects pairs of loops so that none is in two, those with most bytes of residuals first."""
    used: set[str] = set()
    kept = []
    for pair in sorted(found, key=lambda p: -sum(s.bytes for s in p.scan_residuals)):
        names = {pair.writer.i.name, pair.reader.i.name}
        if not names & used:
            used |= names
            kept.append(pair)
    return kept
