"""Every choice for the loops of many small programs: the referee agrees, and bits are the same."""

import functools

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from benchmarks.refused import collected
from benchmarks.rewritten import compile_rewritten
from hlo.module import module_from_bytes
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import BudgetError, CheckError, PlanMismatchError
from olla_xla.planner import plan_module
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.loops import pairs as loop_pairs
from olla_xla.remat.loops import selection
from olla_xla.remat.loops.pairs import pairs
from olla_xla.remat.loops.recipe import recipe
from olla_xla.remat.loops.recipe_table import RecipeTable
from tests.support.compiles import on_h100, xla_schedule
from tests.support.loop_programs import CALLED, INDEXED, OVERWRITTEN, PROGRAMS
from tests.support.rates import priced_choices
from tests.support.rewrites import record, with_loops_changed
from tests.support.steps import assert_same


@functools.cache
def lowered(name):
    step, arguments = PROGRAMS[name]()
    return jax.jit(step).lower(*arguments)


@functools.cache
def captured(name):
    return xla_schedule(lowered(name))


@functools.cache
def expected(name):
    return lowered(name).compile()(*PROGRAMS[name]()[1])


@functools.cache
def choices(module, target):
    return priced_choices(module, target)


def changed(module, target="cpu"):
    """The module with each choice of residuals; with each alone gone, and with all of a pair, made
    of what there is or of new residuals.
    """
    found = choices(module, target)
    yield from (found.choice(k).module.data for k in range(len(found)))
    view = module_from_bytes(module)
    for pair in pairs(view, target):
        stacks = [stack.written for stack in pair.scan_residuals]
        given = [(i.name, index) for i, index in RecipeTable(pair, collectives=True).given.values()]
        kept = [(), given, *((one,) for one in given[:: max(len(given) // 3, 1)])]
        every = [(tuple(stacks), tuple(some)) for some in kept]
        for gone, some in dict.fromkeys([*(((k,), ()) for k in stacks), *every]):
            try:
                edit = recipe(view, pair, record(pair, *gone, kept=some))
            except PlanMismatchError:
                continue  # what cannot be made again is chosen by no choice
            yield with_loops_changed(module, [edit])


def whiles(module):
    """How many loops a module has, in any computation."""
    return sum(i.opcode == "while" for c in module.computations for i in c.instructions)


@pytest.mark.optimized
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_choice_is_right(name):
    """For the referee; of the least residuals, or else of the last change, in a real run too."""
    module = captured(name)
    modules = list(dict.fromkeys(changed(module)))
    assert modules
    for data in modules:
        check_rewrite(module, data, "cpu", loops=True)
        check_executable(data, "cpu")
    arguments = PROGRAMS[name]()[1]
    found = choices(module, "cpu")
    data = found.choice(len(found) - 1).module.data if len(found) else modules[-1]
    compiled = compile_rewritten(lowered(name), lambda _: data)
    assert_same(expected(name), compiled(*arguments))


@pytest.mark.cuda13
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_referee_agrees_on_a_gpu(name):
    step, arguments = PROGRAMS[name]()
    module = xla_schedule(jax.jit(step).lower(*on_h100(jax.tree.map(jnp.asarray, arguments))))
    for data in dict.fromkeys(changed(module, "cuda")):
        check_rewrite(module, data, "cuda", loops=True)
        check_executable(data, "cuda")


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_is_read_however_it_is_written(name):
    (pair,) = pairs(module_from_bytes(captured(name)), "cpu")
    assert len(pair.scan_residuals) == 1 and not pair.refused


@pytest.mark.parametrize("name", CALLED)
def test_loops_in_calls_are_pairs(name):
    module = module_from_bytes(captured(name))
    found = pairs(module, "cpu")
    assert found and all(loop.site.opcode == "call" for p in found for loop in (p.writer, p.reader))


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_an_array_is_had_again_by_undoing_updates(name):
    """Of the arrays of all iterations one stays; checkpoints alone leave 0.7 of XLA's total."""
    found = choices(captured(name), "cpu")
    least = min(found.choice(k).total for k in range(len(found)))
    assert least < 0.51 * found.total


@pytest.mark.parametrize(
    ("name", "part"), [("layers_of_turns", 0.35), ("loops_that_branches_run", 0.35)]
)
def test_a_loop_within_runs_again(name, part):
    """The arrays of all its turns are there in one iteration at a time."""
    found = choices(captured(name), "cpu")
    best = min((found.choice(k) for k in range(len(found))), key=lambda choice: choice.total)
    assert best.total < part * found.total and whiles(best.module) > whiles(found.module)


@pytest.mark.cuda13
def test_an_update_that_runs_beside_other_work_is_undone():
    step, arguments = PROGRAMS["rows_that_turns_of_layers_write"]()
    module = xla_schedule(jax.jit(step).lower(*on_h100(arguments)))
    plan = plan_module(module, PlanOptions(step_limit=100, max_overhead=0.4), target="cuda")
    assert plan.proposed and not plan.refused


def test_a_loop_of_unknown_turns_does_not_run_again():
    found = choices(captured("a_search_of_unknown_turns"), "cpu")
    made = [found.choice(k).module for k in range(len(found))]
    assert made and all(whiles(module) == whiles(found.module) for module in made)


@pytest.mark.cuda13
@pytest.mark.optimized
def test_a_cpu_gets_what_a_gpu_gets():
    step, arguments = PROGRAMS["called_sums"]()
    on_gpu = olla_xla.plan(step).lower(*on_h100(arguments)).compile().plan.predicted_bytes
    compiled = olla_xla.plan(step).lower(*arguments).compile()
    assert not compiled.reason and compiled.plan.loops
    assert compiled.check().assigned_bytes == compiled.plan.predicted_bytes
    assert compiled.plan.predicted_bytes < 1.01 * on_gpu
    assert_same(expected("called_sums"), compiled(*arguments))
    with pytest.raises(BudgetError) as refused:
        olla_xla.plan(step, memory_budget=1).lower(*arguments).compile()
    assert refused.value.least_bytes <= compiled.plan.predicted_bytes


def small_sums(x, ys):
    """In a function of both, LLVM may fuse a product that is no longer written to a stack."""

    def body(c, y):
        p = x * y
        return jnp.cos(c + p), p

    c, p = jax.lax.scan(body, jnp.zeros_like(x), ys)
    return jax.lax.scan(lambda d, q: (jnp.sin(d + q), None), c, p)[0]


def products_then_sums(x, ys):
    """Neither function has both a product and a sum; with a copy in it the second has."""
    c, p = jax.lax.scan(lambda c, y: (jnp.cos(c), x * y), x, ys)
    return jax.lax.scan(lambda d, q: (d + q, None), c, p)[0]


@pytest.mark.parametrize("function", [small_sums, products_then_sums])
def test_small_products_stay_apart_from_sums(function):
    for shape, found in (((4,), 0), ((96, 96), 1)):
        x, ys = jnp.ones(shape), jnp.ones((9, *shape))
        module = xla_schedule(jax.jit(function).lower(x, ys))
        assert len(pairs(module_from_bytes(module), "cpu")) == found


def test_the_referee_refuses_small_sums_of_products_in_calls(monkeypatch):
    monkeypatch.setattr(loop_pairs, "may_depend_on_others", lambda function: False)
    x, ys = jnp.ones(()), jnp.ones((9,))
    module = xla_schedule(jax.jit(small_sums).lower(x, ys))
    modules = list(dict.fromkeys(changed(module)))
    assert modules
    for data in modules:
        with pytest.raises(CheckError):
            check_rewrite(module, data, "cpu", loops=True)


def wrapped(written, read, turns):
    """Two loops whose indices wrap around, or may: what a turn reads is not what one wrote."""

    def step(a, y):
        def write(i, c):
            z = jnp.tanh(c[0] @ a)
            put = functools.partial(jax.lax.dynamic_update_index_in_dim, axis=0)
            return z, put(c[1], z * 2, written(i))

        def turn(i, c):
            take = functools.partial(jax.lax.dynamic_index_in_dim, keepdims=False)
            return jnp.tanh(c @ a) + take(s, read(i))

        stack = jnp.zeros((turns, *y.shape), y.dtype)
        y, s = jax.lax.fori_loop(0, turns, write, (y, stack))
        return jax.lax.fori_loop(0, turns, turn, y)

    return step


@pytest.mark.cuda13
@pytest.mark.parametrize(
    ("written", "turns"),
    [
        (lambda i: i.astype(jnp.int8), 200),
        (lambda i: i.astype(jnp.uint8), 300),
        (lambda i: (i.astype(jnp.int8) + 100).astype(jnp.int32) - 100, 40),
        (lambda i: jnp.minimum(i, 5), 9),
        (lambda i: i % 8, 9),
        (lambda i: jnp.where(i < 8, i, 0), 9),
        (lambda i: i - 8, 9),
    ],
)
def test_an_index_that_is_not_the_turns_own_is_refused(written, turns):
    _, (a, y) = PROGRAMS["two_readers"]()
    for step in (wrapped(written, lambda i: i, turns), wrapped(lambda i: i, written, turns)):
        module = xla_schedule(jax.jit(step).lower(a, y))
        assert not [
            s for pair in pairs(module_from_bytes(module), "cpu") for s in pair.scan_residuals
        ]
        arguments = on_h100((a, y))
        module = xla_schedule(jax.jit(step).lower(*arguments))
        assert not [
            s for pair in pairs(module_from_bytes(module), "cuda") for s in pair.scan_residuals
        ]


@pytest.mark.parametrize(
    ("name", "overhead"),
    [("cond", 0.5), ("switch_on_several_arguments", 2.0), ("counted_optimizer", 0.5)],
)
@pytest.mark.optimized
def test_a_plan_is_right_and_nothing_is_refused(name, overhead):
    step, arguments = PROGRAMS[name]()
    planned = olla_xla.plan(step, step_limit=1_000, max_overhead=overhead)
    with collected() as refused:
        compiled = planned.lower(*arguments).compile()
    assert compiled.plan.refused == 0
    assert not refused and "object" not in compiled.reason
    assert_same(expected(name), compiled(*arguments))


def test_more_time_never_takes_more_memory():
    """Arrays that are joined within a larger allowance are no residuals that could be dropped."""
    some, more = (
        plan_module(
            captured("called_of_integers"),
            PlanOptions(step_limit=100, max_overhead=part),
            target="cpu",
        )
        for part in (0.2, 0.35)
    )
    assert more.predicted_bytes <= some.predicted_bytes < 0.9 * some.xla_predicted_bytes


@pytest.mark.refused
def test_a_refused_choice_is_counted(monkeypatch, caplog):
    def refuse(*args, **kwargs):
        raise CheckError("another result")

    monkeypatch.setattr(selection, "check_rewrite", refuse)
    caplog.set_level("INFO", "olla_xla")
    step, arguments = PROGRAMS["transforms"]()
    with collected() as refused, collected() as also:
        compiled = olla_xla.plan(step, step_limit=200, max_overhead=0.5).lower(*arguments).compile()
    assert refused == also and {r.rpartition(": ")[2] for r in refused} == {"another result"}
    assert compiled.plan.refused == len(refused)
    assert f"{len(refused)} of {compiled.plan.proposed} choices" in compiled.plan.summary()
    assert refused[0] in caplog.text
    with collected() as later:
        pass
    assert not later


@pytest.mark.optimized
def test_integers_of_two_types_are_not_one_value():
    with jax.enable_x64(True):
        step, (a, y, i, _) = PROGRAMS["integers_of_two_types"]()
        arguments = a, y, i, jnp.int64(5)
        traced = jax.jit(step).lower(*arguments)
        module = xla_schedule(traced)
        expected = traced.compile()(*arguments)
        modules = list(changed(module))
        assert modules
        for data in modules:
            check_rewrite(module, data, "cpu", loops=True)
        compiled = compile_rewritten(traced, lambda _: modules[-1])
        assert_same(expected, compiled(*arguments))


@pytest.mark.optimized
def test_loops_that_count_in_two_types_are_no_pair():
    turns = 9

    def step(a, y):
        def write(i, c):
            z = jnp.tanh(c[0] @ a)
            put = functools.partial(jax.lax.dynamic_update_index_in_dim, axis=0)
            return z, put(c[1], z * jnp.sin(i.astype(z.dtype)), i, allow_negative_indices=False)

        def read(i, c):
            take = functools.partial(jax.lax.dynamic_index_in_dim, keepdims=False)
            return jnp.tanh(c @ a) + take(s, i, allow_negative_indices=False)

        zeros = jnp.zeros((turns, *y.shape), y.dtype)
        y, s = jax.lax.fori_loop(jnp.int32(0), jnp.int32(turns), write, (y, zeros))
        return jax.lax.fori_loop(jnp.int64(0), jnp.int64(turns), read, y)

    with jax.enable_x64(True):
        _, (a, y) = PROGRAMS["two_readers"]()
        traced = jax.jit(step).lower(a, y)
        module = xla_schedule(traced)
        expected = traced.compile()(a, y)
        for data in changed(module):  # none today: the turn of one is no index of the other
            check_rewrite(module, data, "cpu", loops=True)
            compiled = compile_rewritten(traced, lambda module, data=data: data)
            assert_same(expected, compiled(a, y))


@pytest.mark.parametrize(("ask", "found"), [(False, 1), (True, 0)])
def test_a_loop_with_a_callback_that_gives_results_stays(ask, found):
    """What it gives may differ each time, so the check follows no iterations."""

    def loss(xs):
        def body(c, given):
            t, x = given
            row = jnp.tanh(jnp.sin(c).sum(0) @ x)
            if ask:
                least = jax.lax.stop_gradient(row)[0, 0]
                least = jax.experimental.io_callback(lambda v: v, least, least)
                row = jnp.maximum(row, least)
            return jax.lax.dynamic_update_index_in_dim(c, row, t, 0), None

        start = jnp.zeros(xs.shape)
        return jnp.sin(jax.lax.scan(body, start, (jnp.arange(len(xs)), xs))[0]).sum()

    module = xla_schedule(jax.jit(jax.grad(loss)).lower(jnp.ones((9, 128, 128))))
    assert len(pairs(module_from_bytes(module), "cpu")) == found
