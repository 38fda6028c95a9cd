"""One bound, the best known, whose rows add up; and the lines that a plan's tables tell."""

import jax
import jax.numpy as jnp
import optax
import pytest

import olla_xla
from examples.zoo import load
from olla_xla.analysis import terminal
from olla_xla.analysis.analysis import peak_rows
from olla_xla.analysis.category import Category
from olla_xla.analysis.terminal import tables_of
from olla_xla.planner import graphs
from tests.support.compiles import xla_schedule


def scanned(w, x):
    def layer(h, w):
        return jnp.tanh(jnp.tanh(h @ w) @ w.T) + h, None

    return w - jax.grad(lambda w: (jax.lax.scan(layer, x, w)[0] ** 2).mean())(w)


def adds_up(analysis):
    *rows, (name, sums) = peak_rows(analysis)
    assert name == "sum" and sums[-1] == analysis.lower_bound_bytes
    assert [sum(column) for column in zip(*(sizes for _, sizes in rows), strict=True)] == [*sums]
    assert sums[0] == analysis.xla.total_bytes
    return dict(rows)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_analyze_proves_what_a_plan_does(optimizer):
    step, arguments, options = load("mlp")(batch_size=4, optimizer=optimizer)
    plan = olla_xla.plan(step, step_limit=2000, **options).lower(*arguments).compile().plan
    analysis = olla_xla.analyze(jax.jit(step, **options), *arguments)
    assert analysis.bound.bytes >= 0.99 * plan.lower_bound_bytes
    assert analysis.bound.taken_over_bytes >= 0
    adds_up(analysis)


def test_what_a_loop_holds_is_told_by_its_own_tensors():
    arguments = jnp.ones((16, 64, 64)), jnp.ones((4096, 64))
    analysis = olla_xla.analyze(jax.jit(scanned, donate_argnums=0), *arguments)
    rows = adds_up(analysis)
    workspace = rows.get(str(Category.WORKSPACE), [0, 0])
    assert workspace[-1] < 0.02 * analysis.lower_bound_bytes
    assert rows[str(Category.GRADIENTS)][-1] > 0


def test_tables_count_tensors_and_no_gaps():
    step, arguments, options = load("mlp")(batch_size=4, optimizer="adam")
    view = (analysis := olla_xla.analyze(jax.jit(step, **options), *arguments)).xla
    tensors = sum(t.category is not Category.UNUSED for t in view.tensors)
    titles = [table.title for table in tables_of(analysis)]
    assert any(f"kinds of tensors ({tensors:,} in all) at" in title for title in titles), titles


def test_a_plan_s_tables_tell_the_user_s_line_and_no_library_s():
    optimizer = optax.adam(1e-3)

    def step(p, state, x):
        updates, state = optimizer.update(jax.grad(lambda p: jnp.tanh(x @ p).sum())(p), state)
        return optax.apply_updates(p, updates), state

    p = jnp.ones((64, 64))
    lowered = jax.jit(step).lower(p, optimizer.init(p), jnp.ones((8, 64)))
    lines = {op.location for op in graphs(xla_schedule(lowered), "cpu")[-1].operators}
    assert {line.rpartition(":")[0] for line in lines if line} == {__file__}


def test_nothing_to_donate_is_no_table_and_no_lack_of_arguments():
    analysis = olla_xla.analyze(lambda w, x: (x @ w).sum(), jnp.ones((64, 64)), jnp.ones((8, 64)))
    assert str(analysis).endswith("Donation: 0 requested; none would save memory")


def test_a_bound_without_a_search_is_not_the_last_word():
    def step(w, x):  # XLA's order keeps several branches at once
        hidden = [jnp.tanh(x @ a) for a in w]
        return [a * jnp.sum(h @ h.T) for a, h in zip(w, hidden, strict=True)]

    w, x = [jnp.ones((64, 64))] * 6, jnp.ones((512, 64))
    analysis = olla_xla.analyze(jax.jit(step, donate_argnums=0), w, x)
    assert analysis.gap > 0.01
    assert "planning the step shows how much of this" in " ".join(str(analysis).split())
    planned = olla_xla.analyze(jax.jit(step, donate_argnums=0), w, x, plan=True)
    assert "planning the step" not in " ".join(str(planned).split())


def test_a_step_that_takes_nothing_is_at_its_bound():
    analysis = olla_xla.analyze(lambda: None)
    assert analysis.gap == 0 and "is 0.0 % above that" in " ".join(str(analysis).split())


def test_what_rounds_to_zero_has_no_sign():
    assert [terminal.megabytes(size) for size in (-8, 0, -(2**20))] == ["0.0", "0.0", "-1.0"]


def test_a_total_that_recomputation_takes_below_the_bound_is_said_to_be_below():
    assert terminal.from_bound(-0.409) == "40.9 % below"
    assert terminal.from_bound(0.002) == "0.2 % above"
