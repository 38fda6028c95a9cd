"""Which programs of places are solved, in which turn, and what comes of their answers."""

import dataclasses
import types

import numpy as np
import pytest
from hypothesis import given

from benchmarks.place_ilp import joint, placer, windows
from benchmarks.place_ilp import located as module
from benchmarks.place_ilp.located import Located, Programs, _Run
from olla_xla.check.graph import check_placement
from olla_xla.memory.arrays import GraphArrays
from olla_xla.place import PlacementProblem
from olla_xla.place.exact.model import MAX_PAIRS, model_of
from olla_xla.place.exact.restarts import Budget
from olla_xla.place.items import independent, items_of
from olla_xla.place.programs import Units
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.problem.plan_parts import StopReason
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status
from tests.support.graphs import tensor_graphs
from tests.support.outcomes import outcome

OPTIMAL, FEASIBLE = Status.OPTIMAL, Status.FEASIBLE


def part_of(lower, upper, size):
    (part,) = independent(items_of(PlacementProblem.of(lower, upper, size), 0)[0])
    return part


PART = part_of([0, 1, 2], [4, 3, 5], [4, 2, 2])  # least 8
STACK = np.array([0, 4, 6])


def test_a_result_in_bytes():
    run = _Run(SolverLimits(), Programs())

    def judged(result, at, *, target=8, run=run):
        given = None if at is None else np.array(at, float)
        found = run._judged(PART, STACK + [0, 2, 4], 6, target, result, given, 2, (5, 7))
        assert (found.variables, found.rows) == (5, 7)
        return found.offsets.tolist(), found.bound, found.status, found.by

    told = SolverResult(FEASIBLE, bound=4.0)
    assert judged(told, [0, 2, 3]) == ([0, 4, 6], 6, FEASIBLE, "program")
    assert judged(told, None) == ([0, 6, 10], 6, FEASIBLE, "")
    assert judged(told, [0, 9, 9])[0] == [0, 6, 10]  # none the higher
    # A solver that was told the height proves nothing up to it, and more beyond.
    assert judged(SolverResult(OPTIMAL, bound=4.5), [0, 2, 3])[1:3] == (8, OPTIMAL)
    assert judged(SolverResult(OPTIMAL, bound=9.0), None)[1:3] == (12, OPTIMAL)
    free = _Run(SolverLimits(), Programs(bound=False))
    assert judged(told, [0, 2, 3], run=free)[1:3] == (8, OPTIMAL)
    assert judged(SolverResult(FEASIBLE, bound=3.0), [0, 2, 3], run=free)[1:3] == (6, FEASIBLE)


def test_watches_are_told_bytes():
    told = []
    units = Units(PART, STACK, {})
    watch = module._in_bytes(SolverLimits(watch=lambda *row: told.append(row)), units, 100)
    watch(None, -np.inf)
    watch(4.0, 2.2)
    assert units.unit == 2 and told == [(None, 100), (108.0, 106)]
    assert module._in_bytes(SolverLimits(), units, 0) is None


class Recorded(_Run):
    """Parts, programs and windows are noted; each is answered by what is given."""

    def __init__(self, programs, **answers):
        super().__init__(SolverLimits(time_limit=60.0), programs)
        self.asked = []
        self.answers = answers

    def _answer(self, kind, part, offsets, bound, target):
        self.asked.append((kind, len(part), offsets.tolist(), bound, target))
        found = self.answers.get(kind, lambda *given: Located(offsets, bound, FEASIBLE, 1, 2))
        return found(part, offsets, bound)


class Parts(Recorded):
    def _solved(self, part, offsets, bound, target):
        return self._answer("part", part, offsets, bound, target)


class Turns(Recorded):
    def _windows(self, part, near, offsets, bound, target, portion):
        return self._answer(f"windows {portion:g}", part, offsets, bound, target)

    def _whole(self, part, near, offsets, bound, target):
        return self._answer("whole", part, offsets, bound, target)


def test_what_is_always_live_lies_below_and_the_rest_falls_apart():
    # 0 is live all the time; 1 and 2 are apart from 3, 4 and 5.
    part = part_of([0, 0, 1, 3, 3, 4], [6, 2, 3, 5, 6, 6], [3, 4, 5, 2, 7, 1])
    tall = np.cumsum(part.size) - part.size

    def stacked(some, offsets, bound):
        at = np.cumsum(some.size) - some.size
        return Located(at, bound, FEASIBLE, 10, 20, "said", "program")

    run = Parts(Programs(), part=stacked)
    found = run.lowered(part, tall, 13, 13)
    assert found.offsets.tolist() == [0, 3, 7, 3, 5, 12]
    # The other part is low enough as it is.
    assert run.asked == [("part", 3, [9, 11, 18], 10, 10)]
    assert (found.bound, found.status) == (13, OPTIMAL)
    assert (found.variables, found.rows, found.by) == (10, 20, "program")
    assert "meets the bound" in found.message
    assert run._base == 0
    whole = Parts(Programs(split=False))
    whole.lowered(part, tall, 12, 11)
    assert whole.asked == [("part", 6, tall.tolist(), 12, 12)]
    met = Parts(Programs()).lowered(PART, STACK, 8, 0)
    assert (met.status, met.variables) == (OPTIMAL, 0) and "meets the bound" in met.message
    one = Parts(Programs(bound=False))
    one.lowered(PART, STACK, 8, 0)
    assert len(one.asked) == 1


@pytest.mark.parametrize(
    ("lower", "upper", "parts"),
    [
        ([0, 0, 1, 3, 5], [7, 2, 4, 6, 7], [4]),  # one lies below the rest, which is one part
        ([0, 2, 4, 5], [3, 4, 6, 7], [2, 2]),  # none below, two parts
        ([0, 1, 2], [3, 4, 5], [3]),
    ],
)
def test_what_is_taken_apart(lower, upper, parts):
    count = len(lower)
    items, _ = items_of(PlacementProblem.of(lower, upper, [2] * count), 0)
    run = Parts(Programs(bound=False))
    run.lowered(items, np.arange(count) * 3, 4, 4)
    assert sorted(size for _, size, *_ in run.asked) == parts


@pytest.mark.parametrize("pin", [-1, 0, 8])
def test_nothing_is_put_below_where_something_is_pinned(pin):
    items, _ = items_of(PlacementProblem.of([0, 0, 1, 3, 5], [7, 2, 4, 6, 7], [2] * 5), 0)
    pinned = dataclasses.replace(items, fixed=np.array([-1, -1, -1, -1, pin]))
    below, rest = module._standing(pinned)
    assert (below.tolist(), len(rest)) == (([0], 4) if pin < 0 else ([], 5))


def test_several_that_are_always_live_are_stacked():
    # 0 and 2 are live all the time; 1 and 3 are apart from 4. Nothing is lowered.
    part = part_of([0, 0, 0, 1, 3], [6, 2, 6, 3, 6], [3, 4, 2, 5, 7])
    found = Parts(Programs()).lowered(part, np.array([2, 5, 0, 9, 20]), 14, 14)
    assert found.offsets.tolist() == [0, 5, 3, 9, 20]


def test_a_solver_gets_a_hundredth_of_a_second_at_least(monkeypatch):
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: 8.0))
    assert [module._seconds_to(until) for until in (7.0, 8.0, 8.5)] == [0.01, 0.01, 0.5]


def test_nothing_takes_no_height():
    nothing, _ = items_of(PlacementProblem.of([], [], []), 0)
    assert module._height(nothing, np.zeros(0, np.int64)) == 0 and module._height(PART, STACK) == 8


def test_what_is_always_live_is_at_the_bottom():
    """Two buffers, of 8 bytes and of 7: of argument and result, whichever is larger."""
    operators = tuple(Operator(f"op{v}", "fusion", 0, v < 2) for v in range(4))
    sizes = ((8, 5), (6, 7))
    tensors = tuple(
        Tensor(f"{name}{k}", sizes[new][k], k + 2 * new, () if new else (k + 2,), k,
               live_in=not new, live_out=bool(new))
        for new, name in enumerate(("old", "new")) for k in range(2)
    )  # fmt: skip
    graph = GraphArrays.of(TensorGraph("standing", operators, tensors))
    problem = joint._Program.problem(graph, range(4))
    assert problem.fixed.tolist() == [0, 8, 0, 8] and problem.size.tolist() == [8, 7, 8, 7]


def test_a_pin_at_the_bottom_is_one():
    items = dataclasses.replace(PART, fixed=np.array([0, -1, 6]))
    assert Units(items, STACK, {1: 4}).pins == {0: 0, 1: 4, 2: 6}


def test_rectangles_in_units():
    """Four alike in order, a pin, and bounds between two units: a peak that can be had is left."""
    alike = part_of([0, 0, 0, 0, 1], [2, 2, 2, 2, 5], [4, 4, 4, 4, 2])
    items = dataclasses.replace(alike, fixed=np.array([-1, -1, -1, -1, 8]))
    offsets = np.array([0, 4, 10, 14, 8])
    units = Units(items, offsets, {4: 8})
    assert units.unit == 2
    for bound, most in ((18, 21), (17, 17), (3, 18)):
        model = module._rectangles(items, model_of(items), units, bound, most, offsets)
        assert model.ordered == ((0, 1), (1, 2), (2, 3))
        assert (model.bound, model.most) == (min(-(-bound // 2), most // 2), most // 2)
        assert model.low == (0, 0, 0, 0, 4) and model.high == (*[most // 2 - 2] * 4, 4)
        assert model.step == (1,) * 5 and model.need == (2, 2, 2, 2, 1)
        shapes = zip(items.part_first, items.part_last + 1, (2, 2, 2, 2, 1), strict=True)
        rows = [(i, *shape) for i, shape in enumerate(shapes)]
        assert [dataclasses.astuple(r) for r in model.rectangles] == rows
        assert model.start == (0, 2, 5, 7, 4)


@pytest.mark.parametrize(
    ("few", "pairs", "free", "expected"),
    [
        (2, 5, True, ["windows 0.6", "whole"]),  # more items than are one program
        (3, 5, True, ["whole"]),
        (2, 5, False, ["whole"]),
        (3, 10**6, True, ["windows 1"]),  # too large to build as a whole
        (3, 10**6, False, []),
        (3, 2 * MAX_PAIRS + 2, True, []),
        (3, 2 * MAX_PAIRS, True, ["windows 1"]),
        (3, 2 * 400_000, True, ["whole"]),
        (3, 2 * 400_000 + 2, True, ["windows 1"]),
    ],
)
def test_programs_of_a_few_then_of_all(monkeypatch, few, pairs, free, expected):
    monkeypatch.setattr(module, "_FEW", few)
    monkeypatch.setattr(module, "overlapping_pairs", lambda part: pairs)
    run = Turns(Programs(windows=free))
    found = run._solved(PART, STACK, 6, 7)
    assert [kind for kind, *_ in run.asked] == expected
    assert found.variables == len(expected) and found.rows == 2 * len(expected)
    assert ("too large" in found.message) == (not expected)


@pytest.mark.parametrize(
    ("count", "pairs", "expected"),
    [
        (150, 4_000_000, ["whole"]),
        (151, 4_000_000, ["windows 0.6", "whole"]),
        (150, 4_000_001, ["windows 1"]),
    ],
)
def test_how_many_items_and_pairs_are_one_program(monkeypatch, count, pairs, expected):
    monkeypatch.setattr(module, "overlapping_pairs", lambda part: 2 * pairs)
    many = part_of(range(count), range(2, count + 2), [2] * count)
    run = Turns(Programs("cpsat"))
    run._solved(many, np.zeros(count, np.int64) + 5, 4, 4)
    assert [kind for kind, *_ in run.asked] == expected


def test_no_windows_around_a_pin(monkeypatch):
    monkeypatch.setattr(module, "_FEW", 2)
    run = Turns(Programs())
    run._solved(dataclasses.replace(PART, fixed=np.array([0, -1, -1])), STACK, 6, 7)
    assert [kind for kind, *_ in run.asked] == ["whole"]


def test_no_pyramid_of_pins_or_alignments():
    assert module.pyramid(PART)
    for changed in ({"fixed": np.array([0, -1, -1])}, {"align": np.array([1, 1, 4])}):
        assert module.pyramid(dataclasses.replace(PART, **changed)) == {}


def test_what_windows_end(monkeypatch):
    monkeypatch.setattr(module, "_FEW", 2)
    for found, more in (
        (Located(STACK, 8, OPTIMAL, by="windows"), False),
        (Located(STACK, 6, FEASIBLE, 3, 4, by="windows"), True),
    ):
        run = Turns(Programs(), **{"windows 0.6": lambda *given, found=found: found})
        last = run._solved(PART, STACK, 6, 7)
        assert len(run.asked) == 1 + more and last.by == "windows"
        assert (last.variables, last.rows) == (found.variables + more, found.rows + 2 * more)
    low = Turns(Programs(), **{"windows 0.6": lambda *given: Located(STACK, 6, FEASIBLE)})
    low._solved(PART, STACK, 6, 8)  # low enough
    assert len(low.asked) == 1
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: 8.0))
    for deadline, asked in ((8.0, 1), (8.5, 2)):
        late = Turns(Programs())
        late._deadline = deadline
        late._solved(PART, STACK, 6, 7)
        assert len(late.asked) == asked


def test_a_pyramid_first(monkeypatch):
    """The clock stands still, so that a loop that is compiled on the way takes no time."""
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: 0.0))
    asked = []
    part = part_of([0, 1, 2], [9, 8, 3], [4, 3, 2])
    tall = np.array([0, 5, 20])

    class Programmed(_Run):
        def _program(self, part, near, best, begin, bound, target, seconds, pins):
            asked.append((part.fixed.tolist(), best.tolist(), round(seconds), dict(pins)))
            return Located(begin, 3, OPTIMAL, 2, 3, "said", "program" if pins else "")

    run = Programmed(SolverLimits(time_limit=100.0), Programs(bound=False))
    near = model_of(part)
    pins = module.pyramid(part)
    found = run._whole(part, near, tall, 1, 9)
    fixed = [pins.get(i, -1) for i in range(3)]
    assert asked == [(fixed, tall.tolist(), 30, pins)]
    assert (found.bound, found.status, found.by) == (1, FEASIBLE, "program")  # under it only
    asked.clear()
    found = run._whole(part, near, tall, 1, 8)
    assert [row[2] for row in asked] == [30, 100] and asked[1][0] == [-1] * 3
    for seconds, count in ((0.5, 2), (0.0, 1)):
        asked.clear()
        late = Programmed(SolverLimits(time_limit=9.0), Programs(bound=False))
        late._deadline = seconds
        late._whole(part, near, tall, 1, 8)
        assert len(asked) == count
    asked.clear()
    run._whole(part, near, tall, 1, 8)
    assert (found.variables, found.rows, found.by) == (4, 6, "program")
    for programs in (Programs(pyramid=False), Programs("cpsat")):
        asked.clear()
        Programmed(SolverLimits(time_limit=100.0), programs)._whole(part, near, tall, 1, 8)
        assert len(asked) == 1 and not asked[0][3]


def test_windows_grow_where_they_are_proven_and_shrink_where_not(monkeypatch):
    """From 3 items on; a lower packing begins again, a proof grows, a limit shrinks."""
    random = np.random.default_rng(1)
    lower = random.integers(0, 20, 40)
    items, _ = items_of(
        PlacementProblem.of(lower, lower + random.integers(4, 9, 40), random.integers(1, 9, 40)), 0
    )
    tall = np.cumsum(items.size) - items.size
    clock = types.SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(windows, "time", clock)
    asked, sizes = [], []
    real = windows._Run.window

    def window(self, size):
        sizes.append(size)
        return real(self, size)

    monkeypatch.setattr(windows._Run, "window", window)
    answers = iter([True] * 6 + [False] * 3 + [True] * 30)

    def solve(window, seconds):
        asked.append(seconds)
        clock.now += 1.0
        return None, next(answers)

    found = windows.narrowed(
        items, model_of(items), Units(items, tall, {}), tall, 30, solve,
        deadline=20.5, seconds=2.0, seed=5,
    )  # fmt: skip
    assert (found == tall).all() and len(asked) == 21
    assert asked[:19] == [2.0] * 19 and asked[-1] == pytest.approx(0.5)
    assert outcome(sizes) == SIZES
    assert sizes[0] == windows._LEAST and max(sizes) > 2 * windows._LEAST


SIZES = "3aab1c91665a"


def test_what_becomes_of_a_part(monkeypatch):
    """By height, bound and capacity; the budget's time is the limit."""
    best = np.array([0, 4, 8])  # 10 bytes high

    def came(offsets, bound, capacity=None, target=8, variables=1):
        found = Located(np.array(offsets), bound, FEASIBLE, variables, by="windows")
        monkeypatch.setattr(placer, "located", lambda *given, **more: found)
        packed = placer._by_programs(
            PART, 6, target, capacity, best, "greedy", Budget(5.0), Programs()
        )
        return packed.bound, packed.status, packed.stopped_by, packed.source

    low, high = [0, 4, 6], [0, 4, 8]
    assert came(low, 7) == (7, FEASIBLE, StopReason.PROOF, "ilp, windows")
    assert came(low, 7, capacity=9) == (7, FEASIBLE, StopReason.CAPACITY, "ilp, windows")
    assert came(high, 7) == (7, FEASIBLE, StopReason.TIME_LIMIT, "greedy")
    assert came(high, 7, variables=0) == (7, FEASIBLE, StopReason.SIZE_LIMIT, "greedy")
    assert came(high, 10) == (10, FEASIBLE, StopReason.PROOF, "greedy")
    assert came(high, 10, capacity=9) == (10, Status.INFEASIBLE, StopReason.PROOF, "ilp")
    assert came(high, 9, capacity=9) == (6, Status.UNKNOWN, StopReason.TIME_LIMIT, "ilp")
    assert came(high, 9, capacity=10, target=10)[1:3] == (FEASIBLE, StopReason.CAPACITY)


def test_the_packing_with_which_programs_begin():
    random = np.random.default_rng(4)
    lower = random.integers(0, 60, 120)
    problem = PlacementProblem.of(
        lower, lower + random.integers(1, 25, 120), random.integers(1, 40, 120)
    )
    (part,) = independent(items_of(problem, 0)[0])
    tall = np.cumsum(part.size) - part.size
    told = []
    for nodes in (100, 3000, 20_000):
        budget = Budget(1e9, nodes)
        offsets, source = placer._started(part, 1, tall, "tall", budget)
        told += [offsets, source, budget.spent]
    assert outcome(told) == STARTED
    assert placer._started(part, int(part.size.sum()), tall, "tall", Budget(1e9, 9))[1] == "tall"


STARTED = "a5f3cdbdd156"


def test_names_of_programs():
    assert Programs("highs").name == "big-m" and Programs("cpsat").name == "no-overlap"
    assert Programs("cpsat", form="big-m").name == "big-m"
    assert dataclasses.replace(Programs(), watch=print) == Programs()


@given(tensor_graphs(max_operators=7))
def test_the_joint_program_s_places_by_name(graph):
    """Condensed or not, each tensor with bytes gets its place; the referee judges them."""
    counted = joint._counted(graph)
    whole = GraphArrays.of(counted)
    prepared, packing = joint._placed(counted, range(whole.n), 1.0)
    program = joint._Program(prepared.arrays, 0, packing.height)
    x, base = program.start(prepared.start, packing), program.ilp.scale.base
    offsets = joint._by_name(counted, whole, prepared.arrays, program.offsets(x) + base, base)
    assert set(offsets) == {t.name for t in counted.tensors if t.bytes}
    height = max((offsets[t.name] + t.bytes for t in counted.tensors if t.bytes), default=0)
    assert height <= base + packing.height
    order = prepared.back(prepared.start).tolist()
    check_placement(counted, order, joint._places(counted, offsets), height)
