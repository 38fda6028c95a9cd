"""The referee of executables with buffers elsewhere: small programs, and faults in real ones."""

import dataclasses
import random

import jax
import jax.numpy as jnp
import pytest

from hlo import xla_pb2
from hlo.cpu_executable import CpuExecutable, CpuThunk
from hlo.gpu_thunks import Flow
from hlo.module import module_from_bytes
from hlo.slices import Access, Slice
from olla_xla.check.executable.relocation import Area, check_relocated, check_thunks
from olla_xla.errors import CheckError
from olla_xla.place.executable import relocate
from olla_xla.place.executable.buffers import allocations, buffers

ARGUMENT, TEMP, OUTPUT, SPARE = 0, 1, 2, 3
AREAS = {
    ARGUMENT: Area(256, filled=True, writable=False),
    TEMP: Area(512),
    OUTPUT: Area(256, kept=True),
    SPARE: Area(512),
}


def at(area, offset, size=128):
    return Slice(area, offset, size)


T0, T128, T256 = (at(TEMP, offset) for offset in (0, 128, 256))
TEST, END = at(TEMP, 128, 1), at(OUTPUT, 128)


class Program:
    """Thunks made one after the other, numbered from 0."""

    def __init__(self):
        self.count = 0

    def thunk(self, reads=(), writes=(), flow=Flow.NONE, inner=(), counted=False):
        accesses = [Access(s, True, False) for s in reads]
        accesses += [Access(s, False, True) for s in writes]
        self.count += 1
        number = self.count - 1
        return CpuThunk(
            f"t{number}", "kernel", tuple(accesses), flow, inner, number=number, counted=counted
        )


def flat(a=T0, b=T128, last=END):
    """Two values of the argument's halves, and an output made of both."""
    p = Program()
    return [
        p.thunk([at(ARGUMENT, 0)], [a]),
        p.thunk([at(ARGUMENT, 128)], [b]),
        p.thunk([a, b], [at(OUTPUT, 0)]),
        p.thunk([at(OUTPUT, 0)], [last]),
    ]


def loop(state=T0, test=TEST, new=T256, kept=None, counted=False):
    """A loop over a state, which the body makes anew in `new` and copies; `kept` lives through."""
    p, kept = Program(), kept or at(TEMP, 384)
    return [
        p.thunk([at(ARGUMENT, 0)], [state]),
        p.thunk([at(ARGUMENT, 128)], [kept]),
        p.thunk(
            [test],
            flow=Flow.LOOP,
            inner=((p.thunk([state], [test]),), (p.thunk([state], [new]), p.thunk([new], [state]))),
            counted=counted,
        ),
        p.thunk([state, kept], [at(OUTPUT, 0, 256)]),
    ]


def branches(inside=T0, other=T128, result=T256):
    """A conditional, of which one branch uses `inside`; `other` is read after it."""
    p = Program()
    return [
        p.thunk([at(ARGUMENT, 0)], [other]),
        p.thunk(
            [at(ARGUMENT, 0, 1)],
            flow=Flow.BRANCH,
            inner=(
                (p.thunk([at(ARGUMENT, 0)], [inside]), p.thunk([inside], [result])),
                (p.thunk([at(ARGUMENT, 128)], [result]),),
            ),
        ),
        p.thunk([result, other], [at(OUTPUT, 0, 256)]),
    ]


def judge(before, after, areas=AREAS):
    check_thunks(before, after, AREAS, areas)


RIGHT = [
    (flat, {}),
    (flat, {"a": at(TEMP, 256)}),
    (flat, {"b": at(OUTPUT, 128)}),
    (flat, {"a": at(SPARE, 64), "b": at(SPARE, 192)}),
    (loop, {}),
    (loop, {"counted": True}),
    (loop, {"state": at(SPARE, 0), "new": at(SPARE, 128)}),
    (loop, {"test": at(TEMP, 256, 1), "new": at(TEMP, 256)}),  # the test is over by then
    (branches, {}),
    (branches, {"inside": at(OUTPUT, 0)}),
    (branches, {"result": at(SPARE, 0)}),
]


@pytest.mark.parametrize("program, places", RIGHT)
@pytest.mark.quick
def test_right_places_are_accepted(program, places):
    counted = {"counted": True} if places.get("counted") else {}
    judge(program(**counted), program(**places))


WRONG = [
    (flat, {"a": at(TEMP, 128)}, "t2 would read"),  # overwritten by the second
    (flat, {"b": at(OUTPUT, 0)}, "t2 do not overlap"),
    (flat, {"a": at(ARGUMENT, 0)}, "t0 would write"),
    (flat, {"a": at(TEMP, 257)}, "not aligned"),
    (flat, {"a": at(TEMP, 448)}, "reaches beyond allocation"),
    (flat, {"a": at(7, 0)}, "reaches beyond allocation"),
    (flat, {"a": at(TEMP, 256, 64)}, "size of a slice"),
    (flat, {"last": at(SPARE, 0)}, "output allocation"),
    (loop, {"state": at(TEMP, 256), "new": at(TEMP, 0), "kept": at(TEMP, 0)}, "t6 would read"),
    (loop, {"kept": at(TEMP, 256)}, "t6 would read"),  # an iteration writes over it
    (loop, {"kept": at(TEMP, 64)}, "would read"),
    (loop, {"kept": at(TEMP, 128)}, "t6 would read"),  # the test does
    (loop, {"new": at(TEMP, 0)}, "do not overlap as in"),
    (loop, {"test": at(TEMP, 0, 1)}, "do not overlap as in"),
    (loop, {"test": at(TEMP, 384, 1)}, "t6 would read"),
    (loop, {"state": at(OUTPUT, 0)}, "t6 do not overlap"),
    (branches, {"inside": at(TEMP, 128)}, "t4 would read|t5 would read"),  # one branch does
    (branches, {"inside": at(TEMP, 256)}, "do not overlap as in"),
    (branches, {"result": at(TEMP, 128)}, "would read|overlap"),
    (branches, {"other": at(TEMP, 0)}, "would read"),
]


@pytest.mark.parametrize("program, places, message", WRONG)
@pytest.mark.quick
def test_wrong_places_are_named(program, places, message):
    with pytest.raises(CheckError, match=message):
        judge(program(), program(**places))


@pytest.mark.quick
def test_an_iteration_must_not_end_what_the_next_reads():
    """Each iteration reads what the one before left in `new`; its second read comes too late."""

    def carried(scratch):
        p, state = Program(), at(TEMP, 0)
        body = (
            p.thunk([state, at(TEMP, 256)], [at(TEMP, 384)]),
            p.thunk([at(TEMP, 384)], [at(TEMP, 256)]),
            p.thunk([at(ARGUMENT, 0)], [scratch]),
            p.thunk([scratch], [at(TEMP, 384)]),
        )
        return [
            p.thunk([at(ARGUMENT, 0)], [state]),
            p.thunk([at(ARGUMENT, 128)], [at(TEMP, 256)]),
            p.thunk(
                [at(TEMP, 128, 1)],
                flow=Flow.LOOP,
                inner=((p.thunk([state], [at(TEMP, 128, 1)]),), body),
            ),
            p.thunk([at(TEMP, 256)], [at(OUTPUT, 0)]),
        ]

    judge(carried(at(SPARE, 0)), carried(at(SPARE, 128)))
    for scratch in (at(TEMP, 256), at(TEMP, 0)):
        with pytest.raises(CheckError, match="would read"):
            judge(carried(at(SPARE, 0)), carried(scratch))


@pytest.mark.quick
def test_an_output_keeps_its_size_and_thunks_their_number():
    with pytest.raises(CheckError, match="reaches beyond allocation"):
        judge(flat(), flat(), {**AREAS, TEMP: Area(128)})
    with pytest.raises(CheckError, match="4 steps became 3"):
        judge(flat(), flat()[:-1])


@pytest.mark.quick
def test_scratch_may_lie_where_a_dead_value_was():
    """A kernel lists its own memory among what it reads; bytes that lay there before are none."""

    def kernel(own):
        p = Program()
        return [
            p.thunk([at(ARGUMENT, 0)], [T0]),
            p.thunk([T0], [END]),
            p.thunk([at(ARGUMENT, 128), own], [own, at(OUTPUT, 0)]),
        ]

    with pytest.raises(CheckError, match="t2 would read"):
        judge(kernel(T0), kernel(T256))
    check_thunks(kernel(T0), kernel(T256), AREAS, AREAS, {(2, 1)})
    with pytest.raises(CheckError, match="do not overlap as in"):
        check_thunks(kernel(T0), kernel(at(OUTPUT, 0)), AREAS, AREAS, {(2, 1)})


def test_scratch_of_a_kernel_with_a_loop_in_it_is_told(monkeypatch):
    """XLA puts it where a counter was, or what the next kernel reads, which need not move along."""

    def turned(a):
        return jax.lax.fori_loop(0, 3, lambda _, a: jnp.sin(a) * 1.5 + a[::-1], a)

    def layer(h, w):
        return jnp.tanh(h @ w) + turned(jnp.cos(turned(h[0, :4]))).sum(), None

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    w = jax.ShapeDtypeStruct((5, 64, 64), jnp.float32)
    compiled = jax.jit(lambda x, w: jax.lax.scan(layer, x, w)[0]).lower(x, w).compile()
    executable = CpuExecutable(compiled.runtime_executable().serialize())
    found = buffers(executable, allocations(executable))
    for number, k in executable.scratch:  # loops' next states, and the tables of their tuples
        assert executable.flat[number].accesses[k].slice.size == 16
        (own,) = [b for b in found if (number, k) in b.accesses]
        assert {a for a, _ in own.accesses} == {number}
    assert len(executable.scratch) == 4
    data = relocate.relocated(executable, time_limit=5)
    check_relocated(executable, CpuExecutable(data))
    again = CpuExecutable(executable.data)
    given = {t.name: set(again.names.values()) for t in again.flat if t.name.startswith("call")}
    monkeypatch.setattr(again, "_operands", lambda: given)
    kinds = {k: again.flat[k[0]].accesses[k[1]].shape for k in executable.scratch}
    tables = {k for k, s in kinds.items() if xla_pb2.ShapeProto.FromString(s).tuple_shapes}
    assert again.scratch == tables != set(), "whatever is given: no thunk writes a table"


def test_what_one_kernel_hands_to_the_next_is_told_by_element():
    """Not all that the first computes: where that lay, the second may have memory of its own."""

    def step(x):
        def first(_, s):
            return jnp.sin(s[0]) + s[1], s[1] * 2, s[2] + s[0].sum()

        a, b, wide = jax.lax.fori_loop(0, 3, first, (x, x + 1, jnp.tile(x, 2) + 2))
        return jax.lax.fori_loop(0, 4, lambda _, s: (jnp.cos(s[0]), s[1] + s[0]), (a, b)), wide

    compiled = jax.jit(step).lower(jax.ShapeDtypeStruct((8,), jnp.float32)).compile()
    executable = CpuExecutable(compiled.runtime_executable().serialize())
    one, two = (t.name for t in executable.flat if t.name.startswith("call"))
    (module,) = compiled.runtime_executable().hlo_modules()
    view = module_from_bytes(module.as_serialized_hlo_module_proto())
    shapes = {i.name: i.shape for c in view.computations for i in c.instructions}
    wide = {name for name, shape in shapes.items() if shape.dimensions == (16,)}
    given = executable._operands()
    assert wide & given[one] and not wide & given[two]


# Faults in real executables.


def step(state, x):
    """Layers, a loop with a branch in it, and an update of what is donated."""

    def layer(h, w):
        h = jnp.tanh(h @ w)
        return jax.lax.cond(h[0, 0] > 0, lambda y: y @ y.T @ h, lambda y: y * 2, h), h

    weights, momenta = state

    def loss(weights):
        h, hidden = jax.lax.scan(layer, x, weights)
        return jnp.sum(h * jnp.sin(h)) + jnp.sum(hidden**2)

    gradients = jax.grad(loss)(weights)
    momenta = 0.9 * momenta + gradients
    return weights - 0.1 * momenta, momenta


@pytest.fixture(scope="module")
def moved():
    """An executable and the same one with right places."""
    w = jax.ShapeDtypeStruct((6, 32, 32), jnp.float32)
    x = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    compiled = jax.jit(step, donate_argnums=0).lower((w, w), x).compile()
    before = CpuExecutable(compiled.runtime_executable().serialize())
    data = relocate.relocated(before, time_limit=5)
    return before, CpuExecutable(data)


def faulty(before, after, kind, rng):
    """`after` with one fault of a kind."""
    areas, temp = allocations(after), relocate.temporary(after)
    sizes, values = {}, {}
    places = [[a.slice for a in t.accesses] for t in after.flat]
    found = [b for b in buffers(after, areas) if b.high - b.low >= 64 and len(b.accesses) > 1]
    free = [b for b in found if not b.pinned]
    pinned = [b for b in found if b.pinned and b.high - b.low <= areas[temp].size]
    b = rng.choice(free)
    if kind == "overlap":
        a = rng.choice([a for a in free if a is not b and a.first <= b.first < a.last])
        relocate.move(places, b, a.allocation, a.low)
        if b.high - b.low > areas[a.allocation].size - a.low:
            kind = "shift"
    if kind == "shift":
        k, i = rng.choice(b.accesses)
        s = places[k][i]
        places[k][i] = dataclasses.replace(s, offset=s.offset + 64)
    elif kind == "misaligned":
        relocate.move(places, b, b.allocation, b.low + rng.choice((1, 4, 16, 32)))
    elif kind == "small":
        sizes = {temp: areas[temp].size - 64 * rng.randint(1, 4)}
    elif kind == "argument":
        k, i = rng.choice(rng.choice(pinned).accesses)
        places[k][i] = Slice(temp, 0, places[k][i].size)
    elif kind == "over argument":
        a = rng.choice([a for a in found if a.pinned and a.high - a.low >= b.high - b.low])
        relocate.move(places, b, a.allocation, 0)
    elif kind == "result":
        index = rng.choice([i for i, area in areas.items() if area.kept])
        sizes = {index: areas[index].size + 64}
    elif kind == "logical":
        number = rng.choice(sorted(n for n, name in after.names.items() if name))
        values = {number: (temp, areas[temp].size)}
    return after.relocated(places, sizes, values)


KINDS = (
    "overlap", "shift", "misaligned", "small", "argument", "over argument", "result", "logical",
)  # fmt: skip


def test_right_places_of_a_real_step_are_accepted(moved):
    before, after = moved
    assert before.data != after.data
    check_relocated(before, after)
    check_relocated(before, before)


@pytest.mark.parametrize("kind", KINDS)
def test_faults_in_a_real_step_are_caught(moved, kind):
    before, after = moved
    for seed in range(8):
        data = faulty(before, after, kind, random.Random(f"{kind}/{seed}"))
        assert data != after.data
        with pytest.raises(CheckError):
            check_relocated(before, CpuExecutable(data))
