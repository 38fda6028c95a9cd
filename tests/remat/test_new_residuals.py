"""Values of a loop's body that get a scan residual instead of larger ones that are made of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import olla_xla
from hlo.module import module_from_bytes
from hlo.rewrite.loop_edit import NewResidual
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.cli.report.plans import stacks_table
from olla_xla.errors import CheckError, PlanMismatchError
from olla_xla.problem.plan import dumps, loads
from olla_xla.remat.loops.pairs import pairs
from olla_xla.remat.loops.recipe import recipe
from olla_xla.remat.loops.recipe_table import RecipeTable
from olla_xla.tools.residual_rows import residual_rows
from tests.support.compiles import on_h100, xla_schedule
from tests.support.plugins import CUDA
from tests.support.rewrites import record, with_loops_changed
from tests.support.steps import assert_same

ITERATIONS, ROWS, WIDTH = 7, 64, 512


def solved(a, y):
    """What a loop in the body ends with, which is not run again, is all that large arrays need."""

    def body(c, y):
        start = lax.stop_gradient((c, 0 * y[0]))
        more = lambda s: (jnp.tanh(a @ s[0]), s[1] + 1)  # noqa: E731
        z = lax.stop_gradient(lax.while_loop(lambda s: s[1] < 5, more, start)[0])
        image = jnp.tanh(z[:, None] * y[None, :] * a[0, 0] + c[:, None])
        return c + 0.01 * jnp.mean(image * image, 1), jnp.sum(image * jnp.cos(image))

    c, sums = lax.scan(body, jnp.ones(ROWS), y)
    return jnp.sum(c) + jnp.sum(sums)


@functools.cache
def arguments():
    draw = np.random.default_rng(0)
    a = draw.normal(size=(ROWS, ROWS)) * 0.1
    return jnp.asarray(a, jnp.float32), jnp.asarray(draw.normal(size=(ITERATIONS, WIDTH)), "f4")


STEP = jax.value_and_grad(solved)


@functools.cache
def captured(target):
    given = on_h100(arguments()) if target == "cuda" else arguments()
    return xla_schedule(jax.jit(STEP).lower(*given))


def kept_alone(target):
    """The module in which all residuals that can go do, for each value that they are made of."""
    view = module_from_bytes(captured(target))
    (pair,) = pairs(view, target)
    table = RecipeTable(pair, collectives=False)
    inner = [(i, x) for i, x in table.given.values() if i.opcode in ("call", "while")]
    assert inner
    stacks = [s.written for s in pair.scan_residuals]
    return view, pair, recipe(view, pair, record(pair, *stacks, kept=tuple(_named(inner))))


def _named(given):
    return [(i.name, index) for i, index in given]


@pytest.mark.parametrize("overhead", [0.3, 1.0])
@pytest.mark.optimized
def test_what_is_not_run_again_is_kept_in_place_of_what_is_made_of_it(overhead):
    expected = jax.jit(STEP)(*arguments())
    compiled = (
        olla_xla.plan(STEP, max_overhead=overhead, verify=False).lower(*arguments()).compile()
    )
    plan = compiled.plan
    assert any(record.kept for record in plan.loops)
    assert plan.assigned_bytes == plan.predicted_bytes < 0.5 * plan.xla_bytes
    assert_same(expected, compiled(*arguments()))
    assert loads(dumps(plan)) == plan
    assert "scan residuals added" in plan.summary()


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_without_it_nothing_can_be_made_again(target):
    view, pair, edit = kept_alone(target)
    after = with_loops_changed(captured(target), [edit])
    check_rewrite(captured(target), after, target, loops=True)
    check_executable(after, target)
    with pytest.raises(PlanMismatchError, match="cannot be recomputed"):
        recipe(view, pair, record(pair, *(s.written for s in pair.scan_residuals)))


@pytest.mark.parametrize("where", ["written", "place"])
@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_the_referee_refuses_another_iterations_value(target, where):
    """A slice is that of the iteration that the backward loop goes back to."""
    _, _, edit = kept_alone(target)
    factor, offset = getattr(edit, where)
    edit = dataclasses.replace(edit, **{where: (factor, offset + 1)})
    after = with_loops_changed(captured(target), [edit])
    with pytest.raises(CheckError):
        check_rewrite(captured(target), after, target, loops=True)


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_the_referee_refuses_another_value(target):
    view, pair, edit = kept_alone(target)
    ((place, stored),) = [
        (k, new) for k, new in enumerate(edit.added) if isinstance(new, NewResidual)
    ]
    body = pair.writer.body.computation.instructions
    shape = next(i.shape.at(stored.index) for i in body if i.name == stored.value)
    others = [
        (i, index)
        for i, index in RecipeTable(pair, collectives=False).given.values()
        if i.shape.at(index).key == shape.key and i.name != stored.value
    ]
    assert others
    for i, index in others:
        added = list(edit.added)
        added[place] = NewResidual(i.name, index)
        after = with_loops_changed(
            captured(target), [dataclasses.replace(edit, added=tuple(added))]
        )
        with pytest.raises(CheckError):
            check_rewrite(captured(target), after, target, loops=True)


def test_a_plan_of_another_module_is_told():
    view, pair, _ = kept_alone("cpu")
    with pytest.raises(PlanMismatchError, match="has no value nothing to store"):
        recipe(view, pair, record(pair, pair.scan_residuals[0].written, kept=(("nothing", ()),)))


def test_new_residuals_are_among_the_rows():
    step = olla_xla.plan(STEP, max_overhead=1.0, verify=False)
    plan = step.lower(*arguments()).compile().plan
    rows = residual_rows(module_from_bytes(captured("cpu")), plan)
    kept = sum(row.bytes * row.slices // row.iterations for row in rows)
    assert kept == ITERATIONS * ROWS * 4
    assert [row.bytes for row in rows if row.new] == [kept]
    assert "all, new" in {row[2] for row in stacks_table(rows, len(rows)).rows}
    policy = step.as_policy(*arguments())
    assert [one.bytes for one in policy.unnamed] == [kept] and "# unnamed residual" in str(policy)
