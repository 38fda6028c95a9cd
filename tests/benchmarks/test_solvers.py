"""The benchmarks of the ILP and of scale, on the smallest cases."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import place, scale, schedule
from benchmarks.__main__ import main
from benchmarks.commands.ilp import programs_table as solvers_table
from benchmarks.commands.ilp_alone import ilp_alone_table
from benchmarks.commands.place import PROGRAMS
from benchmarks.driver import table_of
from benchmarks.made_graphs import brute_force, random_graph, train_step
from benchmarks.papers import ilp, ilp_steps
from benchmarks.papers.eager import ilp_alone
from benchmarks.place import PlannedStep
from olla_xla.errors import InputError, OllaError
from olla_xla.place import PlacementProblem
from olla_xla.planner import graphs
from olla_xla.problem.options import PlanOptions
from olla_xla.solvers.linear import SolverLimits, Status
from olla_xla.solvers.programs.forms import ExactOrder
from tests.support.graphs import all_orders, oracle_peak
from tests.support.graphs import train_step as small_step


def test_synthetic_steps_grow_by_layers_and_donate_their_state():
    one, two = (graphs(train_step(layers), "cpu")[-1] for layers in (1, 2))
    assert len(two.operators) - len(one.operators) == pytest.approx(186, abs=20)
    replaced = {t.buffer for t in two.tensors if t.live_out and not t.live_in and t.bytes > 100}
    assert len(replaced) >= 2 * 6 * 3
    with pytest.raises(InputError, match="layers=0"):
        train_step(0)


def test_random_graphs_are_what_the_other_oracle_says():
    for seed in range(30):
        graph = random_graph(seed, most=6)
        assert brute_force(graph) == min(oracle_peak(graph, o) for o in all_orders(graph))


def test_agreement_counts_graphs():
    rows = ilp.agreement(5, ["cpsat"], print)
    assert [r.form for r in rows] == ["running", "lifetimes", "plain", "intervals"]
    assert all(r.agreed == r.graphs == 5 for r in rows)
    assert ilp.all_agree(rows)
    with pytest.raises(OllaError):
        ilp.all_agree([])


def test_switches_name_what_is_left_out_and_only_spans_shrink_the_model():
    rows = list(ilp.switches(small_step(2), SolverLimits(time_limit=20), ["cpsat"]))
    lifetimes = {r.without: r for r in rows if r.form == "lifetimes"}
    assert list(lifetimes) == ["", "(1)", "(10)", "(11)", "(12)", "(1) (10) (11) (12)"]
    assert len({r.peak_bytes for r in lifetimes.values()}) == 1
    assert lifetimes["(10)"].variables > lifetimes[""].variables
    assert lifetimes["(1)"].rows < lifetimes[""].rows
    assert {r.status for r in rows} == {"optimal"}


def test_steps_by_every_variant():
    """All that count the same find the same; what was told the bound proves it."""
    step = PlannedStep("small", b"", "cpu", small_step(2))
    found = list(ilp_steps.orders(step, ["cpsat"], 20.0))
    assert [r.variant for r in found][:2] == ["ours", "not condensed"]
    ours = [r for r in found if r.variant not in ("plain", "control edges")]
    assert {(r.value_bytes, r.bound_bytes, r.status) for r in ours} == {
        (ours[0].least_bytes, ours[0].least_bytes, "optimal")
    }
    assert all(r.first_seconds <= r.near_seconds <= r.seconds for r in ours)
    rows = {r.variant: r for r in found}
    assert rows["no spans"].variables > rows["ours"].variables
    assert rows["control edges"].variables <= rows["ours"].variables
    found = list(ilp_steps.places(step, ["cpsat"], 2.0))
    assert {r.value_bytes for r in found} == {found[0].least_bytes}
    rows = {r.variant: r for r in found}
    assert rows["plain"].variables > rows["no bound"].variables
    assert [r.key for r in found] == ilp_steps.keys(["cpsat"], ["places"])
    done = {r.key for r in found[:-1]}
    assert [r.key for r in ilp_steps.places(step, ["cpsat"], 2.0, done)] == [found[-1].key]
    # A line for each program, a column for each solver.
    other = [dataclasses.replace(r, backend="highs", status="a licence is missing") for r in found]
    table = solvers_table([*found, *other])
    assert table.headings[-2:] == ("cpsat", "highs")
    assert len(table.rows) == len(found)
    assert all(row[-1] == "too large for its free licence" for row in table.rows)
    text = json.dumps({"steps": [dataclasses.asdict(r) for r in found]})
    assert ilp_steps.rows_from_json(text) == found
    with pytest.raises(InputError, match="not the JSON"):
        ilp_steps.rows_from_json("{}")


def test_a_program_that_is_too_large_is_not_built(monkeypatch):
    monkeypatch.setattr(ilp_steps, "_MOST", 10)
    step = PlannedStep("small", b"", "cpu", small_step(3))
    assert all("not built" in r.status for r in ilp_steps.orders(step, ["cpsat"], 5.0))


def test_plans_placed_by_programs():
    problem = PlacementProblem.of([0, 0, 2, 2, 1], [2, 4, 4, 3, 3], [8, 4, 8, 4, 2])
    rows = list(place.measure_programs("tiny", problem, ["highs", "cpsat"], time_limit=10))
    assert [(r.backend, r.form, r.start) for r in rows] == [
        ("highs", "big-m", True), ("highs", "big-m", False), ("cpsat", "big-m", True),
        ("cpsat", "big-m", False), ("cpsat", "no-overlap", True), ("cpsat", "no-overlap", False),
    ]  # fmt: skip
    assert {(r.status, r.height) for r in rows} == {("optimal", rows[0].search_height)}
    summary = place.as_json([], [], [], rows)["summary"]
    assert summary == {"proven_by_cpsat": 1, "proven_by_highs": 1, "cases": 1}
    assert "no-overlap" in table_of(rows, PROGRAMS).markdown()
    assert {r.by for r in rows} == {"greedy_size"}
    text = json.dumps(place.as_json([], [], [], rows))
    assert place.programs_from_json(text) == rows
    with pytest.raises(InputError, match="not the JSON"):
        place.programs_from_json("[]")


def test_what_is_stored_is_printed(tmp_path, capsys):
    problem = PlacementProblem.of([0, 0, 2, 2, 1], [2, 4, 4, 3, 3], [8, 4, 8, 4, 2])
    rows = list(place.measure_programs("tiny", problem, ["cpsat"], time_limit=10))
    file = tmp_path / "places.json"
    file.write_text(json.dumps(place.as_json([], [], [], rows)))
    assert main(["benchmarks", "place", f"--stored={file}", "--format=markdown"]) == 0
    assert "| tiny |" in capsys.readouterr().out
    assert main(["benchmarks", "ilp", f"--stored={file}"]) == 2
    assert main(["benchmarks", "ilp", f"--stored={tmp_path}/none"]) == 2


def test_the_plans_that_are_placed():
    assert len(set(place.PLANS)) == 32


def test_scale_measures_in_a_process_of_its_own():
    row = scale.measure("synthetic/1", PlanOptions(time_limit=20, step_limit=2000))
    assert scale.within_limits(row)
    assert row.bound_bytes <= row.peak_bytes <= row.xla_peak_bytes
    assert np.isfinite(row.gap)


@pytest.mark.parametrize("case", ["synthetic", "synthetic/0", "gpt/3", "lstm/x"])
def test_unknown_cases(case):
    with pytest.raises(InputError, match="must read"):
        scale.measure(case, PlanOptions())


def test_a_solver_alone_is_looked_at_after_each_limit(tmp_path, capsys):
    heard = [(0.5, 90, 0), (2.0, 70, 40), (3.0, 60, 60)]
    known = [
        ilp_alone._known_at(limit, heard, ended=ended, proven=True)
        for limit, ended in ((0.1, False), (1.0, False), (2.5, False), (9.0, True))
    ]
    assert [(k.bytes, k.bound_bytes, k.proven) for k in known] == [
        (None, 0, False), (90, 0, False), (70, 40, False), (60, 60, True),
    ]  # fmt: skip
    out = tmp_path / "alone.json"
    flags = ["--steps=mlp/1/sgd/cpu", "--limits=0.01,120", "--forms=intervals", f"--out={out}"]
    assert main(["benchmarks", "ilp_alone", *flags]) == 0
    printed = capsys.readouterr().out
    (row,) = ilp_alone.rows_from_json(out.read_text())
    assert row.status == "optimal" and not row.known[0].proven and row.known[1].proven
    assert row.known[1].bytes == row.known[1].bound_bytes <= row.least_bytes <= row.program_bytes
    assert main(["benchmarks", "ilp_alone", f"--stored={out}"]) == 0
    assert capsys.readouterr().out in printed
    assert main(["benchmarks", "ilp_alone", "--limits=0,1"]) == 2
    assert main(["benchmarks", "ilp_alone", "--limits=a"]) == 2
    assert main(["benchmarks", "ilp_alone", "--forms=plain"]) == 2
    with pytest.raises(InputError, match="ilp_alone --out"):
        ilp_alone.rows_from_json("[1]")


def test_a_program_too_large_is_not_built(monkeypatch):
    monkeypatch.setattr(ilp_alone, "_MOST", 10)
    case = schedule.Case("mlp", 1, "sgd", "cpu")
    (row,) = ilp_alone.measure(case, {"running": ["cpsat"]}, [1.0])
    assert row.status.startswith("not built") and row.known == ()
    assert ilp_alone_table([row]).rows[0][-1] == row.status


def _found(**changes):
    given = {
        "order": np.arange(3), "peak_bytes": 10, "bound_bytes": 8, "status": Status.OPTIMAL,
        "seconds": 0.5, "backend": "cpsat", "message": "", "failures": (),
        "variables": 3, "rows": 5, "nonzeros": 7,
    }  # fmt: skip
    return ExactOrder(**{**given, **changes})


def test_several_graphs_are_summed_up():
    row = ilp._solve("g", "running", "cpsat", "(10)", [_found(), _found(peak_bytes=5, seconds=1.0)])
    assert row == ilp.Solve(
        graph="g", form="running", backend="cpsat", without="(10)", variables=6, rows=10,
        nonzeros=14, seconds=1.5, status="optimal", peak_bytes=15, bound_bytes=16,
    )  # fmt: skip
    limited = _found(status=Status.FEASIBLE)
    failed = _found(status=Status.ERROR, failures=("highs: broken", "cpsat: too"))
    assert ilp._solve("g", "f", "b", "", [_found(), limited, failed]).status == "feasible"
    assert ilp._solve("g", "f", "b", "", [_found(), failed]).status == "highs: broken"


def test_the_rows_of_a_step():
    every = ilp_steps.keys(["highs", "cpsat"], ["orders", "places"])
    orders = [key for key in every if key[0] == "order"]
    assert every[: len(orders)] == orders and len(set(every)) == len(every)
    named = ["ours", "not condensed", "no spans", "control edges", "no start", "no bound", "plain"]
    assert [v for _, v, b in orders if b == "highs"] == named
    assert [v for _, v, b in orders if b == "cpsat"] == [*named, "intervals"]
    places = [v for _, v, b in every if (_, b) == ("places", "cpsat")]
    assert places[:4] == ["plain", "plain, no-overlap", "ours", "ours, no-overlap"]
    assert len(places) == 2 * len([v for _, v, b in every if (_, b) == ("places", "highs")])
    assert ilp_steps.keys(["highs"], []) == []
    assert len(ilp_steps.STEPS) == 16 and ilp_steps.STEPS[:2] == ("mlp/4/adam/cpu", "mlp/4/sgd/cpu")
