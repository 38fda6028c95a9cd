"""The loops benchmark: policies on a scan's body against plans, on a case that compiles at once."""

import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks import loops as bench
from benchmarks.__main__ import main
from benchmarks.commands.loops import loops_summary, loops_table
from benchmarks.loops import checkpointed_scans
from benchmarks.schedule import Case
from olla_xla.analysis.checkpointed import POLICIES
from olla_xla.problem.options import PlanOptions
from olla_xla.tools import models
from olla_xla.tools.variants import StepVariant

LAYERS, WIDTH = 16, 64
NAME = "tests.benchmarks.test_loops:gated"


def gated(*, batch_size, optimizer):
    """A step over scanned layers, each a product and a chain that its gradient reads."""

    def step(weights, x):
        def layer(x, w):
            return x + jnp.tanh(jnp.sin(x @ w) * jnp.cos(x @ w)), None

        def loss(weights):
            return (jax.lax.scan(layer, x, weights)[0] ** 2).sum()

        return weights - 0.1 * jax.grad(loss)(weights)

    shapes = (LAYERS, WIDTH, WIDTH), (batch_size, WIDTH)
    arguments = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return step, arguments, {"donate_argnums": (0,)}


def test_policies_reach_the_bodies_of_scans():
    model = models.build(NAME, batch_size=8, optimizer="sgd")
    scan = jax.lax.scan
    sizes = {}
    for policy in ("everything_saveable", "nothing_saveable"):
        with checkpointed_scans(policy):
            text = str(jax.make_jaxpr(lambda *args: model.step(*args))(*model.arguments))
        sizes[policy] = text.count("dot_general")
        assert "remat" in text or "checkpoint" in text
    assert jax.lax.scan is scan, "JAX is as it was"
    assert sizes["nothing_saveable"] > sizes["everything_saveable"]


def test_every_policy_stands_beside_a_plan_of_its_own_time(monkeypatch):
    monkeypatch.setattr(bench, "POLICIES", POLICIES[-1:])
    options, seen = PlanOptions(time_limit=5, step_limit=2000), []
    case = Case(NAME, 512, "sgd", "cpu")
    rows = bench.loops(case, options, [0.5], seen.append, spilled=True)
    assert [row.way.name for row in rows] == [
        "XLA",
        *(f"jax.checkpoint, {policy}" for policy in bench.POLICIES),
        "planned, at most 50%",
        "spilled",
        "spilled and planned",
    ]
    xla, *compared, last, spilled, both = rows
    assert spilled.way.host_bytes == 0, "a CPU's memory is the host's"
    assert both.way.bytes <= spilled.way.bytes <= xla.way.bytes
    assert xla.added == 0 and xla.planned is None and xla.at_or_below is None
    for row in compared:
        assert row.planned is not None and row.planned.bytes <= xla.way.bytes
        assert row.at_or_below == (row.planned.bytes <= row.way.bytes)
        assert row.planned_added is not None
        assert row.planned_added <= max(row.added, 0) + 1e-5
    nothing = compared[-1]
    assert nothing.way.bytes < xla.way.bytes, "the policy keeps less"
    assert nothing.added > 0
    assert last.way.stacks and last.way.bytes < xla.way.bytes and 0 < last.added <= 0.5
    assert last.planned is None
    assert len(seen) == len(set(seen))


def _row(name, size, planned=None):
    def way(name, size):
        return StepVariant(name, size * 2**20, 1e-3, 1)

    ours = None if planned is None else way("planned", planned)
    return bench.LoopsRow(way(name, size), 0.1, ours, None if planned is None else 0.05)


def test_table_and_summary():
    rows = [_row("XLA", 10), _row("all", 9, 8), _row("none", 4, 5), _row("planned, at most 5%", 6)]
    table = loops_table(rows, "a case")
    assert table.rows[0] == ("XLA", "10.0", "0.0", "0.0", "1.00", "10.0", "-", "-", "")
    assert table.rows[1] == ("all", "9.0", "0.0", "10.0", "1.00", "10.0", "8.0", "5.0", "yes")
    assert [row[-1] for row in table.rows] == ["", "yes", "no", ""]
    assert loops_summary(rows) == "at or below 1 of 2 policies at their own time; above none"
    assert loops_summary(rows[:2]) == "at or below 1 of 1 policies at their own time"


def test_command_writes_its_rows(monkeypatch, tmp_path, capsys):
    rows = [_row("XLA", 10), _row("none", 4, 5)]
    asked = []

    def loops(case, options, overheads, progress, policies, spilled):
        asked.append((case.name, overheads, list(policies), spilled))
        return rows

    monkeypatch.setattr(bench, "loops", loops)
    out = tmp_path / "rows.json"
    command = ["benchmarks", "loops", f"--cases={NAME}/8/sgd/cpu", f"--out={out}"]
    command += ["--policies=nothing_saveable", "--spill"]
    assert main([*command, "--overheads=0.1", "--format=markdown"]) == 0
    assert asked == [(f"{NAME}/8/sgd/cpu", [0.1], ["nothing_saveable"], True)]
    assert "| none | 4.0 | 0.0 |" in capsys.readouterr().out
    (found,) = json.loads(out.read_text())
    assert found["case"] == f"{NAME}/8/sgd/cpu"
    assert [row["at_or_below"] for row in found["rows"]] == [None, False]
    assert found["rows"][1]["planned"]["bytes"] == 5 * 2**20


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--cases=mlp", "must read model/batch_size/optimizer/target"),
        ("--cases=mlp/1/sgd/tpu", "'tpu' is not known; use cpu, v100"),
        ("--overheads=x", "0.05 for 5%"),
        ("--policies=some", "--policies: 'some' is not known; use everything_saveable"),
        ("--out=no/such/folder/rows.json", "there is no such folder"),
    ],
)
def test_misuse_is_said_at_once(flag, message, capsys):
    assert main(["benchmarks", "loops", flag]) == 2
    assert message in capsys.readouterr().err


def test_a_case_that_fails_is_said(capsys):
    assert main(["benchmarks", "loops", "--cases=resnet5O/1/sgd/cpu"]) == 1
    assert "unknown model 'resnet5O'" in capsys.readouterr().err
