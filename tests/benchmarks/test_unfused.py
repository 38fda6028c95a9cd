"""Programs run eagerly: the graph of a module written by hand, what is timed, and a whole row."""

import ctypes
import dataclasses
import itertools
import types

import numpy as np
import pytest

from benchmarks.papers.eager import allocator_time, static, unfused
from benchmarks.papers.eager.graph import Program, _forwarded, program
from benchmarks.papers.eager.storages import check_storages
from hlo.module import module_from_bytes
from hlo.parse import from_hlo_text
from olla_xla.errors import InputError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from tests.benchmarks.test_eager_outcomes import PROGRAMS, made, numbers
from tests.support.outcomes import outcome

# Calls within calls, a loop that leaves one leaf as it was and swaps two, a condition whose
# branches need memory of their own, updates in place, views of views, a barrier, two results of
# one operator, and arguments that are donated: one to its reader, one too early, one too small.
MODULE = """
HloModule hand, input_output_alias={ {0}: (0, {}), {1}: (1, {}), {2}: (2, {}), {4}: (4, {}) }

double (p: MAT) -> MAT {
  p = MAT parameter(0)
  t = MAT transpose(p), dimensions={1,0}
  s = MAT sine(t)
  ROOT d = MAT add(s, s)
}

twice (q: MAT) -> MAT {
  q = MAT parameter(0)
  a = MAT call(q), to_apply=double
  ROOT b = MAT call(a), to_apply=double, metadata={op_name="transpose(jvp(f))/call"}
}

plus (x: f32[], y: f32[]) -> f32[] {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}

body {
  state = STATE parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  u = MAT get-tuple-element(state), index=1
  v = MAT get-tuple-element(state), index=2
  w = MAT get-tuple-element(state), index=3
  k = f32[4] get-tuple-element(state), index=4
  uw = MAT dot(u, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  su = MAT call(uw), to_apply=double
  ROOT out = STATE tuple(next, v, su, w, k)
}

until {
  state = STATE parameter(0)
  i = s32[] get-tuple-element(state), index=0
  ten = s32[] constant(10)
  ROOT less = pred[] compare(i, ten), direction=LT
}

yes (c: MAT) -> MAT {
  c = MAT parameter(0)
  m = MAT dot(c, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  n = MAT cosine(m)
  ROOT o = MAT multiply(m, n)
}

no (c: MAT) -> MAT {
  c = MAT parameter(0)
  ROOT o = MAT negate(c)
}

ENTRY main {
  w = MAT parameter(0)
  x = MAT parameter(1)
  y = MAT parameter(2)
  i = s32[] parameter(3)
  g = f32[4] parameter(4)
  h = MAT call(x), to_apply=twice
  state = STATE tuple(i, h, x, w, g)
  loop = STATE while(state), condition=until, body=body
  first = MAT get-tuple-element(loop), index=1
  second = MAT get-tuple-element(loop), index=2
  kept = MAT get-tuple-element(loop), index=3
  zero = s32[] constant(0)
  update = f32[1,8] slice(second), slice={[0:1], [0:8]}
  written = MAT dynamic-update-slice(first, update, i, zero)
  pair = (MAT, MAT) tuple(second, written)
  barrier = (MAT, MAT) opt-barrier(pair)
  nest = (f32[4], (MAT, MAT)) tuple(g, barrier)
  inside = (MAT, MAT) get-tuple-element(nest), index=1
  ahead = MAT get-tuple-element(inside), index=1
  is = pred[] compare(i, zero), direction=EQ
  chosen = MAT conditional(is, ahead, kept), true_computation=yes, false_computation=no
  grad = MAT dot(chosen, ahead), lhs_contracting_dims={0}, rhs_contracting_dims={0},
    metadata={op_name="jit(f)/transpose(jvp(f))/dot"}
  new = MAT subtract(w, grad)
  flat = f32[64] reshape(chosen)
  again = f32[16,4] reshape(flat)
  stands = f32[16,4] exponential(again)
  f0 = f32[] constant(0)
  sums = f32[8] reduce(y, f0), dimensions={0}, to_apply=plus
  wide = MAT broadcast(sums), dimensions={0}
  both = MAT add(wide, y)
  small = f32[4] slice(sums), slice={[0:4]}
  less = f32[4] negate(small)
  last = MAT add(x, both)
  gg = f32[4] add(g, g)
  ROOT result = (MAT, MAT, f32[4], MAT, f32[4], f32[16,4], MAT)
    tuple(new, last, less, both, gg, stands, kept)
}
"""
MODULE = MODULE.replace("STATE", "(s32[], MAT, MAT, MAT, f32[4])").replace("MAT", "f32[8,8]")


def test_a_module_by_hand():
    found = program(module_from_bytes(from_hlo_text(MODULE)))
    found.graph.validate()
    # What an operator needs while it runs is a tensor too.
    assert {o.transient_bytes for o in found.graph.operators} == {0}
    assert all(o.free == (o.opcode == "parameter") for o in found.graph.operators)
    assert outcome(numbers(found), [t.name for t in found.graph.tensors]) == "93a8c0bde869"
    names = [t.name.rsplit(".", 1)[0] for t in found.graph.tensors]
    inner = {t.name: t.bytes for t in found.graph.tensors if "/inner" in t.name}
    # A count, and a product beside its sine or that beside the sum; three of a branch at once.
    assert sorted(inner.values()) == [4 + 2 * 256, 3 * 256] and names.count("s") == 2


def test_arguments_that_are_named_only():
    """Less than all results replace arguments; a scalar result is no tuple."""
    text = """
HloModule one, input_output_alias={ {}: (0, {}) }
ENTRY main (w: f32[8]) -> f32[8] {
  w = f32[8] parameter(0)
  ROOT n = f32[8] negate(w)
}
"""
    found = program(module_from_bytes(from_hlo_text(text)))
    first, second = found.graph.tensors
    assert first.buffer == second.buffer and not first.live_out and second.live_out
    assert (found.argument_bytes, found.output_bytes) == (32, 0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_barrier_of_several_values_is_a_tuple(count):
    values = [{(): ((k, True),)} for k in range(count)]
    barrier = types.SimpleNamespace(opcode="optimization-barrier")
    each = {(k,): ((k, True),) for k in range(count)}
    assert _forwarded(barrier, values) == (each if count > 1 else values[0])
    assert _forwarded(types.SimpleNamespace(opcode="tuple"), values) == each


def test_a_constant_replaces_no_argument():
    text = """
HloModule two, input_output_alias={ {0}: (0, {}), {1}: (1, {}) }
ENTRY main (w: f32[], x: f32[]) -> (f32[], f32[]) {
  w = f32[] parameter(0)
  x = f32[] parameter(1)
  c = f32[] constant(3)
  n = f32[] add(w, x)
  ROOT r = (f32[], f32[]) tuple(c, n)
}
"""
    first, second, third = program(module_from_bytes(from_hlo_text(text))).graph.tensors
    assert not first.live_out and not second.live_out  # both are donated
    assert (first.buffer, third.buffer) == (0, second.buffer)


def test_a_gradient_that_the_backward_pass_reads_too():
    """What any operator after the backward pass reads is one, whatever else reads it."""
    text = """
HloModule three
ENTRY main (w: f32[8]) -> (f32[8], f32[8]) {
  w = f32[8] parameter(0)
  s = f32[8] sine(w)
  g = f32[8] cosine(s), metadata={op_name="transpose(jvp(f))/cos"}
  h = f32[8] exponential(g), metadata={op_name="transpose(jvp(f))/exp"}
  i = f32[8] negate(h), metadata={op_name="transpose(jvp(f))/neg"}
  n = f32[8] add(g, w)
  m = f32[8] multiply(i, w)
  ROOT r = (f32[8], f32[8]) tuple(n, m)
}
"""
    found = program(module_from_bytes(from_hlo_text(text)))
    names = [found.graph.tensors[t].name.split(".")[0] for t in sorted(found.gradients)]
    assert names == ["g", "i"]


# The first tensor is made in the step, and is a result.
NO_ARGUMENT = """
HloModule none

ENTRY main {
  i = f32[8] iota(), iota_dimension=0
  s = f32[8] sine(i)
  ROOT r = (f32[8], f32[8]) tuple(i, s)
}
"""


def test_what_is_timed(monkeypatch):
    """All that is made is freed in the end, arguments are neither."""
    bare = program(module_from_bytes(from_hlo_text(NO_ARGUMENT)))
    assert not any(t.live_in for t in bare.graph.tensors)
    monkeypatch.setattr(allocator_time, "malloc_seconds", lambda *given: given)
    monkeypatch.setattr(allocator_time, "caching_seconds", lambda *given: given)
    small = tuple(dataclasses.replace(t, bytes=0) for t in bare.graph.tensors)
    empty = dataclasses.replace(bare, graph=dataclasses.replace(bare.graph, tensors=small))
    assert allocator_time.allocator_time(empty)[1][1] == [1] * len(small)
    for p in (*PROGRAMS[:20], bare):
        count, malloced, cached = allocator_time.allocator_time(p)
        asked, sizes = malloced
        assert malloced == cached and len(asked) == count
        given = {k + 1 for k, t in enumerate(p.graph.tensors) if t.live_in}
        ones = [r for r in asked if r > 0]
        assert sorted(ones) == sorted(-r for r in asked if r < 0) and not given & set(ones)
        assert len(set(ones)) == len(ones)
        assert all(asked.index(r) < asked.index(-r) for r in ones)
        assert sizes == [max(t.bytes, 1) for t in p.graph.tensors]
    assert outcome([allocator_time.allocator_time(p)[1] for p in PROGRAMS]) == "198c58bff652"


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost",
    )]  # fmt: skip


def test_blocks_are_really_made_and_freed():
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("the C library does not say what it holds")
    library.mallinfo2.restype = Mallinfo

    def held():
        found = library.mallinfo2()
        return found.hblkhd + found.uordblks

    mb = 1 << 20
    run = allocator_time._replay()
    sizes = np.array([64 * mb, 128 * mb, 256 * mb])
    run(np.array([1, -1]), sizes)  # compiled
    before = held()
    run(np.array([2, 1, -2, 3, -1, -3]), sizes)
    assert abs(held() - before) < mb
    run(np.array([1, 2, 3, -2]), sizes)
    assert abs(held() - before - 320 * mb) < mb


def test_the_least_of_five(monkeypatch):
    """After one that is not timed, each five times: 3, 1, 4, 0.5 and 5 seconds."""
    ran = []
    clock = iter([0, 3, 10, 11, 20, 24, 30, 30.5, 40, 45])
    fake = types.SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr(allocator_time, "time", fake)
    assert allocator_time._least(lambda: ran.append(0)) == 0.5
    assert len(ran) == 6 and next(clock, None) is None


def test_seconds_of_steps(monkeypatch):
    """What is timed is the allocator's step, and the C library's replay."""
    ran = []
    monkeypatch.setattr(allocator_time, "_least", lambda step: ran.append(step()) or 7.0)
    monkeypatch.setattr(allocator_time, "_replay", lambda: lambda *given: given)
    assert allocator_time.malloc_seconds([2, 1], [8, 9]) == 7.0
    assert [array.tolist() for array in ran[0]] == [[2, 1], [8, 9]]


def test_a_row_of_a_program(monkeypatch):
    """Each number from where it is found; the machine code of loops is not timed."""
    found = made(3)
    clock = itertools.count(10.0, 1.2346)
    asked = []
    arrays = GraphArrays.of(unfused._standing(found.graph))
    order = np.arange(arrays.n)

    def search(graph, starts, **options):
        asked.append((graph.n, sorted(starts), starts["program"].tolist(), options))
        return types.SimpleNamespace(order=order, peak_bytes=1000, bound_bytes=800)

    def ran(p, allocator, steps=None):
        kind = type(allocator).__name__
        return types.SimpleNamespace(
            peak_live_bytes=(kind, steps, "live"), peak_reserved_bytes=(kind, steps, "reserved"),
            fragmentation=(kind, steps, "share"),
        )  # fmt: skip

    def placed(graph, order, seconds):
        asked.append((order, seconds))
        arena = types.SimpleNamespace(live_bytes=900, bytes=950, seconds=1.23456)
        return ["first", arena]

    def alone(graph, order):
        return types.SimpleNamespace(
            offsets=[0] * 5, height=960, seconds=0.5, bounds={0: 600, 1: 300}
        )

    monkeypatch.setattr(unfused, "run_eagerly", ran)
    monkeypatch.setattr(unfused.phases, "search", search)
    monkeypatch.setattr(unfused, "arenas", placed)
    monkeypatch.setattr(unfused, "_best_fit", alone)
    monkeypatch.setattr(unfused, "allocator_time", lambda p: (12, 0.25, 0.75))
    monkeypatch.setattr(unfused, "check_schedule", lambda *given: asked.append(given[1:]))
    monkeypatch.setattr(unfused, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    bounds = []
    monkeypatch.setattr(
        unfused, "forced_live_bound", lambda arrays: bounds.append(next(clock)) or (77, None)
    )
    row = unfused.plan_program(found, 4.0, step_limit=9, seed=3)
    assert len(bounds) == 2  # once to load it
    load, own = asked[0], asked[1]
    assert load[:3] == own[:3] and load[3]["time_limit"] == 1.0
    assert own[3] == {"time_limit": 4.0, "step_limit": 9, "seed": 3, "bound_bytes": 77}
    assert asked[2:] == [(order.tolist(), 1000), (order.tolist(), 300.0)]  # the paper's minutes
    kind = "BlockSplittingAllocator"
    assert vars(row) == {
        "eager_live_bytes": (kind, None, "live"), "eager_reserved_bytes": (kind, None, "reserved"),
        "eager_fragmentation": (kind, None, "share"), "peak_bytes": 900, "bound_bytes": 800,
        "lifetime_gap": 900 / 800 - 1, "placed_bytes": 950, "operators": arrays.n,
        "order_seconds": 2.469, "place_seconds": 1.235, "requests": 12, "request_seconds": 0.25,
        "caching_seconds": 0.75, "blocks": 5, "best_fit_bytes": 960, "best_fit_seconds": 0.5,
        "load_bytes": 900,
        "loop_reserved_bytes": (kind, 3, "reserved"), "loop_fragmentation": (kind, 3, "share"),
    }  # fmt: skip
    without = types.SimpleNamespace(offsets=None, height=0, seconds=0.5, bounds={})
    monkeypatch.setattr(unfused, "_best_fit", lambda graph, order: without)
    assert unfused.plan_program(found, 4.0).blocks == 0
    assert [row[3]["seed"] for row in asked if len(row) == 4 and "seed" in row[3]] == [3, 0]
    for bound in (0, 1):
        least = types.SimpleNamespace(order=order, peak_bytes=1000, bound_bytes=bound)
        monkeypatch.setattr(unfused.phases, "search", lambda *given, r=least, **more: r)
        assert unfused.plan_program(found, 4.0).lifetime_gap == 899
    monkeypatch.setattr(unfused, "_program", lambda model: (found, model))
    monkeypatch.setattr(unfused, "plan_program", lambda *given, **more: (given, more))
    assert unfused.plan_unfused("m", 2.0, step_limit=5) == (
        ((found, "m"), 2.0), {"step_limit": 5, "seed": 0}
    )  # fmt: skip


def test_operators_without_a_colour_share_nothing(monkeypatch):
    """Those that the longest path leaves over may run in parallel to each other."""
    coloured = static.colours
    monkeypatch.setattr(static, "colours", lambda graph: coloured(graph, 1))
    for p in PROGRAMS:
        made = static.assign(p, in_place=True, sharing=True, parallel="colour")
        check_storages(p.graph, made.storage, made.sizes, parallel=True)


def test_best_fit_alone_is_to_the_byte(monkeypatch):
    """And timed the second time."""
    tensors = tuple(Tensor(f"t{k}", size, k, (2,), k) for k, size in enumerate((3, 5)))
    graph = TensorGraph("odd", (Operator("op", "add"),) * 3, tensors)
    assert unfused._best_fit(graph, [0, 1, 2]).height == 8
    turns = itertools.count(1)
    monkeypatch.setattr(unfused, "place", lambda problem, method: (next(turns), method))
    assert unfused._best_fit(graph, [0, 1, 2]) == (2, "best_fit")


def test_addends_of_a_sum_of_sums_are_external():
    """Of p + q + r, which an update reads, each lies in the gradient's memory; a larger one not."""
    opcodes = ("dot", "dot", "add", "dot", "add", "dot", "subtract")
    read = ((2,), (2,), (4,), (4,), (6,), (4,), ())
    tensors = tuple(
        Tensor(f"t{k}", 99 if k == 5 else 8, k, sinks, k) for k, sinks in enumerate(read)
    )
    graph = TensorGraph("sums", tuple(Operator("op", name) for name in opcodes), tensors)
    found = Program(graph, frozenset(range(6)), frozenset({4}))
    assert static.external(found) == frozenset(range(5))


def test_more_paths_than_colours():
    """70 operators that all may run in parallel: NNVM has 64 colours, the rest are without."""
    graph = TensorGraph("apart", (Operator("op", "add"),) * 70, ())
    assert sorted(static.colours(graph)) == [-1] * 6 + list(range(64))
    assert static.colours(TensorGraph("none", (), ())) == []


@pytest.mark.parametrize(
    ("first", "second", "sizes"),
    [(1, 16, (16,)), (1, 17, (1, 17)), (16, 1, (16,)), (17, 1, (17, 1)), (2, 32, (32,))],
)
def test_storages_match_up_to_16_times_their_size(first, second, sizes):
    """The first tensor is dead when the third is made, which its storage serves or grows for."""
    tensors = [
        Tensor("first", first, 0, (1,), 0), Tensor("between", 600, 1, (2,), 1),
        Tensor("second", second, 2, (3,), 2),
    ]  # fmt: skip
    graph = TensorGraph("two", (Operator("op", "add"),) * 4, tuple(tensors))
    found = static.assign(Program(graph, frozenset(), frozenset()), in_place=False, sharing=True)
    assert sorted(found.sizes) == sorted((*sizes, 600))


def test_tensors_of_no_bytes_need_none():
    tensors = [Tensor(f"t{k}", size, k, (k + 1,), k) for k, size in enumerate((0, 8, 0))]
    graph = TensorGraph("none", (Operator("op", "add"),) * 4, tuple(tensors))
    found = static.assign(Program(graph, frozenset(), frozenset()), in_place=False, sharing=False)
    assert found.sizes == (0, 8, 0) and found.bytes == 8


def test_ancestors_of_20_000_operators_at_most():
    for count in (20_000, 20_001):
        graph = TensorGraph("many", (Operator("op", "add"),) * count, ())
        if count == 20_000:
            assert static.ancestors(graph) == [0] * count
            continue
        with pytest.raises(InputError, match="too many"):
            static.ancestors(graph)


def test_limits_of_rules(monkeypatch):
    graph_ = PROGRAMS[0].graph
    with pytest.raises(InputError, match="'colours' is not one of colour, ancestors"):
        static.assign(PROGRAMS[0], in_place=True, sharing=True, parallel="colours")
    with pytest.raises(InputError, match="encouraged=True goes without"):
        static.assign(PROGRAMS[0], in_place=True, sharing=True, parallel="colour", encouraged=True)
    monkeypatch.setattr(static, "MAX_ANCESTORS", len(graph_.operators))
    assert static.ancestors(graph_)
    monkeypatch.setattr(static, "MAX_ANCESTORS", len(graph_.operators) - 1)
    with pytest.raises(InputError, match="too many"):
        static.ancestors(graph_)
    turned = TensorGraph("turned", graph_.operators[:2], (), edges=((1, 0),))
    monkeypatch.setattr(static, "MAX_ANCESTORS", 9)
    with pytest.raises(InputError, match="topological"):
        static.ancestors(turned)
