"""Loops that do without stacks: which can go, what is made instead, the same bits in real runs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from benchmarks.rewritten import compile_rewritten
from hlo.cpu_code import CodeGenerator, code_generator
from hlo.module import module_from_bytes
from olla_xla import planner
from olla_xla.check.executable import (
    check_executable,
    check_rewrite,
    element_expressions,
    iterations,
    results_digest,
    verdict,
)
from olla_xla.errors import CheckError, PlanMismatchError
from olla_xla.memory.kernels import leaves
from olla_xla.problem import plan as plan_file
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.loops import residual_choices
from olla_xla.remat.loops.counted_loops import instructions_run
from olla_xla.remat.loops.pairs import pairs
from olla_xla.remat.loops.recipe import edits, recipe
from olla_xla.remat.loops.selection import is_right
from tests.support.compiles import QUICK, on_h100, xla_schedule
from tests.support.loops import STEPS
from tests.support.plugins import CUDA
from tests.support.rates import priced_choices
from tests.support.rewrites import compiled_quickly, record, with_loops_changed
from tests.support.steps import assert_same

pytestmark = [
    pytest.mark.optimized,
    pytest.mark.slow,
]


@functools.cache
def lowered(name, target="cpu"):
    step, arguments = STEPS[name]()
    if target == "cuda":
        arguments = on_h100(arguments)
    return jax.jit(step).lower(*arguments)


@functools.cache
def scheduled(name, target="cpu"):
    return xla_schedule(lowered(name, target))


@functools.cache
def expected(name, quick=False):
    compiled = lowered(name).compile(compiler_options=QUICK if quick else None)
    return compiled(*STEPS[name]()[1])


@functools.cache
def rungs(name, target):
    found = priced_choices(scheduled(name, target), target)
    return [found.choice(k) for k in range(len(found))]


def test_loops_too_long_for_the_check_stay_as_they_are(monkeypatch):
    """No choice is offered that the check, which follows every iteration, could only refuse."""
    module = module_from_bytes(scheduled("gated"))
    run = instructions_run(module)
    steps = iterations.Loops()
    monkeypatch.setattr(element_expressions, "Loops", lambda: steps)
    monkeypatch.setattr(verdict, "_DIGESTS", {})
    results_digest(scheduled("gated"), "cpu", loops=True)
    assert 0 < steps._steps < run
    monkeypatch.setattr(residual_choices, "_MOST_RUN", run)
    assert len(priced_choices(module))
    monkeypatch.setattr(residual_choices, "_MOST_RUN", run - 1)
    assert not len(priced_choices(module))


@pytest.mark.parametrize("target", ["cpu", CUDA])
@pytest.mark.parametrize("name", STEPS)
def test_every_stack_of_a_scan_is_known(name, target):
    (pair,) = pairs(module_from_bytes(scheduled(name, target)), target)
    assert pair.writer.iterations == pair.reader.iterations > 1
    assert pair.scan_residuals and len(pair.refused) <= (
        target == "cuda"
    )  # attention has one of two slices


@pytest.mark.parametrize("target", ["cpu", CUDA])
@pytest.mark.parametrize("name", STEPS)
def test_the_referee_follows_each_choice(name, target):
    before = scheduled(name, target)
    found = rungs(name, target)
    assert found
    for choice in found:
        check_rewrite(before, choice.module.data, target, loops=True)
        check_executable(choice.module.data, target)


@pytest.mark.parametrize("name", STEPS)
def test_results_stay_bit_identical(name):
    """Of what drops most, in XLA's own code; of each residual alone see below."""
    data = rungs(name, "cpu")[-1].module.data
    compiled = compile_rewritten(lowered(name), lambda _: data)
    assert_same(expected(name), compiled(*STEPS[name]()[1]))


def test_each_stack_alone_can_go_bit_identically():
    """Apart from what LLVM's optimization rounds: which of them go together, it sees above."""
    name = "gated"
    before = scheduled(name)
    view = module_from_bytes(before)
    (pair,) = pairs(view, "cpu")
    gone = 0
    for k, stack in enumerate(pair.scan_residuals):
        try:
            edit = recipe(view, pair, record(pair, stack.written))
        except PlanMismatchError:
            continue
        gone += 1
        after = with_loops_changed(before, [edit])
        check_rewrite(before, after, "cpu", loops=True)
        if k % 3 == 0:
            compiled = compiled_quickly(lowered(name), after)
            assert_same(expected(name, quick=True), compiled(*STEPS[name]()[1]))
    assert gone > len(pair.scan_residuals) / 2


def test_a_stack_that_is_transposed_between_the_loops_can_go():
    (pair,) = pairs(module_from_bytes(scheduled("moved")), "cpu")
    assert any(stack.moves for stack in pair.scan_residuals)
    last = rungs("moved", "cpu")[-1]
    moved = {stack.written for stack in pair.scan_residuals if stack.moves}
    assert moved <= {k for record in last.records for k in record.dropped}


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_a_carry_gets_a_stack_where_others_can_be_made_of_it(target):
    name = "lstm"
    view = module_from_bytes(scheduled(name, target))
    first = rungs(name, target)[0]  # the other tests run it
    assert any(
        isinstance(new, int) for edit in edits(view, first.records, target) for new in edit.added
    )


@pytest.mark.parametrize("target", ["cpu", CUDA])
@pytest.mark.parametrize("name", ["gated", "attention", "moved"])
def test_what_takes_no_longer_goes_by_default(name, target):
    module = scheduled(name, target)
    plan, kept = (
        planner.plan_module(module, PlanOptions(step_limit=2_000, loops=loops), target=target)
        for loops in (True, False)
    )
    assert not kept.loops and plan.added_seconds <= 0
    assert plan.predicted_bytes <= kept.predicted_bytes
    if plan.loops:
        assert plan.predicted_bytes < plan.xla_predicted_bytes == kept.xla_predicted_bytes


def test_a_plan_by_default_is_bit_identical():
    step, arguments = STEPS["doubled"]()
    compiled = olla_xla.plan(step, step_limit=2_000).lower(*arguments).compile()
    assert compiled.plan.loops
    assert_same(expected("doubled"), compiled(*arguments))


def wrong(edit):
    """Edits that make something else."""
    reversed_place = (-edit.place[0], edit.place[1] if edit.place[0] > 0 else 0)
    yield "place", dataclasses.replace(edit, place=reversed_place)
    yield "turn", dataclasses.replace(edit, iteration=(edit.iteration[0], edit.iteration[1] - 1))
    for k, made in enumerate(edit.made):
        for o, (where, given) in enumerate(made.operands):
            if given.whole and not given.made:
                others = [g for m in edit.made for _, g in m.operands]
                others = [g for g in others if g.whole == given.whole and not g.made and g != given]
                if others:
                    operands = list(made.operands)
                    operands[o] = where, others[0]
                    changed = list(edit.made)
                    changed[k] = dataclasses.replace(made, operands=tuple(operands))
                    yield "stack", dataclasses.replace(edit, made=tuple(changed))
                    return


@pytest.mark.parametrize("name", ["gated", "attention", "lstm"])
def test_the_referee_objects_to_what_is_made_from_something_else(name):
    before = scheduled(name)
    view = module_from_bytes(before)
    found = [r for r in rungs(name, "cpu") if not any(record.every for record in r.records)][-1]
    (edit,) = edits(view, found.records, "cpu")
    objected = set()
    for kind, bad in wrong(edit):
        after = with_loops_changed(before, [bad])
        try:
            check_rewrite(before, after, "cpu", loops=True)
        except CheckError:
            objected.add(kind)
            continue
        # Nothing that is made there depends on it, then.
        compiled = compile_rewritten(lowered(name), lambda module, data=after: data)
        assert_same(expected(name), compiled(*STEPS[name]()[1]))
    assert "place" in objected


@pytest.mark.parametrize("name", ["gated", "lstm"])
def test_a_planned_step_does_without_stacks(name):
    step, arguments = STEPS[name]()
    planned = olla_xla.plan(step, max_overhead=1.0, loops=True, time_limit=20, step_limit=2_000)
    compiled = planned.lower(*arguments).compile()
    plan = compiled.plan
    assert plan.loops and plan.predicted_bytes < plan.xla_bytes
    assert_same(expected(name), compiled(*arguments))
    again = plan_file.loads(plan_file.dumps(plan))
    assert again == plan
    module = scheduled(name)
    after = planner.apply_plan(module, again)
    assert results_digest(after, "cpu", loops=True) == results_digest(module, "cpu", loops=True)


def test_a_budget_is_met_by_loops():
    step, arguments = STEPS["gated"]()
    least = min(rungs("gated", "cpu"), key=lambda r: r.total)
    planned = olla_xla.plan(
        step, memory_budget=least.total, loops=True, time_limit=20, step_limit=2_000
    )
    compiled = planned.lower(*arguments).compile()
    assert compiled.plan.loops and compiled.plan.assigned_bytes <= least.total
    assert_same(expected("gated"), compiled(*arguments))


def test_the_same_choice_gives_the_same_module():
    first, second = rungs("attention", "cpu"), rungs.__wrapped__("attention", "cpu")
    assert [r.module.data for r in first] == [r.module.data for r in second]
    assert np.all(np.diff([len(k.dropped) for r in first for k in r.records if not k.every]) >= 0)


def test_of_several_steps_in_a_turn_the_first_carry_is_enough():
    view = module_from_bytes(scheduled("lstm_fourfold"))
    (pair,) = pairs(view, "cpu")
    last = rungs("lstm_fourfold", "cpu")[-1]  # other tests run it
    (edit,) = edits(view, last.records, "cpu")
    gone = {w for w, _ in edit.dropped}
    kept = [s.bytes for s in pair.scan_residuals if s.written not in gone]
    new = [pair.writer.start[k].shape.bytes for k in edit.added if isinstance(k, int)]
    carry = 2 * 7 * 19 * 4  # bytes: hidden state and cell
    assert sum(kept) + pair.writer.iterations * sum(new) == pair.writer.iterations * carry
    assert pair.writer.iterations == 3


def test_copies_keep_the_code_generator_of_what_they_copy():
    """XLA's CPU backend has two, which contract a * b + c or do not."""
    seen = set()
    for name in STEPS:
        for choice in rungs(name, "cpu")[-1:]:
            copies, before = (generators(data) for data in (choice.module.data, scheduled(name)))
            for copy, kind in copies.items():
                original, again, more = copy.partition(".again")
                if again and not more and original in before:
                    assert kind == before[original], (name, copy)
                    seen.add(kind)
    assert {CodeGenerator.TILES, CodeGenerator.LOOP} <= seen


ARITHMETIC = {"multiply", "divide", "tanh", "exponential", "sine", "cosine"}


def generators(module):
    """Name -> code generator, of each fusion of a module for a CPU that computes."""
    return {
        i.name: code_generator(i.called[0])
        for c in module_from_bytes(module).control_computations
        for i in c.instructions
        if i.opcode == "fusion" and any(k.opcode in ARITHMETIC for k in i.called[0].instructions)
    }


@pytest.mark.cuda13
def test_what_the_backward_loop_converts_itself_is_not_converted_again():
    module, found = module_from_bytes(scheduled("cast", "cuda")), rungs("cast", "cuda")
    (change,) = edits(module, found[-1].records, "cuda")
    own = {given.own for made in change.made for _, given in made.operands} - {""}
    assert own and all("convert" in name for name in own)
    assert not [made.name for made in change.made if "convert" in made.original]


def rotary(weights, angles, x):
    """A scan of layers whose queries and keys are rotated, as Llama's are."""
    batch, length, width = x.shape

    def rotated(y):
        y = y.reshape(batch, length, 8, 64)
        first, second = jnp.split(y, 2, -1)
        turned = jnp.concatenate([-second, first], -1)
        return y * angles[0][:, None] + turned * angles[1][:, None]

    def layer(x, w):
        q, k = rotated(x @ w["q"]), rotated(x @ w["k"])
        seen = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k), -1)
        return x + jnp.tanh(jnp.einsum("bhts,bshd->bthd", seen, k).reshape(x.shape) @ w["o"]), None

    def loss(weights):
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        y, _ = jax.lax.scan(jax.checkpoint(layer, policy=policy), x, weights)
        return (y.astype(jnp.float32) ** 2).mean()

    return jax.grad(loss)(weights)


@pytest.mark.cuda13
def test_a_copy_has_operands_in_the_order_of_its_original():
    """A copy's kernel is to have the memory of its original's, which is told by number."""
    weights = {name: jax.ShapeDtypeStruct((2, 512, 512), jnp.bfloat16) for name in "qko"}
    angles = (jax.ShapeDtypeStruct((512, 64), jnp.bfloat16),) * 2
    arguments = on_h100((weights, angles, jax.ShapeDtypeStruct((2, 512, 512), jnp.bfloat16)))
    module = module_from_bytes(xla_schedule(jax.jit(rotary).lower(*arguments)))
    choices = priced_choices(module, "cuda")
    before, compared = arrays_by_name(module), 0
    for k in range(len(choices)):
        for name, found in arrays_by_name(choices.choice(k).module).items():
            own = before.get(name.partition(".again")[0])
            if ".again" in name and own is not None and sorted(own) == sorted(found):
                assert own == found, name
                compared += len(set(own)) > 1
    assert compared


def arrays_by_name(module):
    """Fusion's name -> the bytes of each array that it reads and makes."""
    return {
        i.name: [source.shape.at(index).bytes for source, index in leaves(i)]
        for c in module.control_computations
        for i in c.instructions
        if i.opcode == "fusion"
    }


def dropped_out(weights, keys, x):
    """A scan of layers with dropout, whose products XLA:GPU sums where it puts what is kept."""

    def layer(x, parts):
        w, key = parts
        y = jnp.tanh(x @ w)
        return x + jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y / 0.9, 0), None

    def loss(weights):
        return (jax.lax.scan(layer, x, (weights, keys))[0] ** 2).mean()

    return jax.grad(loss)(weights)


@pytest.mark.cuda13
def test_what_is_summed_where_it_is_put_can_go_on_a_gpu():
    shapes = [((8, 256, 256), np.float32), ((8, 2), np.uint32), ((256, 256), np.float32)]
    arguments = on_h100(tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    module = module_from_bytes(xla_schedule(jax.jit(dropped_out).lower(*arguments)))
    summed = [
        i.name
        for c in module.control_computations
        for i in c.instructions
        if i.opcode == "fusion" and {"reduce", "dynamic-update-slice"} <= opcodes(i)
    ]
    assert summed, "the product is divided along what it sums"
    choices = priced_choices(module, "cuda")
    found = [choices.choice(k) for k in range(len(choices))]
    lowest = min(found, key=lambda choice: choice.total)
    assert is_right(choices, lowest)
    names = {i.name for c in lowest.module.control_computations for i in c.instructions}
    assert any(name.startswith(f"{one}.again") for one in summed for name in names)
    assert lowest.total < 0.85 * choices.total


def opcodes(fusion):
    return {k.opcode for k in fusion.called[0].instructions}
