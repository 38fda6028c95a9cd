"""Buffers of CPU executables in places of our own: real runs, the referee, what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from benchmarks.relocation.compiled import compile_with_offsets
from benchmarks.relocation.executable import CpuExecutable
from benchmarks.relocation.referee import Area, Part, Step, check_relocation
from benchmarks.relocation.slices import OffsetsError, relocate
from hlo.module import HloError
from hlo.wire import Message, read_varint, varint
from tests.support.steps import STEPS, arrays, assert_same, plan


def descended(loss, state):
    """A step of gradient descent with momentum: the momenta are dead memory until then."""
    weights, momenta = state
    value, gradients = jax.value_and_grad(loss)(weights)
    momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
    weights = [w - 0.1 * m for w, m in zip(weights, momenta, strict=True)]
    return (weights, momenta), value


def layers(state, x):
    def loss(weights):
        h = x
        for w in weights:
            h = jax.nn.relu(h @ w)
        return jnp.mean(h**2)

    return descended(loss, state)


def convolutions(state, x):
    def loss(weights):
        h = x
        for k in weights[:3]:
            h = jax.nn.relu(
                jax.lax.conv_general_dilated(
                    h, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            )
        h = h.reshape(len(h), -1)
        for w in weights[3:]:
            h = jax.nn.relu(h @ w)
        return jnp.mean(h**2)

    return descended(loss, state)


def normal(*shapes):
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(k, s) / 16 for k, s in zip(keys, shapes, strict=True)]


def arguments(shapes, batch):
    return (normal(*shapes), [jnp.zeros(s) for s in shapes]), normal(batch)[0]


def layer_arguments():
    return arguments([(256, 512), (512, 512), (512, 512), (512, 64)], (128, 256))


def convolution_arguments():
    kernels = [(3, 3, 3, 32), (3, 3, 32, 32), (3, 3, 32, 32)]
    return arguments([*kernels, (512, 512), (512, 512), (512, 10)], (16, 32, 32, 3))


CASES = {"layers": (layers, layer_arguments), "convolutions": (convolutions, convolution_arguments)}


def serialized(function, *args, **kwargs):
    compiled = jax.jit(function, **kwargs).lower(*args).compile()
    return compiled.runtime_executable().serialize()


@pytest.mark.parametrize("name", CASES)
def test_steps_are_identical_bit_for_bit_and_smaller(name):
    function, make = CASES[name]
    state, batch = make()
    moved = compile_with_offsets(plan(function, donate_argnums=0), state, batch, time_limit=2)
    assert moved.relocation is not None, moved.reason
    assert moved.total_bytes < moved.planned_bytes
    assert moved.relocation.hosted
    moved.verify(state, batch, steps=2)
    state, other = make()[0], make()[0]
    for _ in range(5):  # donated each time
        state, value = moved(state, batch)
        other, expected = moved.planned(other, batch)
        assert_same((other, expected), (state, value))


@pytest.mark.parametrize("name", STEPS)
def test_models_are_identical_whatever_moved(name):
    step, shapes, options = STEPS[name]()
    data = compile_with_offsets(plan(step, **options), *shapes, time_limit=2)
    args = arrays(shapes)
    expected = jax.jit(step, **options)(*jax.tree.map(jnp.copy, args))
    assert_same(expected, data(*jax.tree.map(jnp.copy, args)))
    assert (data.total_bytes < data.planned_bytes) == (data.relocation is not None)
    assert (data.relocation is None) == bool(data.reason)


def test_xla_counts_what_was_placed():
    state, batch = layer_arguments()
    moved = compile_with_offsets(plan(layers, donate_argnums=0), state, batch, time_limit=2)
    stats = moved.compiled.memory_analysis()
    assert stats.temp_size_in_bytes == moved.relocation.temp_bytes
    assert moved.relocation.bound_bytes <= moved.relocation.temp_bytes


def test_arguments_that_are_not_donated_at_run_time_are_kept():
    state, batch = layer_arguments()
    moved = compile_with_offsets(plan(layers, donate_argnums=0), state, batch, time_limit=2)
    views = jax.tree.map(np.asarray, state)  # holds the memory, so that it cannot be given away
    before = jax.tree.map(np.copy, views)
    moved(state, batch)
    assert_same(before, views)


def test_unchanged_places_give_the_same_bytes():
    state, batch = layer_arguments()
    data = serialized(layers, state, batch, donate_argnums=0)
    executable = CpuExecutable(data)
    places = [[a.slice for a in t.accesses] for t in executable.thunks]
    again = CpuExecutable(executable.relocated(places, {}, {}))
    assert again.thunks == executable.thunks
    assert again.assignment == executable.assignment


def test_loops_keep_their_places():
    def loop(x):
        return jax.lax.fori_loop(0, x.shape[0], lambda i, y: y @ y + i, x)

    step = plan(loop, donate_argnums=0)
    moved = compile_with_offsets(step, jnp.ones((256, 256)))
    assert moved.relocation is None and "keeps its place" in moved.reason
    assert moved.compiled is moved.planned


def test_unknown_fields_are_refused():
    state, batch = layer_arguments()
    data = serialized(layers, state, batch, donate_argnums=0)
    length, start = read_varint(data, 0)
    outer = Message(data[start + length :])
    extra = varint(99 << 3) + varint(1)
    outer.set_blob(1, outer.blob(1) + extra)
    with pytest.raises(HloError, match=r"not known: \[99\]"):
        CpuExecutable(data[: start + length] + outer.encode())
    for broken in (b"", b"\x05hello", data[:-7], data[: len(data) // 2]):
        with pytest.raises(HloError):
            CpuExecutable(broken)


@pytest.mark.quick
def test_only_planned_functions():
    with pytest.raises(olla_xla.InputError, match=r"olla_xla\.plan"):
        compile_with_offsets(jax.jit(layers), *layer_arguments())


def test_a_step_without_temporaries_says_why():
    data = serialized(lambda x: x + 1, jnp.ones(8))
    with pytest.raises(OffsetsError, match="0 temporary allocations"):
        relocate(CpuExecutable(data))


# The referee, on a program of three steps: a argument, t temporary, o output.

AREAS = {0: Area(256, filled=True), 1: Area(512), 2: Area(256, kept=True)}


def part(area, offset, *, reads=False, writes=False, size=128):
    return Part(area, offset, size, reads, writes)


PROGRAM = [
    Step("one", (part(0, 0, reads=True), part(1, 0, writes=True))),
    Step("two", (part(0, 128, reads=True), part(1, 128, writes=True))),
    Step("three", (part(1, 0, reads=True), part(1, 128, reads=True), part(2, 0, writes=True))),
    Step("four", (part(2, 0, reads=True), part(2, 128, writes=True))),
]


def changed(step, index, **values):
    steps = list(PROGRAM)
    parts = list(steps[step].parts)
    parts[index] = dataclasses.replace(parts[index], **values)
    steps[step] = Step(steps[step].name, tuple(parts))
    return steps


def both(first, second, **values):
    """A write and the read of it, moved together."""
    steps = changed(*first, **values)
    parts = list(steps[second[0]].parts)
    parts[second[1]] = dataclasses.replace(parts[second[1]], **values)
    steps[second[0]] = Step(steps[second[0]].name, tuple(parts))
    return steps


def judge(after, sizes=None):
    check_relocation(PROGRAM, after, AREAS, sizes or {})


@pytest.mark.quick
def test_the_referee_accepts_what_moves_together():
    judge(PROGRAM)
    judge(both((0, 1), (2, 0), offset=256))
    judge(both((1, 1), (2, 1), area=2, offset=128))  # the output's memory, before it is written
    judge(PROGRAM, {1: 256})


@pytest.mark.parametrize(
    "after, sizes, message",
    [
        (changed(0, 1, offset=256), {}, "three would read|before they are written"),
        (both((0, 1), (2, 0), offset=128), {}, "three would read"),  # overwritten by two
        (both((1, 1), (2, 1), area=2, offset=0), {}, "three overlap otherwise"),
        (both((0, 1), (2, 0), area=0, offset=0), {}, "overlap otherwise"),
        (both((0, 1), (2, 0), area=0, offset=128), {}, "two would read"),  # the argument is lost
        (both((0, 1), (2, 0), offset=257), {}, "not aligned"),
        (both((0, 1), (2, 0), offset=448), {}, "leaves allocation"),
        (changed(3, 1, area=1, offset=256), {}, "an output"),
        (changed(0, 1, size=64), {}, "another size"),
        (PROGRAM, {1: 255}, "leaves allocation"),
        (PROGRAM, {2: 512}, "must keep their sizes"),
        (PROGRAM[:-1], {}, "4 steps became 3"),
    ],
)
@pytest.mark.quick
def test_the_referee_names_what_is_wrong(after, sizes, message):
    with pytest.raises(olla_xla.CheckError, match=message):
        judge(after, sizes)
