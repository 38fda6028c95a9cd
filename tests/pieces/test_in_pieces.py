"""`olla_xla.plan(..., memory_budget=, fission=True)`, and `olla_xla fit`."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from olla_xla.cli.main import main
from olla_xla.errors import BudgetError, InputError
from olla_xla.pieces import in_pieces
from tests.support.compiles import QUICK

RNG = np.random.default_rng(0)
OPTIONS = {"time_limit": 1.0, "step_limit": 200}


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def loss(w, x, y):
    logits = jnp.tanh(x @ w["in"]) @ w["out"]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, y[:, None], 1)[:, 0])


def step(w, x, y, rate):
    value, gradient = jax.value_and_grad(jax.checkpoint(loss))(w, x, y)
    return jax.tree.map(lambda a, g: a - rate * g, w, gradient), value


def arguments():
    w = {"in": normal(32, 32), "out": normal(32, 2048)}
    return w, normal(512, 32), jnp.asarray(RNG.integers(0, 2048, 512)), 0.1


def total(function, *args):
    lowered = jax.jit(function, donate_argnums=0).lower(*args)
    m = lowered.compile(compiler_options=QUICK).memory_analysis()
    sizes = m.argument_size_in_bytes, m.output_size_in_bytes, m.temp_size_in_bytes
    return sum(sizes) - m.alias_size_in_bytes


def close(made, expected):
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def test_the_fewest_pieces_that_meet_the_budget():
    args = arguments()
    budget = total(olla_xla.fission(step, pieces=4), *args)
    function = olla_xla.plan(step, memory_budget=budget, fission=True, donate_argnums=0, **OPTIONS)
    found = function.choice(*args)
    assert found.pieces <= 4
    assert budget < total(step, *args)
    chosen = next(t for t in found.trials if t.pieces == found.pieces)
    assert chosen.planned_bytes <= budget
    assert chosen.seconds > 0
    for trial in found.trials:
        if trial.pieces < found.pieces:
            assert trial.planned_bytes is None or trial.planned_bytes > budget
    assert found.plan.pieces == found.pieces
    assert found.plan.regions[0].axis.startswith("dimension")
    expected = jax.jit(step)(*args)
    w = jax.tree.map(jnp.copy, args[0])
    compiled = function.lower(*args).compile()
    assert compiled.plan.assigned_bytes == chosen.planned_bytes
    close(function(w, *args[1:]), expected)
    assert w["out"].is_deleted(), "it donates"
    # Another signature has a choice of its own; inside another function nothing is planned.
    few = function.choice(args[0], args[1][:16], args[2][:16], 0.1)
    assert few.pieces == 1
    close(jax.jit(lambda *args: function(*args))(*args), expected)


def test_a_step_that_fits_is_left_alone():
    args = arguments()
    function = olla_xla.plan(step, memory_budget="1GiB", fission=True, **OPTIONS)
    assert function.choice(*args).pieces == 1
    np.testing.assert_array_equal(function(*args)[1], jax.jit(step)(*args)[1])


def test_budgets_that_nothing_meets_name_the_operation():
    def sorted_rows(x):
        return jnp.sort(jnp.sort(x, 0), 1)

    function = olla_xla.plan(sorted_rows, memory_budget=1000, fission=True, **OPTIONS)
    with pytest.raises(BudgetError, match=r"sort at test_in_pieces\.py:\d+ mixes"):
        function(normal(64, 64))
    with pytest.raises(BudgetError, match="the least that was reached"):
        olla_xla.plan(step, memory_budget=1000, fission=True, **OPTIONS)(*arguments())


@pytest.mark.quick
def test_what_goes_with_it():
    for wrong in ({}, {"memory_budget": 10, "enabled": False}):
        with pytest.raises(InputError, match="memory_budget"):
            olla_xla.plan(step, fission=True, **wrong)
    with pytest.raises(InputError, match="must be True or False"):
        olla_xla.plan(step, fission=4, memory_budget=10)
    decorated = olla_xla.plan(memory_budget=2**30, fission=True, donate_argnums=0)(step)
    assert decorated.jit_options["donate_argnums"] == 0
    assert repr(decorated) == "<olla_xla.plan of step: in no pieces so far>"


def head(batch_size, optimizer):
    del optimizer
    w, x, y, _ = jax.eval_shape(arguments)
    x, y = (jax.ShapeDtypeStruct((batch_size, *a.shape[1:]), a.dtype) for a in (x, y))
    return (lambda w, x, y: step(w, x, y, 0.1)), (w, x, y), {"donate_argnums": 0}


def test_the_command(capsys):
    flags = ["--model=tests.pieces.test_in_pieces:head", "--batch_size=512", "--time_limit=1"]
    assert main(["olla_xla", "fit", *flags, "--memory_budget=3MiB"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\n +\d+ +[\d.]+ +[\d.]+ +-?[\d.]+ % +chosen", shown), shown
    assert re.search(r"In \d+ pieces the step meets the budget: it takes [\d.]+ of 3\.0 MB", shown)
    assert main(["olla_xla", "fit", *flags]) == 2
    assert "give --model=NAME and --memory_budget=BYTES" in capsys.readouterr().err


def mlp(batch_size, optimizer):
    """Nothing of it is large beside its weights."""
    function, (w, *_), options = head(batch_size, optimizer)
    del function
    return (lambda w: jax.tree.map(lambda a: a * 0.9, w)), (w,), options


def test_analyze_proposes_pieces(capsys, monkeypatch):
    """Whatever the rates of the machine make of their time."""
    cost = in_pieces.compiled_cost
    monkeypatch.setattr(in_pieces, "compiled_cost", lambda lowered: (cost(lowered)[0], 1.0))
    flags = ["--batch_size=512", "--largest=1", "--time_limit=1"]
    assert main(["olla_xla", "analyze", "--model=tests.pieces.test_in_pieces:head", *flags]) == 0
    shown = capsys.readouterr().out
    found = re.search(
        r"olla_xla\.fission takes ([\d.]+) MB \(\+0\.0 % predicted time, "
        r"float32\[512,2048\] at test_in_pieces\.py:\d+ in \d+ pieces, other rounding\)",
        shown,
    )
    assert found is not None, shown
    cut = olla_xla.fission(step)
    assert float(found[1]) == pytest.approx(total(cut, *arguments()) / 2**20, abs=0.06)
    assert main(["olla_xla", "analyze", "--model=tests.pieces.test_in_pieces:mlp", *flags]) == 0
    assert "olla_xla.fission takes" not in capsys.readouterr().out
