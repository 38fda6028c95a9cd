"""Steps of other people's trainers: named on the command line, compiled and planned, a row each."""

import dataclasses
import json

import jax
import pytest

import olla_xla
from benchmarks.__main__ import main
from benchmarks.commands.planned_rows import front_table
from benchmarks.suite import SuitePlan, SuiteRow
from benchmarks.trainers import TRAINERS, parse_trainer
from benchmarks.trainers.rows import host_copies
from olla_xla import targets
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.errors import InputError
from tests.support import four_products
from tests.support.compiles import QUICK
from tests.support.plugins import mark


def test_settings_are_the_trainers_own_or_those_given():
    trainer, settings = parse_trainer("maxtext:model_name=llama2-7b:ici_tensor_parallelism=2")
    assert trainer is TRAINERS["maxtext"]
    assert settings == {
        "model_name": "llama2-7b",
        "per_device_batch_size": "1",
        "devices": "8",
        "ici_tensor_parallelism": "2",
    }
    assert parse_trainer("equinox")[1] == {"batch_size": "8"}
    assert parse_trainer("equinox:pieces=4")[1] == {"batch_size": "8", "pieces": "4"}


@pytest.mark.parametrize(
    "text", ["axlearn", "nnx:width=3", "maxtext:model_name=", "maxtext:x", "nnx:pieces=a"]
)
def test_what_is_not_known_is_refused(text):
    with pytest.raises(InputError, match="--trainers"):
        parse_trainer(text)


def test_a_policy_that_no_chosen_trainer_has_is_misuse(capsys):
    assert main(["benchmarks", "trainers", "--trainers=nnx", "--policies=minimal"]) == 2
    assert "blocks, none" in capsys.readouterr().err


def test_a_trainer_that_is_not_installed_is_named(tmp_path, capsys):
    out = tmp_path / "rows.json"
    command = ["benchmarks", "trainers", "--trainers=maxtext", "--policies=full"]
    command.append("--target=cpu")
    assert main([*command, f"--out={out}"]) == 0
    assert "--group trainers" in json.loads(out.read_text())[0]["error"]
    assert "does not compile" in capsys.readouterr().out


def test_a_step_in_pieces():
    settings = {"batch_size": "4", "layers": "1", "words": "4000"}
    trainer = TRAINERS["nnx"]
    whole, cut = (
        jax.jit(step.function, **step.options)
        .lower(*step.arguments, **step.keywords)
        .compile(compiler_options=QUICK)
        for step in (
            trainer.step("blocks", {**settings, **pieces}, targets.target("cpu"))
            for pieces in ({}, {"pieces": "8"})
        )
    )
    assert assigned_bytes(cut) < assigned_bytes(whole)


def test_a_step_that_spills():
    _, settings = parse_trainer("nnx:layers=1:words=100:host_budget=1GiB")
    step = TRAINERS["nnx"].step("none", settings, targets.target("cpu"))
    assert step.function.explain(*step.arguments, **step.keywords).host_bytes <= 2**30


def test_each_overhead_alone_and_with_host_memory(tmp_path, capsys):
    out = tmp_path / "rows.json"
    command = ["benchmarks", "trainers", "--target=cpu", "--policies=none", "--host_budget=1GiB"]
    command += ["--trainers=nnx:batch_size=1:layers=1:words=100", "--overheads=0.1"]
    assert main([*command, "--step_limit=100", "--time_limit=2", f"--out={out}"]) == 0
    ways = [(plan["way"], plan["max_overhead"]) for plan in json.loads(out.read_text())[0]["plans"]]
    assert ways == [("", None), ("", 0.1), ("both", 0.1)], "nothing can be spilled on a CPU"
    assert "spilled, device + host" in capsys.readouterr().out


@mark("cuda13")
def test_copies_to_the_host_are_counted_by_their_streams():
    targets.prepare_environment("h100")
    given = targets.target("h100").place(list(four_products.shapes(256, 4096)))
    compiled = jax.jit(olla_xla.spill(four_products.step)).lower(*given).compile()
    beside, waited = host_copies(compiled)
    assert beside + waited >= 16 and beside > 0, "eight arrays are sent and fetched"
    assert host_copies(jax.jit(four_products.step).lower(*given).compile()) == (0, 0)


def test_a_front_has_a_line_for_each_overhead():
    plan = SuitePlan(0.1, 2**20, 1.1, 1.0, True)
    both = dataclasses.replace(plan, way="both", host_bytes=2**21, step_seconds=1.0, copies=(4, 2))
    row = SuiteRow("a", 8, 3 * 2**20, 1.0, 1.0, (plan, both))
    (line,) = front_table([row]).rows
    recomputed, spilled = ("1.0 + 0.0", "10.0"), ("3.0 + 0.0", "0.0")
    assert line == ("a", "10.00", *recomputed, *spilled, "1.0 + 2.0", "0.0", "4 / 2")


def test_each_policy_is_a_row(monkeypatch, tmp_path, capsys):
    """Each in a process of its own; XLA's compile is kept short."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    out = tmp_path / "rows.json"
    command = ["benchmarks", "trainers", "--target=cpu"]
    command.append("--trainers=nnx:batch_size=1:layers=2:words=500")
    limits = ["--overheads=", "--step_limit=200", "--time_limit=2", "--beside"]
    assert main([*command, *limits, f"--out={out}"]) == 0
    again, kept = json.loads(out.read_text())
    assert (kept["name"], again["name"]) == ("nnx 1 2 500 none", "nnx 1 2 500 blocks")
    assert again["xla_bytes"] < kept["xla_bytes"]
    assert again["step_seconds"] > kept["step_seconds"] > 0
    for row in kept, again:
        assert not row["error"]
        plans = [plan for plan in row["plans"] if not plan["beside"]]
        assert [plan["max_overhead"] for plan in plans] == [None]
        assert all(plan["bytes"] <= row["xla_bytes"] for plan in row["plans"])
        assert not any(plan["trouble"] for plan in row["plans"])
    (matched,) = (plan for plan in kept["plans"] if plan["beside"] == "blocks")
    assert 1 + matched["max_overhead"] == pytest.approx(
        again["step_seconds"] / kept["step_seconds"]
    )
    assert not any(plan["beside"] for plan in again["plans"])
    assert "nnx 1 2 500 none, in the predicted time of blocks" in capsys.readouterr().out
