"""The baseline planners: graphs, allocators against cases by hand, storages under the referee."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.papers.eager import compiled_allocator
from benchmarks.papers.eager.allocator import BlockSplittingAllocator, PowerOfTwoAllocator
from benchmarks.papers.eager.compiled_allocator import CompiledAllocator
from benchmarks.papers.eager.conflicts import coloured, induced_edges, with_plan
from benchmarks.papers.eager.estimate import estimate, from_json, to_json
from benchmarks.papers.eager.graph import Program, forward_only, program
from benchmarks.papers.eager.requests import eager_requests, loop_requests, run_eagerly
from benchmarks.papers.eager.static import (
    EXTERNAL,
    Assignment,
    ancestors,
    assign,
    colours,
    external,
)
from benchmarks.papers.eager.storages import check_storages
from hlo.module import module_from_bytes
from hlo.text import from_stablehlo
from olla_xla.cli.main import main as olla_main
from olla_xla.errors import CheckError, InputError
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.tools.to_networkx import to_networkx

MB = 1 << 20


def lowered(function, *arguments, **jit):
    text = jax.jit(function, **jit).lower(*arguments).as_text(debug_info=True)
    return program(module_from_bytes(from_stablehlo(text)))


def shaped(*dimensions):
    return jax.ShapeDtypeStruct(dimensions, jnp.float32)


def by_opcode(p, opcode):
    ids = [k for k, o in enumerate(p.graph.operators) if o.opcode == opcode]
    return [t for t in p.graph.tensors if t.source in ids]


def chain(*readers, sizes=None, inplace=()):
    """Operators 0.. each making tensor k, read by readers[k]; the last is the result."""
    n = len(readers)
    tensors = tuple(
        Tensor(f"t{k}", (sizes or [1] * n)[k], k, tuple(r), k, live_out=k == n - 1)
        for k, r in enumerate(readers)
    )
    graph = TensorGraph(
        "chain", tuple(Operator(f"op{k}", "op") for k in range(n)), tensors, inplace=tuple(inplace)
    )
    return Program(graph, frozenset(), frozenset())


# The graph.


def test_views_and_constants_take_no_memory():
    p = lowered(lambda x: jnp.sin(x.T.reshape(2, 32)[:1] + 1.0), shaped(8, 8))
    assert [o.opcode for o in p.graph.operators] == ["parameter", "add", "sine"]
    assert [t.bytes for t in p.graph.tensors] == [256, 128, 128]
    # The slice is not all of the argument, and an argument is never overwritten.
    assert p.graph.inplace == ((2, 1),)


def test_calls_are_inlined_and_each_gets_tensors_of_its_own():
    relu = jax.jit(lambda x: jnp.sin(x) * 2)
    p = lowered(lambda x: relu(relu(x)), shaped(4))
    assert len(by_opcode(p, "sine")) == len(by_opcode(p, "multiply")) == 2
    p.graph.validate()


def test_a_view_read_beside_its_base_is_not_overwritten():
    p = lowered(lambda x: (y := jnp.sin(x)) + y.T, shaped(4, 4))
    (total,) = (k for k, t in enumerate(p.graph.tensors) if t.live_out and not t.live_in)
    assert all(b != total for b, _ in p.graph.inplace)


def test_loop_state_is_one_tensor_and_its_inner_peak_is_counted():
    def f(x, w):
        return jax.lax.fori_loop(0, 3, lambda _, c: jnp.sin(c @ w) @ w, x)

    p = lowered(f, shaped(8, 8), shaped(8, 8))
    (loop,) = (k for k, o in enumerate(p.graph.operators) if o.opcode == "while")
    made = {t.name.split("/")[-1]: t.bytes for t in p.graph.tensors if t.source == loop}
    assert made["inner"] == 2 * 256  # two 8x8 at a time
    assert sum(size == 256 for size in made.values()) == 1  # w passes through


def test_donated_arguments_hold_what_replaces_them():
    def step(w, x):
        return w - jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)

    p = lowered(step, shaped(8, 8), shaped(4, 8), donate_argnums=0)
    assert (p.argument_bytes, p.output_bytes) == (256 + 128, 0)
    assert [p.graph.tensors[t].bytes for t in p.gradients] == [256]
    kept = lowered(step, shaped(8, 8), shaped(4, 8))
    assert kept.output_bytes == 256


def test_forward_only_drops_the_backward_pass():
    def step(w, x):
        loss, g = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)
        return w - g, loss

    p = lowered(step, shaped(8, 8), shaped(4, 8), donate_argnums=0)
    forward = forward_only(p)
    opcodes = [o.opcode for o in forward.graph.operators]
    assert opcodes == ["parameter", "parameter", "dot", "tanh", "reduce"]
    assert not forward.backward and forward.output_bytes == 4


def test_forward_only_needs_a_forward_result():
    with pytest.raises(InputError, match="without the backward pass"):
        forward_only(lowered(jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w))), shaped(4, 4)))


# Allocators.


def test_block_splitting_by_hand():
    a = BlockSplittingAllocator()
    assert (a.allocated, a.peak_allocated, a.reserved) == (0, 0, 0)
    one = a.allocate(1)  # small pool: 512 of a segment of 2 MB
    assert (a.allocated, a.reserved) == (512, 2 * MB)
    two = a.allocate(513)
    assert (a.allocated, a.reserved) == (512 + 1024, 2 * MB)
    large = a.allocate(MB + 1)  # 20 MB segment, split
    assert (a.allocated, a.reserved) == (1536 + MB + 512, 22 * MB)
    a.allocate(9 * MB)  # from the rest of it
    assert a.reserved == 22 * MB
    huge = a.allocate(11 * MB + 1)  # its own size, in whole 2 MB
    assert a.reserved == 34 * MB
    a.free(huge)
    # The remainder would be 1 MB: too little to split off a large block.
    again = a.allocate(11 * MB)
    assert a.reserved == 34 * MB and a.allocated == 1536 + 10 * MB + 512 + 12 * MB
    for handle in (one, two, large, again):
        a.free(handle)
    assert a.allocated == 9 * MB and a.peak_allocated == 1536 + 10 * MB + 512 + 12 * MB


def test_freed_neighbours_merge():
    a = BlockSplittingAllocator()
    handles = [a.allocate(MB // 2) for _ in range(4)]
    a.free(handles[0])
    a.free(handles[2])
    a.allocate(MB)  # the two halves are apart
    assert a.reserved == 4 * MB
    a.free(handles[1])
    a.allocate(MB)  # the first three are one now
    a.allocate(MB // 2)
    assert a.reserved == 4 * MB


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MB), st.integers(0, 99)), max_size=60),
    st.integers(1, 3),
)
@settings(deadline=None)
def test_the_compiled_allocator_reserves_what_the_other_does(events, steps):
    requests, sizes, live = [], [], []
    for release, size, which in events:
        if release and live:
            requests.append(-live.pop(which % len(live)))
        else:
            sizes.append(size if which % 2 else size // 1000 + 1)
            live.append(len(sizes))
            requests.append(len(sizes))
    requests += [-k for k in reversed(live)]
    compiled, other = CompiledAllocator(requests, sizes), BlockSplittingAllocator()
    for _ in range(steps):
        handles = {}
        for request in requests:
            if request > 0:
                handles[request] = other.allocate(sizes[request - 1])
            else:
                other.free(handles.pop(-request))
        compiled.step()
        assert (compiled.reserved, compiled.allocated) == (other.reserved, 0)
        # Merged, each segment is one block, and has one record.
        counts = compiled._counts[[compiled_allocator._SEGMENTS, compiled_allocator._USED]]
        assert counts.tolist() == [other._segments] * 2


def test_power_of_two_by_hand():
    a = PowerOfTwoAllocator()
    assert (a.allocated, a.peak_allocated, a.reserved) == (0, 0, 0)
    first = a.allocate(1000)
    assert (a.allocated, a.reserved) == (1024, 1024)
    a.free(first)
    a.allocate(600)  # 1024 again
    a.allocate(513)
    assert (a.allocated, a.reserved) == (2048, 2048)
    a.allocate(16 * MB + 1)
    assert a.reserved == 2048 + 32 * MB


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MB), st.integers(0, 99)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_allocators_account_for_every_byte(events):
    for a in (BlockSplittingAllocator(), PowerOfTwoAllocator()):
        live = {}
        for is_free, size, pick in events:
            if is_free and live:
                handle = sorted(live)[pick % len(live)]
                a.free(handle)
                del live[handle]
            else:
                live[a.allocate(size)] = size
            assert sum(live.values()) <= a.allocated <= a.peak_allocated <= a.reserved
        for handle in live:
            a.free(handle)
        assert a.allocated == 0


def test_eager_keeps_gradients_to_the_end():
    p = chain([1], [2], [3], [], sizes=[MB] * 4)
    assert run_eagerly(p, PowerOfTwoAllocator()).peak_live_bytes == 2 * MB
    kept = dataclasses.replace(p, gradients=frozenset([0]))
    run = run_eagerly(kept, PowerOfTwoAllocator())
    assert run.peak_live_bytes == 3 * MB
    assert run.peak_reserved_bytes == 3 * MB and run.fragmentation == 0


def test_a_loop_keeps_what_it_writes_to():
    """Weights come first, moments in the first step after the backward pass, all else each step."""
    w, m, x, h, g, loss = 0, 1, 2, 3, 4, 7

    def tensor(source, sinks, buffer, live_in=False, live_out=False):
        return Tensor(f"t{buffer}", MB, source, sinks, buffer, live_in, live_out, "temporary")

    tensors = (
        tensor(0, (3, 5), 0, live_in=True),
        tensor(1, (5,), 1, live_in=True),
        tensor(2, (3,), 2, live_in=True, live_out=True),
        tensor(3, (4,), 3),
        tensor(4, (5,), 4),
        tensor(5, (), 0, live_out=True),  # the new weights, in the old ones' place
        tensor(5, (), 1, live_out=True),
        tensor(5, (), 5, live_out=True),
    )
    operators = tuple(Operator(f"op{k}", "op") for k in range(6))
    p = Program(TensorGraph("step", operators, tensors), frozenset([4]), frozenset([g]))
    make, free = (lambda *of: [k + 1 for k in of]), (lambda *of: [-k - 1 for k in of])
    step = [*make(x, h, g), *free(h), *make(loss), *free(x, g, loss)]
    first = [*make(x, h, g), *free(h), *make(m, loss), *free(x, g, loss)]
    assert loop_requests(p, 2) == [*make(w), *first, *step]
    assert eager_requests(p) == [*make(w, m, x, h, g), *free(h), *make(loss)]
    assert run_eagerly(p, PowerOfTwoAllocator(), 2).peak_live_bytes == 5 * MB
    before = dataclasses.replace(p, backward=frozenset())  # nothing tells what comes late
    assert loop_requests(before, 1)[:2] == make(w, m)


# Static planners.


def test_chain_by_hand():
    p = chain([1], [2], [3], [4], [], inplace=[(1, 0), (2, 1), (3, 2)])
    assert assign(p, in_place=False, sharing=False).bytes == 4
    assert assign(p, in_place=True, sharing=False).bytes == 1
    assert assign(p, in_place=False, sharing=True).bytes == 2
    assert assign(p, in_place=True, sharing=True).bytes == 1


def test_the_in_place_trap():
    # Tensor 0 is read by 1, which could overwrite it, and still by 2: it must not.
    p = chain([1, 2], [3], [3], [], inplace=[(1, 0), (2, 0)])
    made = assign(p, in_place=True, sharing=False)
    assert made.storage[0] != made.storage[1]
    assert made.storage[2] == made.storage[0]  # the last reader may
    check_storages(p.graph, made.storage, made.sizes)
    # In parallel 1 may still be reading when 2 runs.
    for rule in ("colour", "ancestors"):
        safe = assign(p, in_place=True, sharing=False, parallel=rule)
        assert safe.storage[2] != safe.storage[0]
    with pytest.raises(CheckError, match="run in parallel"):
        check_storages(p.graph, made.storage, made.sizes, parallel=True)
    with pytest.raises(CheckError, match="t0 and t1 are both live"):
        check_storages(p.graph, (0, 0, 1, EXTERNAL), (1, 1))


def test_size_matching():
    # A free storage of 16 times the size still serves; one of more does not.
    p = chain([1], [2], [3], [], sizes=[160, 1, 10, 1])
    made = assign(p, in_place=False, sharing=True)
    assert made.storage[:3] == (0, 1, 0)
    p = chain([1], [2], [3], [], sizes=[161, 1, 10, 1])
    assert assign(p, in_place=False, sharing=True).storage[:3] == (0, 1, 2)
    # A smaller one grows.
    p = chain([1], [2], [3], [], sizes=[10, 5, 20, 1])
    assert assign(p, in_place=False, sharing=True).sizes == (20, 5)


def test_sharing_with_the_own_path_is_encouraged():
    """Two branches, each with a free storage: 5 takes that of its own branch, not the first."""
    sizes = [100_000, 1, 1, 100, 100, 1, 1]
    p = chain([1, 2], [3], [4], [6], [5], [6], [], sizes=sizes)
    assert len(set(colours(p.graph))) == 2
    plain, own = (assign(p, in_place=False, sharing=True, encouraged=e) for e in (False, True))
    assert plain.bytes == own.bytes
    assert (plain.storage[5], own.storage[5]) == (plain.storage[1], own.storage[2])
    assert [len(induced_edges(p.graph, made)) for made in (plain, own)] == [2, 0]
    # Where the other branch alone has one, that is taken: nothing is ruled out.
    p = chain([1, 2], [3], [4, 5], [6], [5], [6], [], sizes=sizes)
    own = assign(p, in_place=False, sharing=True, encouraged=True)
    assert own.storage[5] == own.storage[1]
    with pytest.raises(InputError, match="encouraged=True goes without"):
        assign(p, in_place=False, sharing=True, encouraged=True, parallel="colour")


def test_addends_of_a_gradient_are_external():
    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w) @ w)

    p = lowered(jax.grad(loss), shaped(8, 8), shaped(4, 8))
    (total,) = (t for t in by_opcode(p, "add") if t.bytes == 256)
    outside = {p.graph.tensors[t].name for t in external(p)}
    products = [t for t in by_opcode(p, "dot") if t.bytes == 256]
    assert len(products) == 2 and total.name in outside
    assert {t.name for t in products} <= outside


@st.composite
def programs(draw):
    n = draw(st.integers(1, 12))
    tensors, inplace = [], []
    for v in range(n):
        for k in range(draw(st.integers(0, 2))):
            later = list(range(v + 1, n))
            sinks = sorted(draw(st.sets(st.sampled_from(later), max_size=3))) if later else []
            live_in = draw(st.integers(0, 6)) == 0
            live_out = live_in or draw(st.integers(0, 5)) == 0
            size = draw(st.sampled_from([1, 2, 2, 3, 40]))
            number = len(tensors)
            name = f"t{v}.{k}"
            tensors.append(Tensor(name, size, v, tuple(sinks), number, live_in, live_out))
    for b, late in enumerate(tensors):
        for a, early in enumerate(tensors):
            if late.source in early.sinks and early.bytes == late.bytes and draw(st.booleans()):
                inplace.append((b, a))
    operators = tuple(Operator(f"op{v}", "op") for v in range(n))
    graph = TensorGraph("random", operators, tuple(tensors), inplace=tuple(inplace))
    return Program(graph, frozenset(), frozenset())


@given(programs())
def test_every_assignment_passes_the_referee(p):
    for parallel, encouraged in (
        (None, False),
        (None, True),
        ("colour", False),
        ("ancestors", False),
    ):
        for in_place in (False, True):
            for sharing in (False, True):
                made = assign(
                    p, in_place=in_place, sharing=sharing, parallel=parallel, encouraged=encouraged
                )
                check_storages(p.graph, made.storage, made.sizes, parallel=parallel is not None)
                planned = [t for t in p.graph.tensors if not (t.live_in or t.live_out)]
                total = sum(t.bytes for t in planned)
                assert made.bytes <= total if sharing or in_place else made.bytes == total
                assert made.bytes >= _live_peak(p.graph, planned, in_place)


def _live_peak(graph, planned, in_place):
    """No planner can take less: the most that is live at a time, operands less if in place."""
    peak = 0
    for v in range(len(graph.operators)):
        live = [t for t in planned if t.source <= v <= max((t.source, *t.sinks))]
        made = sum(t.bytes for t in live if t.source == v)
        peak = max(peak, sum(t.bytes for t in live) - (made if in_place else 0))
    return peak


@given(programs())
@settings(max_examples=60, deadline=None)
def test_ancestors_and_colours_by_brute_force(p):
    before = p.graph.predecessors

    def above(v):
        return set(before[v]).union(*(above(u) for u in before[v])) if before[v] else set()

    found = ancestors(p.graph)
    sets = [above(v) for v in range(len(before))]
    assert [{u for u in range(len(before)) if bits >> u & 1} for bits in found] == sets
    colour = colours(p.graph)
    for u in range(len(before)):
        for v in range(u + 1, len(before)):
            if colour[u] == colour[v] >= 0:
                assert u in sets[v]
    assert min(colour) >= 0  # paths enough for all


def test_a_chain_has_one_colour_and_what_runs_in_parallel_two():
    assert colours(chain([1], [2], []).graph) == [0, 0, 0]
    assert len(set(colours(chain([1, 2], [3], [3], []).graph))) == 2


def test_colours_of_conflicts():
    """Two tensors of one size that never meet share a storage, and one meets both."""
    p = chain([1], [2], [3], [4], [], sizes=[8, 8, 4, 8, 1])
    made = coloured(p)
    check_storages(p.graph, made.storage, made.sizes)
    assert made.storage == (0, 1, 2, 0, EXTERNAL) and made.sizes == (8, 8, 4)


def test_edges_that_a_plan_adds():
    """Storage 0 passes from tensor 0 to tensor 2, which does not depend on 0's reader, 1."""
    p = chain([1], [3], [3], [])
    shared = Assignment((0, 1, 0, EXTERNAL), (1, 1))
    assert induced_edges(p.graph, shared) == [(0, 2), (1, 2)]
    assert induced_edges(p.graph, Assignment((0, 1, 2, EXTERNAL), (1, 1, 1))) == []
    along = chain([1], [2], [3], [])
    assert induced_edges(along.graph, Assignment((0, 1, 0, EXTERNAL), (1, 1))) == []
    g = to_networkx(with_plan(p.graph, shared))
    assert [(u, v) for u, v, kind in g.edges(data="kind") if kind == "control"] == [(0, 2), (1, 2)]
    assert nx.is_directed_acyclic_graph(g)


def test_a_plan_s_edges_are_exported_and_drawn(tmp_path, capsys):
    path, picture = tmp_path / "plan.graphml", tmp_path / "plan.svg"
    flags = ["--model=mlp", "--batch_size=2", "--time_limit=0", f"--added_edges={path}"]
    assert main(["benchmarks", "estimate", *flags, "--planner=sharing"]) == 0
    printed = re.search(r"^ *sharing .* (\d+) *$", capsys.readouterr().out, re.M)
    assert printed is not None
    kinds = [kind for *_, kind in nx.read_graphml(path).edges(data="kind")]
    assert kinds.count("control") == int(printed[1]) > 0
    assert olla_main(["olla_xla", "graph", f"--graph={path}", f"--out={picture}"]) == 0
    assert "stroke-dasharray" in picture.read_text()  # control edges are dotted


def test_estimate_of_a_step():
    def step(w, x):
        loss, g = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w)))(w)
        return w - 0.1 * g, loss

    jitted = jax.jit(step, donate_argnums=0)
    text = jitted.lower(shaped(64, 64), shaped(32, 64)).as_text(debug_info=True)
    module = module_from_bytes(from_stablehlo(text))
    training, inference = (estimate(module, m, time_limit=2.0) for m in ("training", "inference"))
    totals = {row.planner: row.total_bytes for row in training.rows}
    assert totals["in place + sharing"] <= totals["sharing"] < totals["no sharing"]
    assert totals["both, parallel by ancestors"] <= totals["no sharing"]
    least = totals["OLLA: order and places"]
    # Eagerly an argument that nothing reads any more is freed; a planned step's caller keeps it.
    assert totals["best fit by profile"] >= totals["eager, block splitting"]
    assert least <= totals["in place + sharing"] and totals["sharing"] <= totals["no sharing"]
    edges = {row.planner: row.added_edges for row in training.rows}
    assert edges["no sharing"] == edges["both, parallel by ancestors"] == 0 < edges["sharing"]
    assert training.gradient_bytes == 64 * 64 * 4 and inference.gradient_bytes == 0
    for late, early in zip(inference.rows, training.rows, strict=True):
        assert (late.total_bytes or 0) < (early.total_bytes or 0)
    with pytest.raises(InputError, match="training, inference"):
        estimate(module, "eval")


def test_estimate_on_the_command_line(capsys, monkeypatch, tmp_path):
    (tmp_path / "mine_for_estimate.py").write_text(
        "import jax.numpy as jnp\ndef loss(w, x):\n    return jnp.sum(jnp.tanh(x @ w))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    function = "--function=mine_for_estimate:loss"
    assert main(["benchmarks", "estimate", "--model=mlp", "--batch_size=2"]) == 0
    assert "in place + sharing" in capsys.readouterr().out
    assert main(["benchmarks", "estimate", function, "--arguments=f32[8,8] f32[4,8]"]) == 0
    assert "block splitting" in capsys.readouterr().out
    for wrong, said in (
        ([], "--model=NAME or --function="),
        ([function], "--arguments goes with --function"),
        ([function, "--arguments=f32[8"], "cannot read"),
        ([function, "--arguments=q8[8]"], "no type"),
        ([function, "--arguments=f32[8] f32[9]"], "cannot trace"),
        (["--model=nothing"], "unknown model"),
    ):
        assert main(["benchmarks", "estimate", *wrong]) == 2
        assert said in capsys.readouterr().err


def test_one_table_of_several_models_is_gone_on_with(capsys, tmp_path):
    out = f"--out={tmp_path}/estimates.json"
    several = ["benchmarks", "estimate", "--batch_size=2", "--time_limit=1", out]
    assert main([*several, "--models=mlp"]) == 0
    first = capsys.readouterr().out
    assert "OLLA" in first and "lenet" not in first
    found = from_json((tmp_path / "estimates.json").read_text())
    assert [row.model for row in found] == ["mlp"]
    # What is there is kept as it is, however small.
    fewer = dataclasses.replace(found[0].found, operators=7)
    kept = dataclasses.replace(found[0], found=fewer)
    (tmp_path / "estimates.json").write_text(to_json([kept]))
    assert main([*several, "--models=mlp,lenet"]) == 0
    rows = from_json((tmp_path / "estimates.json").read_text())
    assert [row.model for row in rows] == ["mlp", "lenet"] and rows[0] == kept
    capsys.readouterr()
    stored = f"--stored={tmp_path}/estimates.json"
    assert main(["benchmarks", "estimate", stored, "--format=markdown"]) == 0
    assert "| lenet |" in capsys.readouterr().out
    assert main([*several, "--models=mlp", "--model=mlp"]) == 2
    with pytest.raises(InputError, match="not the JSON"):
        from_json("[1]")
