"""The paper's location program, preplacement and joint program against brute force."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.made_graphs import random_graph
from benchmarks.papers.ilp_forms.plain import plain_graph
from benchmarks.place_ilp import Programs, joint, place_by_programs, windows
from benchmarks.place_ilp import located as located_module
from benchmarks.place_ilp.joint import joint_program
from benchmarks.place_ilp.located import located
from benchmarks.place_ilp.pyramid import pyramid
from benchmarks.place_ilp.windows import _ranges
from olla_xla import schedule
from olla_xla.errors import InputError, SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import intervals, peak_bytes
from olla_xla.place import PlacementProblem, place
from olla_xla.place.exact.model import model_of
from olla_xla.place.items import independent, items_of
from olla_xla.place.programs import Units
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status, violation
from olla_xla.solvers.programs.prepared import Scale, prepare
from tests.place.test_place import brute_force, constrained, plain
from tests.support.graphs import all_orders, tensor_graphs, train_step

FREE = (Programs("highs"), Programs("cpsat"), Programs("cpsat", form="big-m"))


@given(plain(most=6))
def test_programs_agree_with_brute_force(problem):
    for programs in FREE:
        packing = place_by_programs(problem, programs=programs)
        assert packing.status is Status.OPTIMAL
        assert packing.height == packing.bound == brute_force(problem)


@given(constrained())
def test_groups_pins_and_alignment_too(problem):
    least = brute_force(problem)
    for programs in FREE:
        packing = place_by_programs(problem, programs=programs)
        assert packing.status is place(problem, method="search").status
        if packing.offsets is not None:
            assert packing.height == least


@settings(deadline=None, max_examples=10)
@given(plain(most=6))
def test_switches_keep_the_optimum(problem):
    """From a tall stack and without a bound, so that the solver has all to do."""
    items, _ = items_of(problem, 0)
    for part in independent(items):
        tall = np.cumsum(part.size) - part.size
        least = int((place_alone(problem, part) + part.need).max())
        for backend, switch in itertools.product(
            ("highs", "cpsat"), ("pruned", "pyramid", "start", "split", "bound")
        ):
            programs = Programs(backend, **{"bound": False, switch: False})
            found = located(
                part,
                tall,
                bound=0,
                target_height=0,
                limits=SolverLimits(time_limit=20),
                programs=programs,
            )
            assert found.status is Status.OPTIMAL
            assert found.bound == int((found.offsets + part.need).max()) == least, switch


intervals_ = st.lists(
    st.tuples(st.integers(-5, 20), st.integers(1, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=5
)


@given(intervals_, st.integers(0, 20), st.sampled_from([(1, 1), (2, 1), (4, 2)]))
def test_gaps_are_the_addresses_that_nothing_forbids(taken, highest, scale):
    step, unit = scale
    low, top = (np.array([pair[k] for pair in taken], np.int64) for k in (0, 1))
    ranges = _ranges(low, top, highest, step, unit)
    found = {x * unit for a, b in ranges for x in range(a, b + 1) if x * unit % step == 0}
    free = {x for x in range(highest + 1) if not any(a < x < b for a, b in taken)}
    assert found == {x for x in free if x % step == 0}
    assert list(ranges) == sorted(ranges)


def test_windows_lower_a_packing_and_break_none(monkeypatch):
    """Of many items, from a tall start: lower by programs of a few, and by both forms."""
    random = np.random.default_rng(1)
    lower = random.integers(0, 30, 60)
    upper = lower + random.integers(1, 8, 60)
    problem = PlacementProblem.of(lower, upper, random.integers(1, 9, 60))
    items, item = items_of(problem, 0)
    tall = np.cumsum(items.size) - items.size
    bound = place(problem, method="search").bound
    monkeypatch.setattr(located_module, "_FEW", 10)
    monkeypatch.setattr(located_module._Run, "_whole", None)  # windows alone
    monkeypatch.setattr(located_module, "_WINDOWS", 1.0)
    for programs in FREE:
        found = located(
            items,
            tall,
            bound=bound,
            target_height=bound,
            limits=SolverLimits(time_limit=20),
            programs=dataclasses.replace(programs, split=False),
        )
        offsets = np.zeros(len(problem), np.int64)
        offsets[item >= 0] = found.offsets[item[item >= 0]]
        assert problem.check(offsets) == {0: bound}
        assert (found.status, found.by) == (Status.OPTIMAL, "windows")
        assert found.variables > 0


def test_a_window_takes_what_lives_no_longer():
    """In one way of choosing: of those that an item meets, mostly those within its own life."""
    within = [(50, 60)] * 12
    longer = [(50, 90 + k) for k in range(12)]
    earlier = [(k, 60) for k in range(12)]
    between = [(k, k + 1) for k in (*range(20, 40), *range(65, 85))]  # sections that lie there
    lower, upper = np.array([(50, 60), *within, *longer, *earlier, *between]).T
    items, item = items_of(PlacementProblem.of(lower, upper, np.arange(1, len(lower) + 1)), 0)
    offsets = np.cumsum(items.size) - items.size
    units = Units(items, offsets, {})
    inside = {int(i) for i in item[1 : 1 + len(within)]}
    run = windows._Run(items, model_of(items), units, offsets, 1, seed=0)
    chosen = [run._within(int(item[0]), 8) for _ in range(50)]
    share = np.mean([int(i) in inside for of in chosen for i in of])
    assert share > 0.8  # a third by chance


def place_alone(problem, part):
    """Offsets of a part by the exact search."""
    chosen = np.flatnonzero(problem.size > 0)[part.ids]
    alone = PlacementProblem.of(problem.lower[chosen], problem.upper[chosen], problem.size[chosen])
    return place(alone, method="search").offsets


def test_pyramid_nests_activations():
    """Forward activations live ever shorter, each inside the one before."""
    lower, upper = [0, 1, 2, 3, 4], [9, 8, 7, 6, 5]
    items, _ = items_of(PlacementProblem.of(lower, upper, [10, 20, 30, 40, 50]), 0)
    assert pyramid(items) == {0: 0, 1: 10, 2: 30, 3: 60, 4: 100}
    # Of equal lives the largest comes first, and the others of the same time lie on it.
    items, _ = items_of(PlacementProblem.of([0, 0, 0], [4, 4, 4], [10, 30, 20]), 0)
    assert pyramid(items) == {1: 0, 2: 30, 0: 50}


def test_a_capacity_is_met_or_refuted():
    # Blocks of 2, 3 and 3 bytes whose lifetimes leave a hole that only one order fills.
    problem = PlacementProblem.of([0, 1, 0, 2], [2, 3, 1, 3], [2, 2, 3, 3])
    least = place_by_programs(problem).height
    for capacity, status in ((least, Status.OPTIMAL), (least - 1, Status.INFEASIBLE)):
        limited = dataclasses.replace(problem, capacity={0: capacity})
        assert place_by_programs(limited).status is status


def test_programs_misuse():
    with pytest.raises(InputError, match="highs, cpsat, gurobi"):
        Programs("scip")
    with pytest.raises(InputError, match="does not go with"):
        Programs("highs", form="no-overlap")


def test_a_solver_without_licence_is_named(monkeypatch):
    random = np.random.default_rng(0)
    lower = random.integers(0, 40, 120)
    problem = PlacementProblem.of(
        lower, lower + random.integers(1, 40, 120), random.integers(1, 99, 120)
    )
    programs = Programs("gurobi", pyramid=False)
    try:
        packing = place_by_programs(problem, programs=programs, time_limit=2)
    except SolverError as error:
        assert "licence" in str(error)
    else:  # a full licence
        assert packing.offsets is not None


@settings(deadline=None, max_examples=12)
@given(tensor_graphs(max_operators=5))
def test_splitting_loses_nothing(graph):
    """The joint optimum is the best placement over all orders: splitting loses nothing."""
    graph = plain_graph(graph)
    found = joint_program(graph)
    assert found.optimal and found.bound == found.height
    sizes = [t.bytes for t in graph.tensors]
    heights, peaks = [], []
    for order in all_orders(graph):
        lives = intervals(graph, order)
        problem = PlacementProblem.of(lives[:, 0], lives[:, 1], sizes)
        heights.append(place(problem, method="search").height)
        peaks.append(peak_bytes(graph, order))
    assert found.height == min(heights)
    assert found.height >= found.peak_bytes >= min(peaks)
    for order in list(all_orders(graph))[-1:]:
        assert joint_program(graph, start=order, backend="cpsat").height == found.height


@given(tensor_graphs(max_operators=6))
def test_a_joint_program_begins_at_the_order_it_is_given(graph):
    """What is placed under that order takes at its peak what is live, and no more."""
    g = prepare(joint._counted(plain_graph(graph)), reduce=False).arrays
    for order in itertools.islice(all_orders(graph), 3):
        problem = joint._Program.problem(g, order)
        steps = range(int(problem.upper.max(initial=0)))
        live = [problem.size[(problem.lower <= t) & (t < problem.upper)].sum() for t in steps]
        assert max(live, default=0) == peak_bytes(g, order)


def test_a_joint_program_begins_at_the_least_arena_that_is_known():
    """Orders of one peak may differ in their arenas, since nothing is in place by choice."""
    for seed in range(30):
        graph = random_graph(seed)
        counted = joint._counted(graph)
        arrays = GraphArrays.of(counted)
        found = joint_program(graph, backend="cpsat")
        for order in schedule.candidates(arrays).values():
            prepared = prepare(counted, start=order)
            problem = joint._Program.problem(prepared.arrays, prepared.start)
            base = Scale.of(prepared.arrays).base  # below all that is placed
            assert found.start <= base + place(problem).height


def test_the_rows_of_the_joint_program_hold_at_packings_alone():
    """A point of a packing breaks no row; one block higher, or lower, breaks (8), or (7)."""
    graph = train_step(3)
    g = prepare(joint._counted(graph)).arrays
    order = np.arange(g.n)
    packing = place(joint._Program.problem(g, order))
    program = joint._Program(g, 0, packing.height)
    start = program.start(order, packing)
    assert violation(program.model, start) is None
    offsets = program.offsets(start)
    top = int(np.argmax(offsets + g.bytes))
    assert offsets[top] + g.bytes[top] == packing.height
    column = program._address[program._number[top]]
    # The bounds of the columns are out of the way.
    program.model.bound(column, 0, 10 * program._most)
    higher, lower = start.copy(), start.copy()
    higher[column] += 1
    lower[column] = 0
    for x, row in ((higher, "(8)"), (lower, "(7")):
        assert row in (violation(program.model, x) or "")


def test_a_solver_that_claims_too_low_an_arena_is_found_out(monkeypatch):
    """The height is that of the places; the claim is held to it."""

    def lying(model, limits, backends):
        x = np.array(model.start)
        x[next(k for k in range(model.variables) if model.variable_name(k) == "peak")] -= 1
        return SolverResult(Status.OPTIMAL, value=0.0, bound=0.0, x=x, backend="lying")

    monkeypatch.setattr(joint, "solve", lying)
    with pytest.raises(SolverError, match="but its places need"):
        joint_program(train_step(2))


def test_what_is_always_live_lies_at_the_bottom():
    """Weights that their own update reads; one that is read elsewhere last leaves a gap."""
    operators = tuple(Operator(name, "op") for name in ("w", "v", "step", "last", "new"))
    tensors = (
        Tensor("w", 8, 0, (2,), 0, live_in=True),
        Tensor("v", 4, 1, (3,), 1, live_in=True),
        Tensor("w2", 8, 2, (), 0, live_out=True),
        Tensor("x", 2, 3, (4,), 3),
        Tensor("v2", 4, 4, (), 1, live_out=True),
    )
    graph = TensorGraph("step", operators, tensors, alias_edges=((3, 4),))
    g = GraphArrays.of(graph)
    assert joint._always_live(g) == [0]
    found = joint_program(graph, backend="cpsat")
    assert found.offsets["w"] == found.offsets["w2"] == 0
    assert found.offsets["v"] == found.offsets["v2"] and found.optimal


def test_a_joint_program_that_is_too_large_is_refused(monkeypatch):
    graph = train_step(2)
    pairs = len(joint._Program._pairs(prepare(joint._counted(graph)).arrays))
    monkeypatch.setattr(joint, "MOST_PAIRS", pairs)
    assert joint_program(graph, start=range(len(graph.operators)), backend="cpsat").optimal
    monkeypatch.setattr(joint, "MOST_PAIRS", pairs - 1)
    with pytest.raises(InputError, match="find the order first"):
        joint_program(graph, start=range(len(graph.operators)))


def test_the_command_places_a_trace(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("id,lower,upper,size\na,0,4,8\nb,1,2,4\nc,3,5,6\n")
    for extra in ([], ["--backend=cpsat"], ["--backend=cpsat", "--form=big-m"]):
        assert main(["benchmarks", "place_ilp", f"--trace={path}", *extra]) == 0
        out = capsys.readouterr().out
        assert "3 blocks are packed into 14 bytes" in out and "optimal" in out
    assert main(["benchmarks", "place_ilp", f"--trace={path}", "--form=no-overlap"]) == 2
    assert "does not go with" in capsys.readouterr().err


def test_the_command_places_a_step(capsys, tmp_path):
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    compiled = jax.jit(lambda x, w: (jnp.tanh(x @ w) @ w).sum()).lower(shape, shape).compile()
    path = tmp_path / "step.txt"
    path.write_text(compiled.as_text())
    flags = [f"--hlo={path}", "--backend=cpsat", "--time_limit=5"]
    assert main(["benchmarks", "place_ilp", *flags]) == 0
    out = capsys.readouterr().out
    assert "places, search" in out and "places, cpsat" in out and "joint, cpsat" in out
    assert "integer programs: lifetime peaks" in out
