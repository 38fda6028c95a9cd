"""Places by the paper's integer program, from a packing that is not the lowest."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from olla_xla.cli.main import main
from olla_xla.errors import InputError, LimitError, SolverError
from olla_xla.place import PlacementProblem, place, placer, programs
from olla_xla.place.items import independent, items_of
from olla_xla.place.trace import read_trace
from olla_xla.problem.plan_parts import StopReason
from olla_xla.solvers.linear import SolverLimits, Status
from tests.place.test_place import brute_force, constrained


@pytest.fixture(scope="module", autouse=True)
def tall():
    """What the program begins with is placed by size alone."""
    real = placer._place_part

    def by_size(part, bound, target_height, capacity, method, budget):
        return real(part, bound, target_height, None, "greedy_size", budget)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placer, "_place_part", by_size)
        yield


def blocks(count):
    random = np.random.default_rng(4)
    lower = random.integers(0, 12, count)
    upper = lower + random.integers(1, 8, count)
    return PlacementProblem.of(lower, upper, random.integers(1, 30, count))


@given(constrained())
def test_agrees_with_brute_force(problem):
    """With pins, groups and alignment; and within capacities."""
    least = brute_force(problem)
    for backend in ("highs", "cpsat"):
        packing = place(problem, method="ilp", backend=backend)
        if packing.offsets is None:  # pins clash
            assert packing.status is Status.INFEASIBLE
            continue
        assert (packing.status, packing.height) == (Status.OPTIMAL, least)
        for capacity in (least, packing.bound - 1) if packing.bound else ():
            within = dataclasses.replace(problem, capacity={0: capacity})
            packing = place(within, method="ilp", backend=backend)
            assert (packing.status is Status.INFEASIBLE) == (capacity < least), packing


def test_lowers_a_packing_to_the_bound_and_a_gap_ends_it_before():
    problem = blocks(24)
    tall = place(problem, method="greedy_size")
    for backend in ("highs", "cpsat"):
        packing = place(problem, method="ilp", backend=backend)
        assert (packing.status, packing.stopped_by) == (Status.OPTIMAL, StopReason.PROOF)
        assert packing.height < tall.height and packing.source == f"ilp, {backend}"
    near = place(problem, method="ilp", gap=tall.height / packing.bound - 1)
    assert (near.status, near.stopped_by) == (Status.FEASIBLE, StopReason.PROOF)


def test_a_program_that_is_not_built_in_time_is_not_begun():
    problem = blocks(40)
    packing = place(problem, method="ilp", time_limit=1e-3)
    assert (packing.status, packing.stopped_by) == (Status.FEASIBLE, StopReason.SIZE_LIMIT)
    tall = place(problem, method="greedy_size").height
    assert packing.height == tall > packing.bound
    within = dataclasses.replace(problem, capacity={0: tall - 1})
    packing = place(within, method="ilp", time_limit=1e-3)
    assert (packing.status, packing.stopped_by) == (Status.UNKNOWN, StopReason.SIZE_LIMIT)
    assert packing.offsets is None


def test_a_height_of_no_use_is_no_bound():
    """Another part is as high: that no packing below it is looked for proves nothing."""
    items, _ = items_of(blocks(10), 0)
    part = max(independent(items), key=len)
    tall = np.cumsum(part.size) - part.size
    for least, proves in ((int((tall + part.need).max()) - 1, False), (0, True)):
        offsets, proven, size = programs.lowered(
            part, tall, least, SolverLimits(time_limit=9), "highs"
        )
        assert (proven == int((offsets + part.need).max())) == proves == (proven > 0)
        assert min(size) > 0


def test_bad_arguments_and_licences():
    problem = blocks(24)
    with pytest.raises(InputError, match="scip"):
        place(problem, method="ilp", backend="scip")
    with pytest.raises(LimitError, match="gap=2"):
        place(problem, method="ilp", gap=2)
    try:
        assert place(blocks(120), method="ilp", backend="gurobi", time_limit=5).height
    except SolverError as error:
        assert "licence" in str(error)


def test_the_command_places_by_the_program(tmp_path, capsys):
    trace, out = tmp_path / "trace.csv", str(tmp_path / "out.csv")
    problem = blocks(24)
    rows = zip(range(24), problem.lower, problem.upper, problem.size, strict=True)
    lines = ["id,lower,upper,size", *(",".join(map(str, row)) for row in rows)]
    trace.write_text("\n".join(lines))
    assert main(["olla_xla", "place", f"--trace={trace}", "--method=ilp", f"--out={out}"]) == 0
    assert "optimal, found by ilp, highs, stopped by proof" in capsys.readouterr().out
    assert read_trace(out).check(read_trace(out).fixed)
