"""A folder of dumps: each in a process of its own, compiled and planned, or with the reason."""

import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks import suite as bench
from benchmarks.__main__ import main
from benchmarks.commands.planned_rows import suite_notes, suite_table
from olla_xla.errors import InputError
from olla_xla.problem.options import PlanOptions

PLAN = bench.SuitePlan(None, 5 * 2**20, 0.011, 3.0, True)


def step(weights, x):
    def loss(weights):
        return (jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, weights)[0] ** 2).sum()

    return weights - 0.1 * jax.grad(loss)(weights)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A step, one that calls another library, what has a schedule, and what is no module."""
    path = tmp_path_factory.mktemp("dumps")
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 64, 64), (512, 64))]
    lowered = jax.jit(step).lower(*shapes)
    text = lowered.compiler_ir("hlo").as_hlo_text()
    (path / "a_step.hlo.gz").write_bytes(gzip.compress(text.encode()))
    (path / "b_called.hlo").write_text(_called(text))
    (path / "c_scheduled.txt").write_text(lowered.compile().as_text())
    (path / "d_none.pb").write_bytes(b"no module")
    (path / "README.md").write_text("not a dump")
    return path


def _called(text):
    """The step with a call of a library that is not here."""
    lines = text.splitlines()
    (number,) = [k for k, line in enumerate(lines) if " tanh(" in line]
    target = 'custom_call_target="of_another_library", api_version=API_VERSION_TYPED_FFI'
    line = lines[number].split(", metadata")[0].replace(" tanh(", " custom-call(")
    lines[number] = f"{line}, {target}"
    return "\n".join(lines)


def test_each_dump_is_a_row(folder, tmp_path, capsys):
    out = tmp_path / "rows.json"
    code = main(
        ["benchmarks", "suite", f"--folder={folder}", "--target=cpu", "--overheads=0.5"]
        + [f"--out={out}", "--time_limit=5", "--step_limit=2000"]
    )
    text = capsys.readouterr().out
    assert code == 0
    step_row, called, scheduled, none = json.loads(out.read_text())
    assert step_row["devices"] == 1 and not step_row["error"] and step_row["step_seconds"] > 0
    default, half = step_row["plans"]
    assert (default["max_overhead"], half["max_overhead"]) == (None, 0.5)
    assert 0 < half["bytes"] <= default["bytes"] <= step_row["xla_bytes"]
    assert half["planned"] and not half["trouble"] and half["seconds"] > 0
    assert "XLA cannot compile the module" in called["error"] and "another_lib" in called["error"]
    assert "has a schedule" in scheduled["error"] and "not HLO text" in none["error"]
    for row in (called, scheduled, none):
        assert row["xla_bytes"] is None and not row["plans"]
    assert "a_step.hlo.gz" in text and "50 %" in text
    assert "d_none.pb does not compile: not HLO text" in text and "README" not in text


def test_a_process_that_ends_is_no_end_of_the_rest(folder, monkeypatch):
    """XLA may abort; what came before is kept, and the last line of what it said is the reason."""

    def lines(*_):
        yield {"devices": 4}
        yield {"xla_bytes": 9 * 2**20, "seconds": 1.0, "step_seconds": 0.01}
        yield {"plan": vars(PLAN)}
        raise bench.OllaError("its process ended: F1125 Check failed")

    monkeypatch.setattr(bench, "worker_lines", lines)
    said = []
    row = bench.suite_row(folder / "a_step.hlo.gz", "h100", (0.1,), PlanOptions(), said.append)
    assert row.plans == (PLAN,) and row.trouble and row.devices == 4
    table = suite_table([row, bench.SuiteRow("b", error="why")], (0.1,), "h100")
    assert table.rows[0][2:7] == ("9.0", "5.0", "-", "10.00", "10.0")
    assert all(len(cells) == len(table.headings) for cells in table.rows)
    assert suite_notes([row, bench.SuiteRow("b", error="why")]) == [
        "a_step.hlo.gz ended early: its process ended: F1125 Check failed",
        "b does not compile: why",
    ]


def test_a_plan_that_fails_is_said():
    failed = bench.SuitePlan(0.1, 1, 0.01, 1.0, False, "olla_xla's check failed: x", True)
    row = bench.SuiteRow("a", 1, 1, 0.01, 1.0, (PLAN, failed))
    assert row.trouble and suite_notes([row]) == ["a, 10 %: olla_xla's check failed: x"]


def test_dumps_are_found_by_name(folder, tmp_path):
    names = [p.name for p in bench.dumps(folder)]
    assert names == ["a_step.hlo.gz", "b_called.hlo", "c_scheduled.txt", "d_none.pb"]
    assert [p.name for p in bench.dumps(folder, ["step", "none"])] == [names[0], names[3]]
    for where in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="holds no dumps"):
            bench.dumps(where)


def test_misuse_is_said(capsys):
    assert main(["benchmarks", "suite"]) == 2
    assert "give --folder" in capsys.readouterr().err
