"""What `olla_xla plan` prints of plans, line by line."""

import dataclasses

import pytest

from olla_xla.cli.report.plans import check_line, clones_line, plan_table, verdict
from olla_xla.compile.assignment import AssignmentReport
from olla_xla.problem.plan_parts import LoopRecord, PlanStatus
from tests.support.plans import MB, made_plan

pytestmark = pytest.mark.quick


def rows(plan, **options):
    given = {
        "assigned": plan.assigned_bytes is not None, "memory_optimized_bytes": None,
        "all_seconds": 9.96, "title": "t",
    }  # fmt: skip
    table = plan_table(plan, **{**given, **options})
    assert table.title == "t"
    return {name: (size, note) for name, size, note in table.rows}


def test_a_plan_that_was_compiled():
    plan = made_plan(assigned_bytes=150 * MB, status=PlanStatus.FEASIBLE)
    found = rows(plan, memory_optimized_bytes=180 * MB)
    assert found["XLA's own order"] == ("200.0 MB", "assigned")
    assert found["XLA's memory-optimized order"] == ("180.0 MB", "assigned; -10.0 %")
    assert found["planned"] == ("150.0 MB", "assigned; -25.0 %")
    assert found["lifetime gap"][0] == "20.00 %" and found["assignment loss"][0] == "25.00 %"
    error = "-6.67 %", "error of the predicted total with the plan; -5.00 % with XLA's own order"
    assert found["prediction error"] == error
    assert found["time"] == ("3.0 s", "for planning alone; 10.0 s with compiling and checking")
    assert found["status"] == ("feasible", "not proven optimal; the search was stopped by: no gain")


def test_what_no_total_has_is_told_from_a_megabyte_on():
    found = rows(made_plan(), elsewhere={"host": MB, "shared": MB - 1}, constant_bytes=2 * MB)
    assert found["in host"][0] == "1.0 MB" and "in shared" not in found
    assert found["constants"] == ("2.0 MB", "in the executable; counted in no total")
    assert "constants" not in rows(made_plan(), constant_bytes=MB - 1)


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ({}, {}, "The planned order saves 60.0 MB (30.0 %). Only predicted"),
        ({"assigned_bytes": 150 * MB}, {}, "The planned order saves 50.0 MB (25.0 %). Compiled"),
        ({"assigned_bytes": 200 * MB - 512}, {}, "The planned order saves only 512 bytes"),
        ({"assigned_bytes": 200 * MB}, {"planned": False, "reason": "too slow"},
         "XLA's own order is kept: too slow. Compiled"),
        ({"assigned_bytes": 200 * MB, "lower_bound_bytes": 200 * MB}, {"planned": False},
         "XLA's own order is kept; the lower bound proves that no order needs less memory."),
        ({"assigned_bytes": 200 * MB, "lower_bound_bytes": 201 * MB}, {"planned": False},
         "XLA's own order is kept. Compiled"),
        ({"assigned_bytes": 150 * MB}, {"refused": True}, "XLA refuses to compile its own order"),
    ],
)  # fmt: skip
def test_the_verdict(fields, options, said):
    assert said in verdict(made_plan(**fields), **{"planned": True, "reason": "", **options})


def test_what_is_computed_again():
    assert clones_line(made_plan(step_seconds=1.0)) == "Nothing is computed twice."
    loop = LoopRecord("w", "r", (1, 2), 8, (("i", ()),))
    plan = made_plan(
        step_seconds=0.5, added_seconds=0.01, exposed_seconds=0.002, moved_bytes=200,
        added_moved_bytes=3, clones=(("c", "o", (), ()),) * 4, loops=(loop,), sunk=("s", "t"),
    )  # fmt: skip
    assert clones_line(plan) == (
        "2 copies of arrays in front of loops are left out, 2 scan residuals are recomputed (from "
        "1 smaller values, which are stored instead), loops store states every 8 iterations "
        "and recompute the other states, 4 instructions are run a second time, 2.00 ms of "
        "transfers no longer overlap compute. The predicted time changes by +2.0 % "
        "(+10.00 ms), the memory traffic by +1.5 %."
    )


def test_the_check_of_an_assignment():
    report = AssignmentReport(
        tensors=7, as_predicted=5, elsewhere_bytes=0, assigned_bytes=1, predicted_bytes=1,
        peak_bytes=1,
    )  # fmt: skip
    line = check_line(report)
    assert "7 tensors have the predicted size, 5 the predicted address" in line
    assert line.endswith("tensors overlap. 2 tensors (0.0 MB) do not have the predicted addresses.")
    alike = check_line(dataclasses.replace(report, as_predicted=7))
    assert alike.endswith("7 the predicted address; no two live tensors overlap.")
    more = dataclasses.replace(report, added=("a", "b"), unread=("f",))
    assert check_line(more).endswith(
        "XLA added 2 instructions after planning. Unread results were removed from 1 fusions."
    )
    none = dataclasses.replace(report, tensors=0, as_predicted=0)
    assert check_line(none).startswith("Checked: the executable runs XLA's own order")
