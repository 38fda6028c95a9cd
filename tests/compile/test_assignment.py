"""XLA's buffer assignment against the plan: accepted as it is, refused when anything is damaged."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from hlo.buffer_assignment import assignment_from_bytes
from hlo.module import parse_module_proto
from olla_xla.compile.assignment import check_assignment, check_compiled, dump_options
from olla_xla.errors import CheckError
from tests.support.compiles import on_h100

WIDTH = 64


def step(weights, x):
    """Branches that can wait for each other, and a loop over which tensors stay live."""
    hidden = [jnp.tanh(x @ w) for w in weights]
    looped = jax.lax.fori_loop(0, 3, lambda _, a: jnp.sort(a, axis=0) + a @ a.T @ a, hidden[0])
    return [w * jnp.sum(h @ h.T + looped.sum()) for w, h in zip(weights, hidden, strict=True)]


ARGUMENTS = (
    [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * 6,
    jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32),
)


def compiled(arguments=ARGUMENTS, **kwargs):
    planned = olla_xla.plan(step, donate_argnums=0, time_limit=5, step_limit=300)
    return planned.lower(*arguments).compile(**kwargs)


@pytest.fixture(scope="module")
def case():
    """(module, XLA's assignment, plan) of a planned executable."""
    result = compiled()
    assert result.planned, result.reason
    module = result.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    data = result.memory_analysis().serialized_buffer_assignment_proto
    return module, assignment_from_bytes(data, parse_module_proto(module)), result.plan


def test_planned_executable_is_accepted():
    result = compiled()
    report = result.check()
    plan = result.plan
    assert report.tensors == sum(size > 0 for _, size in plan.offsets.values()) > 10
    assert report.as_predicted + report.elsewhere == report.tensors
    assert (report.elsewhere == 0) == (report.elsewhere_bytes == 0)
    assert report.assigned_bytes == plan.assigned_bytes < plan.xla_bytes
    assert report.peak_bytes == plan.peak_bytes
    assert abs(report.error) <= 0.005


def replaced(assignment, name, **changes):
    """The assignment with the place of one tensor changed, or without it."""
    assert any(a.name == name for home in assignment.allocations for a in home.assigned)

    def places(home):
        for a in home.assigned:
            if a.name != name:
                yield a
            elif changes:
                yield dataclasses.replace(a, **changes)

    homes = [dataclasses.replace(h, assigned=tuple(places(h))) for h in assignment.allocations]
    return dataclasses.replace(assignment, allocations=tuple(homes))


def heap(assignment):
    """The tensors of the largest allocation that holds temporaries, largest first."""
    home = max((a for a in assignment.allocations if a.is_temp), key=lambda a: a.size)
    return sorted(home.assigned, key=lambda a: -a.size)


def test_missing_tensor(case):
    module, assignment, plan = case
    name = heap(assignment)[0].name
    with pytest.raises(CheckError, match=f"no memory to tensor {name} "):
        check_assignment(module, replaced(assignment, name), plan)


def test_wrong_size(case):
    module, assignment, plan = case
    one = heap(assignment)[0]
    with pytest.raises(CheckError, match=f"tensor {one.name} has {one.size} bytes in the plan"):
        check_assignment(module, replaced(assignment, one.name, size=one.size - 1), plan)


def test_tensor_outside_its_allocation(case):
    module, assignment, plan = case
    name = heap(assignment)[0].name
    with pytest.raises(CheckError, match=f"tensor {name} at .* reaches beyond its allocation"):
        check_assignment(module, replaced(assignment, name, offset=2**30), plan)


def test_every_move_onto_a_live_tensor_is_noticed(case):
    """Each heap tensor in turn is moved to the start of the heap; some other one lives there."""
    module, assignment, plan = case
    refused = set()
    for one in heap(assignment):
        moved = replaced(assignment, one.name, offset=0)
        try:
            check_assignment(module, moved, plan)
        except CheckError as error:
            assert one.name in str(error) and "overlap" in str(error)
            refused.add(one.name)
    assert len(refused) >= 3


def test_tensors_of_a_loop_body_may_not_lie_on_what_lives_across_the_loop(case):
    module, assignment, plan = case
    (body,) = [n for n in plan.order if "body" in n or "region_0" in n]
    inside = set(plan.order[body])
    (sorted_copy,) = [a for a in heap(assignment) if a.name in inside and "sort" in a.name]
    # Moves a temporary of the loop body into an argument that is live throughout.
    without = replaced(assignment, sorted_copy.name)
    readonly = next(
        h
        for h in without.allocations
        if h.is_entry_parameter and not h.maybe_live_out and h.size == WIDTH * WIDTH * 4
    )
    onto = dataclasses.replace(
        readonly,
        assigned=(*readonly.assigned, dataclasses.replace(sorted_copy, offset=0)),
    )
    moved = dataclasses.replace(
        without,
        allocations=tuple(onto if h is readonly else h for h in without.allocations),
    )
    with pytest.raises(CheckError, match=f"{sorted_copy.name} .*overlap"):
        check_assignment(module, moved, plan)


def test_tensors_of_a_loop_body_may_share_memory_at_any_offset():
    def shrinking(weights, x):
        def body(_, a):
            scale = jnp.sort(a @ a.T, axis=0).sum(axis=1, keepdims=True)
            first = jnp.sort(a * scale, axis=0)
            second = jnp.sort(first, axis=1)
            third = jnp.sort(second + first, axis=0)
            return a + jnp.sort(third * first, axis=1) * second

        looped = jax.lax.fori_loop(0, 3, body, x)
        return [w * jnp.sum(w @ w.T + looped.sum()) for w in weights]

    planned = olla_xla.plan(shrinking, donate_argnums=0, time_limit=5, step_limit=300)
    tall = jax.ShapeDtypeStruct((4 * WIDTH, WIDTH), jnp.float32)
    assert planned.lower(ARGUMENTS[0], tall).compile().check().tensors > 10


def test_totals(case):
    module, assignment, plan = case
    wrong = dataclasses.replace(plan, assigned_bytes=plan.assigned_bytes - 1)
    with pytest.raises(CheckError, match=f"totals {plan.assigned_bytes} bytes"):
        check_assignment(module, assignment, wrong)


def test_peak(case):
    module, assignment, plan = case
    with pytest.raises(CheckError, match="claims a peak"):
        check_assignment(module, assignment, dataclasses.replace(plan, peak_bytes=1))


def test_order(case):
    module, assignment, plan = case
    entry, names = max(plan.order.items(), key=lambda item: len(item[1]))
    working = [n for n in names if "fusion" in n or "dot" in n]
    a, b = names.index(working[0]), names.index(working[-1])
    swapped = list(names)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    other = dataclasses.replace(plan, order={**plan.order, entry: tuple(swapped)})
    with pytest.raises(CheckError, match=f"runs {working[0]} where the plan runs {working[-1]}"):
        check_assignment(module, assignment, other)
    with pytest.raises(CheckError, match="no computation of the plan"):
        check_assignment(module, assignment, dataclasses.replace(plan, order={"elsewhere": names}))


def test_another_place_is_counted_not_refused(case):
    module, assignment, plan = case
    base = check_assignment(module, assignment, plan)
    temporaries = heap(assignment)
    name = temporaries[-1].name
    offset, size = plan.offsets[name]
    offsets = {**plan.offsets, name: (offset + 64, size)}
    report = check_assignment(module, assignment, dataclasses.replace(plan, offsets=offsets))
    assert report.as_predicted == base.as_predicted - 1
    assert report.elsewhere_bytes == base.elsewhere_bytes + size


def test_instructions_gone_are_listed(case):
    module, assignment, plan = case
    entry = max(plan.order, key=lambda n: len(plan.order[n]))
    more = (*plan.order[entry], "get-tuple-element.9999")
    report = check_assignment(
        module, assignment, dataclasses.replace(plan, order={**plan.order, entry: more})
    )
    assert report.dropped == ("get-tuple-element.9999",)
    working = next(n for n in plan.order[entry] if "fusion" in n)
    fewer = tuple(n for n in plan.order[entry] if n != working)
    report = check_assignment(
        module, assignment, dataclasses.replace(plan, order={**plan.order, entry: fewer})
    )
    assert report.added == (working,)


def test_results_that_a_fusion_no_longer_makes_are_listed(case):
    module, assignment, plan = case
    fusion = next(n for n, (_, size) in plan.offsets.items() if "fusion" in n and size)
    offsets = dict(plan.offsets)
    kept = offsets.pop(fusion)
    more = {f"{fusion}{{{k}}}": kept for k in range(2)}
    offsets |= more
    report = check_assignment(module, assignment, dataclasses.replace(plan, offsets=offsets))
    assert report.unread == tuple(more)
    assert report.tensors == check_assignment(module, assignment, plan).tensors - 1
    lost = {**plan.offsets, "copy.9999": kept}
    with pytest.raises(CheckError, match=r"no memory to tensor copy.9999"):
        check_assignment(module, assignment, dataclasses.replace(plan, offsets=lost))


@pytest.mark.cuda13
def test_xla_takes_a_result_without_its_stack_out_of_a_fusion(tmp_path):
    """On a GPU the gelu's fusion made two stacks; where one goes, so does its result."""
    width, layers = 256, 4

    def loss(weights, x):
        def layer(h, w):
            return h + jax.nn.gelu(h @ w[0]) @ w[1], None

        return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()

    def train(weights, x):
        return weights - 0.1 * jax.grad(loss)(weights, x)

    arguments = on_h100(
        (
            jax.ShapeDtypeStruct((layers, 2, width, width), jnp.float32),
            jax.ShapeDtypeStruct((64, 512, width), jnp.float32),
        )
    )
    planned = olla_xla.plan(train, donate_argnums=0, time_limit=5, step_limit=2000)
    result = planned.lower(*arguments).compile(compiler_options=dump_options(tmp_path))
    assert result.planned and result.plan.loops, result.reason
    report = check_compiled(result, result.plan, tmp_path)
    assert report.unread and report.tensors > 20


def test_what_xla_computes_elsewhere_is_left_out():
    """Its rematerialization, which runs after the scheduler, takes the original out."""
    result = compiled()
    module = result.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    data, plan = result.memory_analysis().serialized_buffer_assignment_proto, result.plan
    proto = parse_module_proto(module)
    taken = {a.name for h in assignment_from_bytes(data, proto).allocations for a in h.assigned}
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    one = next(i for i in entry.instructions if i.name in taken and i.opcode == "fusion")
    name, one.name = one.name, f"{one.name}.remat"
    moved = assignment_from_bytes(data, proto)
    report = check_assignment(proto.SerializeToString(), moved, plan)
    assert (report.added, report.dropped) == ((one.name,), (name,))
    one.name = "another"
    moved = assignment_from_bytes(data, proto)
    with pytest.raises(CheckError, match=f"no memory to .*{name}"):
        check_assignment(proto.SerializeToString(), moved, plan)


@pytest.mark.cuda13
def test_a_gpu_that_is_not_read_needs_a_dump(tmp_path, monkeypatch):
    arguments = on_h100(ARGUMENTS)
    (tmp_path / "empty").mkdir()
    result = compiled(arguments, compiler_options=dump_options(tmp_path))
    read = check_compiled(result, result.plan)
    assert read.assigned_bytes == result.plan.assigned_bytes and read.tensors > 10
    monkeypatch.setattr("olla_xla.compile.assignment.serialized_executable", lambda compiled: b"")
    assert check_compiled(result, result.plan, tmp_path) == dataclasses.replace(read, thunks=0)
    with pytest.raises(CheckError, match="dump_options"):
        check_compiled(result, result.plan)
    with pytest.raises(CheckError, match="no dump in"):
        check_compiled(result, result.plan, tmp_path / "empty")
