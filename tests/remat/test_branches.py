"""Residuals that are made in a `cond` or `switch` of a scanned body: the branch runs again."""

import jax
import jax.numpy as jnp
import pytest

from hlo.module import parse_module_proto
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import CheckError
from tests.remat.test_loop_programs import captured, changed, choices
from tests.support.compiles import on_h100, xla_schedule
from tests.support.rates import priced_choices

LAYERS, WIDTH = 12, 128


def gradient(predicate, checkpointed=False):
    """Of layers with a cheap and a dear branch, and the arguments."""

    def loss(ws, y):
        def body(y, x):
            t, w = x
            dear, cheap = (lambda y: jnp.tanh(jnp.tanh(y @ w) @ w)), (lambda y: jnp.sin(y @ w))
            return jax.lax.cond(predicate(t, y), dear, cheap, y), None

        body = jax.checkpoint(body) if checkpointed else body
        return (jax.lax.scan(body, y, (jnp.arange(LAYERS), ws))[0] ** 2).sum()

    return jax.grad(loss), (jnp.zeros((LAYERS, WIDTH, WIDTH)), jnp.zeros((1024, WIDTH)))


def totals(predicate):
    """Bytes as XLA has it, with the least residuals, and with a checkpoint by hand."""
    step, arguments = gradient(predicate)
    module = xla_schedule(jax.jit(step).lower(*on_h100(arguments)))
    found = priced_choices(module, "cuda")
    least = found.choice(found.thin - 1)
    check_rewrite(module, least.module.data, "cuda", loops=True)
    check_executable(least.module.data, "cuda")
    step, arguments = gradient(predicate, checkpointed=True)
    module = xla_schedule(jax.jit(step).lower(*on_h100(arguments)))
    by_hand = priced_choices(module, "cuda")
    return found.total, least.total, by_hand.total


@pytest.mark.cuda13
@pytest.mark.parametrize("predicate", [lambda t, y: y[0, 0] > 0, lambda t, y: t % 3 == 0])
def test_a_gpu_keeps_what_a_checkpoint_by_hand_keeps(predicate):
    before, least, by_hand = totals(predicate)
    assert least < 1.01 * by_hand < 0.6 * before


def computations(proto):
    return {c.id: c for c in proto.computations}


def copied_conditionals(proto):
    return [
        i
        for c in proto.computations
        for i in c.instructions
        if i.opcode == "conditional" and ".again" in i.name
    ]


def swapped_branches(proto, i):
    """Another branch runs. No two that are neighbours give the same."""
    first, second, *others = i.called_computation_ids
    i.called_computation_ids[:] = [second, first, *others]


def another_operand(proto, i):
    """A branch is given an array of the same shape that is not its own."""
    (body,) = (c for c in proto.computations if any(k is i for k in c.instructions))
    by_id = {k.id: k for k in body.instructions}
    number = next(
        k
        for k, c in enumerate(map(computations(proto).get, i.called_computation_ids))
        if any(o.opcode == "get-tuple-element" and not o.tuple_index for o in c.instructions)
    )
    given = by_id[i.operand_ids[1 + number]]
    own = by_id[given.operand_ids[0]]
    given.operand_ids[0] = next(
        k.id
        for k in body.instructions
        if k.shape == own.shape and k.id != own.id and k.opcode == "get-tuple-element"
    )


def another_predicate(proto, i):
    """What decides is the counter."""
    (body,) = (c for c in proto.computations if any(k is i for k in c.instructions))
    counter = next(
        k for k in body.instructions if k.opcode == "get-tuple-element" and not k.tuple_index
    )
    i.operand_ids[0] = counter.id


def swapped_results(proto, i):
    """A branch gives its results in another order."""
    branch = computations(proto)[i.called_computation_ids[0]]
    root = next(k for k in branch.instructions if k.id == branch.root_id)
    root.operand_ids[:] = root.operand_ids[::-1]


@pytest.mark.parametrize(
    "mutate", [swapped_branches, another_operand, another_predicate, swapped_results]
)
@pytest.mark.optimized
def test_the_referee_refuses_another_branch(mutate):
    """In each change of a program's loops that runs branches again."""
    module, refused = captured("switch_on_the_carry"), 0
    for data in dict.fromkeys(changed(module)):
        for k in range(len(copied_conditionals(parse_module_proto(data)))):
            proto = parse_module_proto(data)
            before = proto.SerializeToString()
            try:
                mutate(proto, copied_conditionals(proto)[k])
            except StopIteration:
                continue  # there is no such array
            if proto.SerializeToString() != before:
                with pytest.raises(CheckError):
                    check_rewrite(module, proto.SerializeToString(), "cpu", loops=True)
                refused += 1
    assert refused


def test_a_branch_computes_only_what_is_read():
    """Forwards without residuals, and backwards without the carry."""
    found = choices(captured("cond"), "cpu")
    module = found.choice(found.thin - 1).module
    results = {
        i.name: len(i.shape.elements)
        for c in module.control_computations
        for i in c.instructions
        if i.opcode == "conditional"
    }
    again = {name: count for name, count in results.items() if ".again" in name}
    assert again and all(results[name.partition(".again")[0]] == 1 for name in again)
    assert set(again.values()) == {1}
