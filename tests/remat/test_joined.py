"""Arrays that a loop reads slice by slice while it writes others of the same shape become one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from hlo import xla_pb2
from hlo.module import HloError, module_from_bytes
from hlo.rewrite import join_arrays as rewriter
from hlo.rewrite.edit import Edit
from hlo.rewrite.join_arrays import join_arrays
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import CheckError
from olla_xla.memory.module_state import facts_of
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import H100, CostModel
from olla_xla.remat.loops.joined import joins
from tests.support.compiles import on_h100, xla_schedule
from tests.support.steps import assert_same

LAYERS, ROWS, WIDTH = 6, 64, 128
_R = np.random.default_rng(5)
CACHE = jnp.asarray(_R.normal(size=(LAYERS, ROWS, WIDTH)).astype(np.float32))
X = jnp.asarray(_R.normal(size=WIDTH).astype(np.float32))


def _layer(x, c, i=3):
    """Without sums of products: of what XLA:CPU compiles as one function, no bit is in doubt."""
    c = jax.lax.dynamic_update_slice(c, x[None], (i, 0))
    return jnp.maximum(-c.max(0), c[i] * 0.5), c


def once(c, x):
    """A cache that a scan over layers takes and gives."""
    return jax.lax.scan(_layer, x, c)


def backwards(c, x):
    return jax.lax.scan(_layer, x, c, reverse=True)


def two(c, x):
    """Keys and values, of one shape."""

    def layer(x, kv):
        y, k = _layer(x, kv[0])
        z, v = _layer(y, kv[1], 5)
        return z, (k, v)

    return jax.lax.scan(layer, x, (c, c[::-1]))


def two_donated(c, x):
    def layer(x, kv):
        y, k = _layer(x, kv[0])
        z, v = _layer(y, kv[1], 5)
        return z, (k, v)

    return jax.lax.scan(layer, x, c)


def crossed(c, x):
    """Each of two kernels reads both slices, so that one of them reads before the other writes."""

    def layer(x, kv):
        k, v = kv
        return x, (jnp.maximum(k[::-1], v) + x, jnp.minimum(k, v[::-1]) - x)

    return jax.lax.scan(layer, x, c)


def in_tokens(c, x):
    """Layers inside tokens."""

    def token(s, i):
        x, c = s
        return jax.lax.scan(lambda x, c: _layer(x, c, i), x, c), x

    return jax.lax.scan(token, (x, c), jnp.arange(5))


def until(c, x):
    """The same with a number of tokens that follows from data."""

    def token(s):
        i, x, c = s
        return (i + 1, *jax.lax.scan(lambda x, c: _layer(x, c, i), x, c))

    return jax.lax.while_loop(lambda s: (s[0] < 9) & (s[1][0] < 3), token, (0, x, c))


def made_here(c, x):
    return jax.lax.scan(_layer, x, jnp.sin(c))


def read_after(c, x):
    """XLA copies the result, as its place is taken until the end; the source can be copied."""
    x, d = jax.lax.scan(_layer, x, c)
    return x, d, jnp.maximum(c, x).max(0)


def summed(c, x):
    """What is written is summed by what writes it, as the gradient of a bias."""

    def layer(h, c):
        h = jnp.tanh(h + c)
        return h, (h * 0.5).sum(0)

    return jax.lax.scan(layer, jnp.full((4, ROWS, WIDTH), x), c)


def written_before(c, x):
    """Each iteration reads what would have been written over."""

    def layer(n, s):
        c, d, x = s
        r = c[jnp.maximum(n - 1, 0)]
        return c, jax.lax.dynamic_update_index_in_dim(d, r + 1, n, 0), r.max(0)

    return jax.lax.fori_loop(0, LAYERS, layer, (c, jnp.zeros_like(c), x))[1:]


def partly_written(c, x):
    def layer(n, s):
        d, x = s
        x, new = _layer(x, c[n])
        return jax.lax.dynamic_update_index_in_dim(d, new, n, 0), x

    return jax.lax.fori_loop(0, LAYERS - 1, layer, (jnp.zeros_like(c), x))


def _arguments(function):
    return ((CACHE, CACHE * 2) if function in (two_donated, crossed) else CACHE), X


def _copies(arguments):
    return jax.tree.map(jnp.array, arguments)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (once, 1), (backwards, 1), (two, 2), (two_donated, 2), (crossed, 1), (in_tokens, 1),
        (until, 1), (made_here, 1), (read_after, 1), (summed, 1), (written_before, 0),
        (partly_written, 0),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)  # fmt: skip
@pytest.mark.optimized
def test_one_array_and_the_same_bits(function, count):
    arguments = _arguments(function)
    expected = jax.jit(function, donate_argnums=0)(*_copies(arguments))
    planned = olla_xla.plan(function, donate_argnums=0, max_overhead=0.05)
    compiled = planned.lower(*arguments).compile()
    assert_same(expected, compiled(*_copies(arguments)))
    plan = compiled.plan
    assert len(plan.joined) == count and plan.refused == 0
    assert plan.xla_bytes - plan.assigned_bytes >= 0.8 * bool(count) * CACHE.nbytes
    if count:
        assert plan.predicted_bytes == plan.assigned_bytes
        assert "joined" in plan.source


def test_what_is_not_donated_stays():
    compiled = olla_xla.plan(once).lower(CACHE, X).compile()
    assert compiled.plan.joined == () and compiled.plan.refused == 0


def _scheduled(function, donate=(0,)):
    lowered = jax.jit(function, donate_argnums=donate).lower(*_arguments(function))
    module = module_from_bytes(xla_schedule(lowered))
    return module, joins(module, "cpu")


def _joined(module, found):
    return Edit(module).rewrite(join_arrays, found, "cpu").module()


def _judge(module, data, target="cpu"):
    check_rewrite(module.data, data, target, loops=True)
    check_executable(data, target)


def filled(c, x):
    """What it writes does not follow from what it reads."""
    return jax.lax.scan(lambda x, c: (-c.max(0), jnp.broadcast_to(x, c.shape)), x, c)


def _writer_first(data, name):
    """A module whose body writes its slice before anything reads it."""
    proto = xla_pb2.HloModuleProto.FromString(data)
    ((body, put),) = ((c, i) for c in proto.computations for i in c.instructions if i.name == name)
    del put.control_predecessor_ids[:]
    by_id, needed = {i.id: i for i in body.instructions}, [put.id]
    for k in needed:
        needed += by_id[k].operand_ids
    low = 2**32 - 1
    ids = proto.schedule.sequences[body.id].instruction_ids
    first = {k & low for k in needed}
    ids[:] = sorted(ids, key=lambda k: (k & low) not in first)
    return proto.SerializeToString()


def test_the_referee_finds_a_read_after_the_write():
    module, found = _scheduled(filled)
    after = _joined(module, found)
    _judge(module, after.data)
    with pytest.raises(CheckError, match="has written over it"):
        _judge(module, _writer_first(after.data, found[0].update))


def test_what_still_reads_the_source_is_kept_apart(monkeypatch):
    """The loop then starts with a copy; without it the referee objects."""
    module, _ = _scheduled(read_after)
    found = joins(module, "cpu")
    after = _joined(module, found)
    _judge(module, after.data)
    monkeypatch.setattr(rewriter, "keep_apart", lambda *_: None)
    alone = _joined(module, found)
    with pytest.raises(CheckError, match="has written over it"):
        _judge(module, alone.data)


@pytest.mark.parametrize("function", [written_before, partly_written])
def test_the_referee_finds_another_slice_and_one_that_is_not_written(function):
    """Joined all the same, as the planner's own analysis would never do."""
    module, found = _scheduled(function)
    assert found == []
    body = next(
        i for c in module.control_computations for i in c.instructions if i.opcode == "while"
    ).called[0]
    shape = CACHE.shape
    (read, written) = (
        next(
            k
            for k, o in enumerate(body.root.operands)
            if o.shape.dimensions == shape and is_kept == (o.opcode == "get-tuple-element")
        )
        for is_kept in (True, False)
    )
    (loop,) = (
        i.name for c in module.control_computations for i in c.instructions if i.opcode == "while"
    )
    join = rewriter.Join(
        loop, LAYERS, 0, read, written, body.root.operands[written].name, 0, (1, 0)
    )
    data = _joined(module, [join]).data
    with pytest.raises(CheckError, match="results are not those"):
        check_rewrite(module.data, data, "cpu", loops=True)


def turned(c, x):
    return jax.lax.scan(lambda x, c: (jnp.maximum(-c.max(0), x), c[::-1]), x, c)


def a_block(c, x):
    """Some rows of each slice."""

    def layer(x, c):
        c = jax.lax.dynamic_update_slice(c, jnp.stack([x, -x, x]), (jnp.int32(x[0]), 0))
        return jnp.maximum(-c.max(0), x), c

    return jax.lax.scan(layer, x, c)


def _on_h100(function):
    """The module, its one join, the module with it, and the slices that are copied for it."""
    lowered = jax.jit(function, donate_argnums=0).lower(*on_h100((CACHE, X)))
    module = module_from_bytes(xla_schedule(lowered))
    (join,) = joins(module, "cuda")
    after = Edit(module).rewrite(join_arrays, [join], "cuda").module()
    _judge(module, after.data, "cuda")
    assert facts_of(module, "cuda").total - facts_of(after, "cuda").total > 0.8 * CACHE.nbytes
    taken = [
        i for c in after.control_computations for i in c.instructions if i.name.endswith(".read")
    ]
    return module, join, after, taken


@pytest.mark.parametrize("function", [once, a_block])
@pytest.mark.cuda13
def test_rows_of_a_slice_are_written_alone(function):
    """Without the slice's other rows, which are there; anywhere else the referee objects."""
    module, join, after, taken = _on_h100(function)
    rows = 1 if function is once else 3
    proto = xla_pb2.HloModuleProto.FromString(after.data)
    ((body, put),) = (
        (c, i)
        for c in proto.computations
        for i in c.instructions
        if i.opcode == "dynamic-update-slice" and list(i.shape.dimensions) == list(CACHE.shape)
    )
    by_id = {i.id: i for i in body.instructions}
    assert not taken and list(by_id[put.operand_ids[1]].shape.dimensions) == [1, rows, WIDTH]
    cost = CostModel(H100, "cuda")
    assert run_seconds(after, cost) <= run_seconds(module, cost)
    for swapped in ([2, 4, 3], [4, 3, 2]):
        wrong = xla_pb2.HloModuleProto.FromString(after.data)
        (other,) = (i for c in wrong.computations for i in c.instructions if i.id == put.id)
        other.operand_ids[2:] = [put.operand_ids[k] for k in swapped]
        with pytest.raises(CheckError, match="results are not those"):
            check_rewrite(module.data, wrong.SerializeToString(), "cuda", loops=True)


@pytest.mark.cuda13
def test_a_kernel_that_reads_and_writes_gets_a_copy_of_the_slice():
    """On a GPU the fusion that writes a slice takes it from the first array itself."""
    module, join, after, taken = _on_h100(turned)
    assert len(taken) == 1 and taken[0].shape.dimensions == (1, ROWS, WIDTH)
    wrong = dataclasses.replace(join, place=(-1, LAYERS - 1))
    other = Edit(module).rewrite(join_arrays, [wrong], "cuda").module()
    with pytest.raises(CheckError, match="results are not those"):
        check_rewrite(module.data, other.data, "cuda", loops=True)


def test_a_plan_of_another_module_is_refused():
    module, found = _scheduled(once)
    with pytest.raises(HloError, match="plan again"):
        joins(module, "cpu", [(found[0].loop, found[0].written, found[0].read)])
