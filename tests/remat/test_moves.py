"""Loops take slices of what is moved before them from where it was."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import olla_xla
from benchmarks.rewritten import compile_rewritten
from hlo.module import module_from_bytes, parse_module_proto
from hlo.rewrite.sink import sink_moves
from hlo.rewrite.sinkable import sinks
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import CheckError
from olla_xla.planner import plan_module
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.loops import moves
from olla_xla.tools.capture import capture
from tests.support.compiles import H100, on_h100, xla_schedule
from tests.support.rewrites import edit
from tests.support.steps import assert_same

LAYERS, WIDTH = 6, 128


def _params(axis):
    r = np.random.default_rng(3)

    def made(*shape):
        value = np.moveaxis(r.normal(size=(LAYERS, *shape)).astype(np.float32) / 8, 0, axis)
        return jnp.asarray(np.ascontiguousarray(value))

    return {"a": made(WIDTH, 2 * WIDTH), "b": made(2 * WIDTH, WIDTH)}


X = jnp.asarray(np.random.default_rng(4).normal(size=(16, WIDTH)).astype(np.float32))


def _net(weights, x, dtype=jnp.float32, remat=False):
    def layer(h, w):
        w = {k: a.astype(dtype) for k, a in w.items()}
        return (h + jnp.tanh(h @ w["a"]) @ w["b"]).astype(dtype), None

    layer = jax.checkpoint(layer) if remat else layer
    return (jax.lax.scan(layer, x.astype(dtype), weights)[0].astype(jnp.float32) ** 2).mean()


def _moved(p, axis):
    return {k: jnp.moveaxis(a, axis, 0) for k, a in p.items()}


def step(p, x, axis=1, dtype=jnp.float32, remat=False):
    """Plain gradient descent."""
    value, g = jax.value_and_grad(lambda p: _net(_moved(p, axis), x, dtype, remat))(p)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), value


def also_read(p, x):
    """The moved weights themselves are an output, and are held in any case."""
    new, value = step(p, x)
    return new, value, _moved(p, 1)


def overwritten(p, x):
    """What is moved is changed in place before the loop runs."""
    p = jax.tree.map(lambda a: a * 2, p)
    moved = _moved(p, 1)
    p = jax.tree.map(lambda a: a.at[0].set(1.0).at[:, 1].add(jnp.sum(x)), p)
    return p, _net(moved, x)


def again(p, x):
    """Two loops read it, one at other places than its turns."""
    moved = _moved(p, 1)

    def one(h, k):
        w = {n: jax.lax.dynamic_index_in_dim(a, (k * 2) % 3, 0, False) for n, a in moved.items()}
        return h + jnp.tanh(h @ w["a"]) @ w["b"], None

    first = jax.lax.scan(one, x, jnp.arange(LAYERS))[0]
    return p, _net(moved, x) + first.mean()


def accumulated(p, x):
    """Loops over layers inside one over micro-batches, around which the weights are moved."""

    def one(total, x):
        g = jax.grad(lambda p: _net(_moved(p, 1), x))(p)
        return jax.tree.map(jnp.add, total, g), None

    g = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, p), x.reshape(4, 4, WIDTH))[0]
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), g["a"].mean()


def turned(p, x, dtype=jnp.float32):
    """Each weight is the other one's transpose in its layer, stacked along the second axis."""

    def loss(p):
        return _net(
            {"a": jnp.transpose(p["b"], (1, 2, 0)), "b": p["a"].transpose(1, 2, 0)}, x, dtype
        )

    value, g = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), value


def stacked(p, x):
    """Weights that are stacked and transposed in one fusion, whose layout XLA then changes."""

    def loss(p):
        weights = jnp.stack([p, p * 0.9]).transpose(0, 2, 1)
        return (jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), h[0]), x, weights)[0] ** 2).mean()

    value, g = jax.value_and_grad(loss)(p)
    return p - 0.1 * g, value


@pytest.mark.optimized
def test_a_source_may_lie_in_another_order():
    """What is sliced where it lies, and transposed after that, is followed by the referee."""
    p = _params(1)["a"][:, 0, :WIDTH]
    p = jnp.tile(p, (WIDTH // LAYERS + 1, 1))[:WIDTH]
    lowered = jax.jit(stacked).lower(p, X)
    modules, compiled = _compiled_without_moves(lowered)
    check_rewrite(*modules, "cpu", loops=True)
    assert_same(lowered.compile()(p, X), compiled(p, X))


@pytest.mark.parametrize(
    ("function", "axis", "sunk"),
    [
        (turned, 1, None),  # each loop moves it: by this machine's rates that may take longer
        (functools.partial(turned, dtype=jnp.bfloat16), 1, None),
        (step, 1, True),
        (functools.partial(step, dtype=jnp.bfloat16), 1, True),
        (functools.partial(step, axis=2), 2, False),
        (accumulated, 1, True),
        (also_read, 1, False),
        (overwritten, 1, None),
        (again, 1, None),
    ],
    ids=[
        "turned",
        "turned and narrowed",
        "plain",
        "narrowed",
        "in single elements",
        "in micro-batches",
        "also read",
        "overwritten",
        "two loops",
    ],
)
@pytest.mark.optimized
def test_the_same_bits_and_no_copy(function, axis, sunk):
    params = _params(axis)

    def copy():
        return jax.tree.map(jnp.array, params)

    expected = jax.jit(function, donate_argnums=0)(copy(), X)
    compiled = olla_xla.plan(function, donate_argnums=0).lower(copy(), X).compile()
    assert_same(expected, compiled(copy(), X))
    plan = compiled.plan
    assert plan.assigned_bytes <= plan.xla_bytes
    if compiled.planned:
        assert plan.predicted_bytes == plan.assigned_bytes
    if sunk is not None:
        assert bool(plan.sunk) == sunk
    if sunk:
        moved = sum(a.nbytes for a in params.values())
        assert plan.xla_bytes - plan.assigned_bytes > 0.9 * moved


def _without_moves(module):
    """A module whose moves all change slices' order of elements, without them."""
    found = sinks(module_from_bytes(module), "cpu")
    assert found
    assert not any(sink.in_order for sink in found)
    return edit(module).rewrite(sink_moves, [sink.move.name for sink in found], "cpu").to_bytes()


def _compiled_without_moves(lowered):
    """(the module, the same without moves), and that one compiled."""
    modules = []

    def rewrite(module):
        modules[:] = [module, _without_moves(module)]
        return modules[1]

    return modules, compile_rewritten(lowered, rewrite)


def _square():
    r = np.random.default_rng(5)
    shape = WIDTH, LAYERS, WIDTH
    return {k: jnp.asarray(r.normal(size=shape).astype(np.float32) / 8) for k in "ab"}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("params", [_params(1), _square()], ids=["oblong", "square"])
@pytest.mark.optimized
def test_slices_of_another_order_are_the_same_bits(params, dtype):
    lowered = jax.jit(functools.partial(turned, dtype=dtype)).lower(params, X)
    modules, compiled = _compiled_without_moves(lowered)
    check_rewrite(*modules, "cpu", loops=True)
    check_executable(modules[1], "cpu")
    assert_same(lowered.compile()(params, X), compiled(params, X))


def _turned_otherwise(i):
    i.dimensions[:] = range(len(i.dimensions))


def _taken_elsewhere(i):
    first, second, *others = i.operand_ids[1:]
    i.operand_ids[1:] = [second, first, *others]


def _square_slices(p, x):
    """As `turned`; layers are as many as what is in a layer, so that any slice has one shape."""

    def layer(h, w):
        return (h + jnp.tanh(h @ w)).astype(jnp.float32), None

    def loss(p):
        return (jax.lax.scan(layer, x, jnp.transpose(p, (1, 2, 0)))[0] ** 2).mean()

    return jax.value_and_grad(loss)(p)


@pytest.mark.parametrize(
    ("opcode", "wrong"),
    [("transpose", _turned_otherwise), ("dynamic-slice", _taken_elsewhere)],
    ids=["order", "place"],
)
def test_a_wrong_move_is_refused(opcode, wrong):
    if opcode == "transpose":
        lowered = jax.jit(functools.partial(turned, dtype=jnp.bfloat16)).lower(_square(), X)
    else:
        params = jnp.asarray(np.random.default_rng(5).normal(size=(16, 16, 16)), jnp.float32)
        lowered = jax.jit(_square_slices).lower(params, X[:, :16])
    module = xla_schedule(lowered)
    data = _without_moves(module)
    check_rewrite(module, data, "cpu", loops=True)
    proto = parse_module_proto(data)
    moved = [
        c
        for c in proto.computations
        if any(".as_it_lies" in i.name for i in c.instructions) and c.is_fusion_computation
    ]
    found = [i for c in moved for i in c.instructions if i.opcode == opcode]
    assert found
    wrong(found[0])
    with pytest.raises(CheckError):
        check_rewrite(module, proto.SerializeToString(), "cpu", loops=True)


@pytest.mark.cuda13
@pytest.mark.parametrize("function", [step, functools.partial(step, dtype=jnp.bfloat16), again])
def test_a_gpu_has_it_too(function):
    lowered = jax.jit(function, donate_argnums=0).lower(*on_h100((_params(1), X)))
    captured = capture(lowered)
    names = [s.move.name for s in sinks(module_from_bytes(captured.module), "cuda")]
    assert not sinks(module_from_bytes(captured.module), "tpu"), "slices lie in tiles there"
    data = edit(captured.module).rewrite(sink_moves, names, "cuda").to_bytes()
    check_rewrite(captured.module, data, "cuda", loops=True)
    check_executable(data, "cuda")
    plan = plan_module(captured.module, PlanOptions(step_limit=500), target="cuda")
    if names:
        assert plan.sunk == tuple(names)
        assert plan.predicted_bytes < plan.xla_predicted_bytes


def _wide(arguments):
    """The shapes of a step whose kernels take longer than they take to start."""
    widened = lambda a: [16 * d if d >= WIDTH else d for d in a.shape]  # noqa: E731
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(widened(a), a.dtype), arguments)


def _converted_step(p, x, dtype=jnp.bfloat16):
    """Weights are converted before the loops, which read them from there."""

    def loss(p):
        layers = jax.tree.map(lambda a: a.astype(dtype), p)
        return _net(layers, x, dtype, remat=True)

    value, g = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda a, b: a - (0.1 * b).astype(a.dtype), p, g), value


def _turned_and_converted(p, x, dtype=jnp.bfloat16):
    return _converted_step({"a": jnp.swapaxes(p["b"], 1, 2), "b": p["a"].swapaxes(1, 2)}, x, dtype)


@pytest.mark.cuda13
@pytest.mark.parametrize(
    ("function", "gone"),
    [(_converted_step, 2), (_turned_and_converted, 1)],  # XLA copies the other one for donation
    ids=["converted", "turned and converted"],
)
def test_a_gpu_converts_slices(function, gone):
    p, x = _wide((_params(0), X))
    each = 2 * p["a"].size
    compiled = olla_xla.plan(function, donate_argnums=0).lower(*on_h100((p, x))).compile()
    plan = compiled.plan
    assert plan is not None
    assert len(plan.sunk) == gone
    assert plan.xla_bytes - plan.assigned_bytes > 0.9 * gone * each


@pytest.mark.optimized
def test_converts_of_slices_to_wider_types_are_the_same_bits():
    p = jax.tree.map(lambda a: a.astype(jnp.bfloat16), _params(0))

    def copy():
        return jax.tree.map(jnp.array, p)

    function = functools.partial(_converted_step, dtype=jnp.float32)
    expected = jax.jit(function, donate_argnums=0)(copy(), X)
    compiled = olla_xla.plan(function, donate_argnums=0).lower(copy(), X).compile()
    assert_same(expected, compiled(copy(), X))
    assert compiled.plan.predicted_bytes == compiled.plan.assigned_bytes
    assert compiled.plan.sunk


def test_what_rounds_on_a_cpu_stays():
    """Its code beside a slice is another one, which might round otherwise."""
    p = {"a": jnp.ones((4, 32, 32)), "b": jnp.ones((4, 32, 32))}
    module = xla_schedule(jax.jit(_converted_step).lower(p, X[:, :32]))
    assert not sinks(module_from_bytes(module), "cpu")
    names = [sink.move.name for sink in sinks(module_from_bytes(module), "cuda")]
    assert names
    data = edit(module).rewrite(sink_moves, names, "cuda").to_bytes()
    with pytest.raises(CheckError):
        check_rewrite(module, data, "cpu", loops=True)
    check_rewrite(module, data, "cuda", loops=True)


@pytest.mark.cuda13
def test_gathered_slices_of_another_order():
    """What is gathered along its last dimension is transposed before the loop."""
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=H100.read_text(), topology="1x1x2"
    )
    mesh = Mesh(np.array(topology.devices), ("x",))

    def placed(spec, *shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    params = {
        "a": placed(PartitionSpec("x"), 512, LAYERS, 1024),
        "b": placed(PartitionSpec(None, None, "x"), 1024, LAYERS, 512),
    }
    x = placed(PartitionSpec("x"), 16, 512)
    out = jax.tree.map(lambda a: a.sharding, params)

    @olla_xla.plan(donate_argnums=0, out_shardings=(out, None))
    def sharded(p, x):
        return step(p, x, dtype=jnp.bfloat16, remat=True)

    compiled = sharded.lower(params, x).compile()
    assert compiled.planned
    plan = compiled.plan
    assert plan.sunk
    assert plan.predicted_bytes == plan.assigned_bytes
    assert plan.xla_bytes - plan.assigned_bytes > 1.8 * 1024 * LAYERS * 256 * 4


@pytest.mark.cuda13
def test_time_that_is_saved_may_be_spent_again(monkeypatch):
    """An overhead is a part of the time of the step as it came."""
    monkeypatch.setattr(
        moves, "joins", lambda module, target: []
    )  # would leave no residual to drop
    x = jnp.concatenate([X] * 16)
    shapes = on_h100(_wide((_params(0), x)))
    lowered = jax.jit(_converted_step, donate_argnums=0).lower(*shapes)
    module = xla_schedule(lowered)

    def planned(overhead):
        options = PlanOptions(step_limit=500, max_overhead=overhead)
        return plan_module(module, options, target="cuda")

    most = planned(10.0)
    assert most.sunk and most.loops and planned(0.0).added_seconds < 0
    overhead = most.added_seconds / most.step_seconds + 1e-9
    assert overhead > 0 and planned(overhead).loops == most.loops
