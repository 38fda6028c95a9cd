"""The trainers: planned steps learn, give jit's losses, and go on after a checkpoint."""

import dataclasses
import functools
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from examples import train, train_mlp, train_resnet, train_transformer, training
from examples.checkpoint import Checkpoints
from examples.training import Options
from examples.zoo.gpt import GPTConfig
from olla_xla.compile.planned_function import PlannedFunction

pytestmark = pytest.mark.optimized  # hundreds of steps run

TINY = GPTConfig(layers=1, width=32, heads=2, sequence_length=16, vocabulary_size=256)
TRAINERS = {
    "mlp": (train_mlp.task, Options(steps=300, batch_size=64, optimizer="adam")),
    "resnet": (
        functools.partial(train_resnet.task, width=8),
        Options(steps=200, batch_size=64, optimizer="adam", learning_rate=5e-3),
    ),
    "transformer": (
        functools.partial(train_transformer.task, config=TINY),
        Options(steps=200, batch_size=8, optimizer="adam", learning_rate=1e-2),
    ),
}
"""Name -> what makes the task, and the options: of sizes that train in a few seconds."""

jit_step = functools.cache(training.jit_step)
"""Compiles each step once for all tests."""


@functools.cache
def task(name):
    made, options = TRAINERS[name]
    return made(options)


def run_task(made, options):
    """Runs a task from a copy of its first state."""
    fresh = dataclasses.replace(made, state=jax.tree.map(jnp.copy, made.state))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "jit_step", jit_step)
        return training.run(fresh, options)


def run(name, **options):
    """Runs the trainer of that name, with other options where they are given."""
    return run_task(task(name), dataclasses.replace(TRAINERS[name][1], **options))


planned = functools.cache(run)


def planned_scores(name):
    found = planned(name).scores
    assert found is not None
    return found


@pytest.mark.parametrize("name", TRAINERS)
def test_losses_are_those_of_jit(name):
    """Each loss depends on all states before it, to the last bit."""
    assert run(name, plan=False, steps=40).losses == planned(name).losses[:40]
    assert len(planned(name).losses) == TRAINERS[name][1].steps
    step = jit_step(task(name).train_step, plan=True)
    assert isinstance(step, PlannedFunction) and step.plans


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_digits_are_learned(name):
    assert planned_scores(name).accuracy >= 0.97


def test_text_is_learned():
    scores = planned_scores("transformer")
    assert planned("transformer").losses[0] == pytest.approx(
        5.55, abs=0.1
    )  # ln 256, that of a guess
    assert scores.accuracy > 0.2
    described = train_transformer.bits(scores)
    found = re.fullmatch(r"(\S+) bits per byte, next-byte accuracy \d\d\.\d\d%", described)
    assert found and float(found[1]) < 4.5


@pytest.mark.parametrize("name", ["mlp", "transformer"])  # a state in dicts, an nnx.State
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path, capsys):
    saving = {"checkpoint": str(tmp_path), "save_every": 20}
    first = run(name, steps=30, **saving)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["20", "30"]
    assert "resumed" not in capsys.readouterr().out
    rest = run(name, steps=60, **saving)
    resumed, *lines, held_out = capsys.readouterr().out.splitlines()
    assert resumed == f"resumed after 30 steps from {tmp_path}"
    assert first.losses + rest.losses == planned(name).losses[:60]
    reported = [i for i in range(30, 60) if i % 6 == 0 or i == 59]
    expected = [["step", str(i), "loss", f"{rest.losses[i - 30]:.5f}"] for i in reported]
    assert [line.split()[:4] for line in lines] == expected
    assert held_out.startswith("held out: ")
    done = run(name, steps=60, **saving)
    assert done.losses == [] and done.scores == rest.scores


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    state = {"x": jnp.arange(3)}
    with Checkpoints(str(tmp_path), {"model": "mlp", "sizes": (2, 3)}) as checkpoints:
        checkpoints.save(1, state)
    with Checkpoints(str(tmp_path), {"model": "mlp", "sizes": (2, 3)}) as checkpoints:
        step, restored = checkpoints.restore({"x": jnp.zeros(3, jnp.int32)})
        assert step == 1 and restored["x"].tolist() == [0, 1, 2]
    with (
        Checkpoints(str(tmp_path), {"model": "gpt", "sizes": (2, 3)}) as checkpoints,
        pytest.raises(ValueError, match=r"with model='mlp', this one has 'gpt'; give the same"),
    ):
        checkpoints.restore(state)


def test_without_a_directory_nothing_is_saved():
    with Checkpoints(None, {}) as checkpoints:
        checkpoints.save(3, {})
        assert checkpoints.restore("first") == (0, "first")


def test_nnx_state_keeps_its_structure():
    made = task("transformer")
    new_state, _ = jax.eval_shape(made.train_step, made.state, made.batch(0))
    signatures = [
        jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (new_state, made.state)
    ]
    assert signatures[0] == signatures[1]


@pytest.mark.parametrize("plan", [True, False])
def test_state_is_donated(plan):
    state, batch = jnp.ones(4), jnp.ones(4)
    training.jit_step(lambda state, batch: (state - batch, batch.sum()), plan=plan)(state, batch)
    assert state.is_deleted() and not batch.is_deleted()


def test_command_line(tmp_path):
    """Any model trains, and a process of its own goes on after the checkpoint of another."""
    options = Options(steps=6, batch_size=2, optimizer="adam")
    made = train.task("mlp", options, dtype="bfloat16")
    result = run_task(made, options)
    assert result.losses[-1] < result.losses[0] and result.scores is None
    run_task(made, dataclasses.replace(options, steps=3, checkpoint=str(tmp_path)))
    command = [sys.executable, "-m", "examples.train", "--model=mlp", "--dtype=bfloat16"]
    command += ["--steps=6", "--batch_size=2", f"--checkpoint={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    resumed, *lines = done.stdout.splitlines()
    assert resumed.startswith("resumed after 3 steps")
    expected = [["step", str(i), "loss", f"{result.losses[i]:.5f}"] for i in range(3, 6)]
    assert [line.split()[:4] for line in lines] == expected
    assert "checkpoint" not in done.stderr  # orbax keeps quiet
