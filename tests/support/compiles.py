"""Small steps compiled by XLA for the tests, with the buffer assignment it really made."""

import contextlib
import functools
import os
import pickle
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

from hlo import xla_pb2
from hlo.buffer_assignment import BufferAssignment, read_dump
from hlo.module import Module, module_from_proto
from olla_xla.compile.compiles import Compiles
from tests.support import plugins

QUICK = {"xla_backend_optimization_level": 0}
"""Of XLA's compile, for what is no test of its code: LLVM's optimization takes half of the time."""

H100 = Path(__file__).parents[2] / "olla_xla" / "targets" / "h100.txtpb"


def _scan(x, w):
    y, s = jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c), x, None, length=5)
    return y, s


def _scan_gradient(p, x):
    def loss(p):
        step = jax.checkpoint(lambda c, w: (jnp.tanh(c @ w), None))
        return (jax.lax.scan(step, x, p)[0] ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda a, b: a - b, p, gradient), value


def _conditional(x, w):
    return jax.lax.cond(x[0, 0] > 0, lambda a: jnp.sin(a @ w), lambda a: (a @ w) @ w, x) + x


def _while(x, w):
    return jax.lax.while_loop(
        lambda c: c[0] < 10, lambda c: (c[0] + 1, (c[1] @ w).at[3].set(1.0)), (0, x)
    )


def _update_slices(x, u):
    for i in range(4):
        x = jax.lax.dynamic_update_slice(x, u[:16] * i + x[:16, :16].sum(), (i * 16, 0))
    return x, u * 2


def _sort_scatter(x, u):
    return jnp.sort(x, axis=0), jnp.argsort(u), x.at[jnp.arange(16)].add(u.sum())


def _nested_loops(x, w):
    def outer(c, _):
        d = jax.lax.fori_loop(0, 3, lambda i, a: jnp.cos(a @ w), c)
        return d + c, d.sum()

    return jax.lax.scan(outer, x, None, length=4)


def _random(x, w):
    key = jax.random.key(0)
    return x + jax.random.normal(key, x.shape), jax.random.permutation(key, w)


def _dtypes(x, w):
    y = (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)
    return y, x > 0, x.astype(jnp.int8)


def _two_layers(p, x):
    def loss(p):
        return jnp.mean(jnp.square(jax.nn.relu(x @ p["a"]) @ p["b"] - x))

    value, gradient = jax.value_and_grad(loss)(p)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, p["m"], gradient["m"])
    return {**jax.tree.map(lambda v, g: v - 0.1 * g, p, gradient), "m": momentum}, value


_SQUARE = jax.ShapeDtypeStruct((256, 256), jnp.float32)
_STACK = jax.ShapeDtypeStruct((6, 256, 256), jnp.float32)
_PARAMETERS = {k: _SQUARE for k in "abm"}

STEPS = {
    "conditional": (_conditional, (_SQUARE, _SQUARE), (0,)),
    "dtypes": (_dtypes, (_SQUARE, _SQUARE), (0,)),
    "nested_loops": (_nested_loops, (_SQUARE, _SQUARE), (0,)),
    "random": (_random, (_SQUARE, _SQUARE), (0,)),
    "scan": (_scan, (_SQUARE, _SQUARE), (0,)),
    "scan_gradient": (_scan_gradient, (_STACK, _SQUARE), (0,)),
    "sort_scatter": (_sort_scatter, (_SQUARE, _SQUARE), ()),
    "two_layers": (_two_layers, (_PARAMETERS, _SQUARE), (0,)),
    "update_slices": (_update_slices, (_SQUARE, _SQUARE), (0,)),
    "while": (_while, (_SQUARE, _SQUARE), (0,)),
}


def h100_device():
    """A compile-only H100; skips the test where the CUDA plugin is not installed."""
    plugins.need("cuda13")
    return _h100_device()


@functools.cache
def _h100_device():
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="cuda", target_config=H100.read_text(), topology="1x1x1"
    )
    return topology.devices[0]


def on_h100(arguments):
    """The same shapes, placed on the compile-only H100."""
    sharding = jax.sharding.SingleDeviceSharding(h100_device())
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), arguments
    )


def xla_schedule(lowered) -> bytes:
    """The module as XLA scheduled it, serialized; its compile ends there."""
    with contextlib.closing(Compiles(lowered, None, {})) as compiles:
        return compiles.capture().module


def total_bytes(compiled) -> int:
    """Arguments + outputs - aliases + temp of a compiled function, as XLA reports them."""
    m = compiled.memory_analysis()
    return (
        m.argument_size_in_bytes
        + m.output_size_in_bytes
        - m.alias_size_in_bytes
        + m.temp_size_in_bytes
    )


@functools.cache
def dumped_step(name: str, target: str) -> tuple[bytes, int]:
    """(serialized HloProto with the buffer assignment, XLA's total) of one of STEPS.

    Compiled once by all processes of a run of pytest, which have a folder of that run alone.
    """
    kept = os.environ.get("OLLA_XLA_TESTS_SHARED")
    path = Path(kept) / f"{name}.{target}" if kept else None
    if path is not None and path.exists():
        return pickle.loads(path.read_bytes())
    found = _dumped_step(name, target)
    if path is not None:
        with tempfile.NamedTemporaryFile(dir=kept, delete=False) as file:
            file.write(pickle.dumps(found))
        os.replace(file.name, path)  # whole, whoever reads it
    return found


def _dumped_step(name, target):
    function, arguments, donated = STEPS[name]
    if target == "cuda":
        arguments = on_h100(arguments)
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True, **QUICK}
        lowered = jax.jit(function, donate_argnums=donated).lower(*arguments)
        compiled = lowered.compile(compiler_options=options)
        dumps = Path(folder).glob("*after_optimizations.hlo.pb")
        data = max(dumps, key=lambda p: p.stat().st_size).read_bytes()
    return data, total_bytes(compiled)


@functools.cache
def compile_step(name: str, target: str) -> tuple[Module, BufferAssignment, int]:
    """(final module, XLA's assignment, XLA's total) of one of STEPS."""
    data, total = dumped_step(name, target)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        proto, assignment = read_dump(file.name)
    return module_from_proto(proto), assignment, total


def raw_step(name: str, target: str) -> tuple[bytes, bytes]:
    """(final module, XLA's assignment), serialized protos, of one of STEPS."""
    proto = xla_pb2.HloProto.FromString(dumped_step(name, target)[0])
    return proto.hlo_module.SerializeToString(), proto.buffer_assignment.SerializeToString()
