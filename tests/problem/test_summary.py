"""A plan in words: which figures are shown, of which kind, and in which unit."""

import dataclasses

import pytest

from olla_xla.problem import summary
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import LoopRecord, PlanStatus
from tests.support.plans import MB
from tests.support.plans import made_plan as plan

pytestmark = pytest.mark.quick


def rows(made):
    """First column -> the rest of the line, its blanks made one."""
    first, *lines = summary.table(made).splitlines()
    assert first == "jit_step, cpu"
    found = {}
    for line in lines:
        name, rest = line.split("  ", 1)
        found[name] = " ".join(rest.split())
    return found


def test_in_a_line():
    assert summary.in_a_line(plan()) == "140.0 MB instead of 200.0, bound 100.0, 3.0 s"
    assert summary.in_a_line(plan(assigned_bytes=150 * MB)).startswith("150.0 MB instead of 200.0")
    kept = plan(predicted_bytes=190 * MB)
    assert summary.in_a_line(kept) == "190.0 MB, XLA's own order, bound 100.0, 3.0 s"
    on_chip = plan(assigned_bytes=90 * MB)  # a TPU's, where XLA moved values to VMEM later
    assert summary.in_a_line(on_chip) == "90.0 MB instead of 200.0, 3.0 s"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.0"), (MB, "1.0"), (1234.56 * MB, "1,234.6"), (MB / 2, "0.5"), (1200, "0.00114"),
     (100, "0.000")],
)  # fmt: skip
def test_megabytes(size, text):
    found = plan(lower_bound_bytes=size, predicted_bytes=2000 * MB)
    assert f"bound {text}," in summary.in_a_line(found)


def test_a_predicted_plan():
    found = rows(plan())
    assert found["XLA's own order"] == "200.0 MB assigned", "it differs from the prediction"
    assert found["planned"] == "140.0 MB predicted; -30.0 %"
    assert found["lifetime peak"] == "130.0 MB predicted for the order in use"
    assert found["lifetime gap"] == "20.00 % excess of least peak over lower bound"
    assert found["assignment loss"] == "16.67 % predicted total above the least peak"
    assert found["lower bound"].endswith("no order needs less memory; recomputation can reduce it")
    assert found["planning"] == "3.0 s 1,234 steps, seed 7"
    assert not {"computed again", "added time", "time of a run", "results over operands"} & {*found}
    assert rows(plan(xla_bytes=190 * MB))["XLA's own order"] == "190.0 MB predicted"


def test_a_compiled_plan_with_edits():
    loop = LoopRecord("w", "r", (3, 4), 8, (("i", ()),))
    made = plan(
        assigned_bytes=160 * MB, loops=(loop, loop._replace(every=0)), sunk=("s",),
        clones=(("c", "o", (), ()),) * 3, aliases={"f": (((), 0), ((1,), 2))},
        step_seconds=0.2, added_seconds=0.01, exposed_seconds=0.002,
        path_seconds=0.102, xla_path_seconds=0.1,
    )  # fmt: skip
    assert made.recomputed_residuals == 4
    found = rows(made)
    assert found["planned"] == "160.0 MB assigned; -20.0 %"
    assert found["assignment loss"].startswith("33.33 % assigned total")
    assert found["results over operands"] == "2"
    assert found["copies before loops left out"] == "1"
    assert found["scan residuals recomputed"] == "4"
    assert found["scan residuals added"] == "2 with fewer bytes"
    assert found["iterations per kept state"] == "8 run again"
    assert found["computed again"] == "3 instructions"
    assert found["added time"] == "5.0 % predicted: 10.00 ms on 200.00 ms"
    assert found["of it, exposed"] == "2.00 ms of transfers"
    run = "102.000 ms predicted; +2.00 % against 100.000 ms in XLA's own order"
    assert found["time of a run"] == run
    assert found["lower bound"].endswith("with these changed loops and recomputed values")


def test_a_total_below_the_bound():
    """On a TPU the bound counts what lies in VMEM afterwards."""
    found = rows(plan(assigned_bytes=90 * MB))
    assert found["lower bound"].endswith("before XLA moves values to another memory")


def test_a_plan_that_was_not_searched():
    found = rows(plan(peak_bytes=0, predicted_bytes=190 * MB, status=PlanStatus.XLA))
    assert found["XLA's own order, kept"] == "190.0 MB predicted"
    assert found["status"] == "not searched another order could save almost nothing"
    assert not {"lifetime peak", "lifetime gap", "planned"} & {*found}


def test_the_parts_of_a_plan_are_all_of_its_fields():
    parts = [dataclasses.fields(kind) for kind in Plan.__mro__ if dataclasses.is_dataclass(kind)]
    names = {f.name for part in parts[1:] for f in part}
    assert names == {f.name for f in parts[0]}


def test_optimal_is_said_only_where_it_is_proven():
    proven = plan(status=PlanStatus.OPTIMAL, lower_bound_bytes=140 * MB)
    near = plan(status=PlanStatus.OPTIMAL, lower_bound_bytes=139_900 * MB // 1000)
    assert (summary.status_word(proven), summary.status_word(near)) == ("optimal", "within 0.07 %")
    assert summary.status_word(plan(status=PlanStatus.FEASIBLE)) == "feasible"
    assert "within 0.07 %" in summary.table(near)
    more = dataclasses.replace(proven, assigned_bytes=154 * MB)  # than was predicted
    assert summary.status_word(more) == "within 10.00 %"
