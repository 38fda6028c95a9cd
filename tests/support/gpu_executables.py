"""Executables of small steps for an absent H100, as XLA serializes them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from hlo.gpu_executable import read_gpu_executable
from olla_xla import targets
from olla_xla.memory.snappy import unsnapped
from tests.support.compiles import h100_device


def _shape(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def _scan(weights, x):
    """Its loops update a stack, and read slices of it, on another stream."""

    def loss(weights, x):
        y, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w) + h, None), x, weights)
        return (y**2).sum()

    value, gradient = jax.value_and_grad(loss)(weights, x)
    return weights - 0.1 * gradient, value


def _offloaded(weights, x):
    """Its residuals go to host memory, into arrays that begin as they are."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["up"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def layer(h, w):
        return h + jnp.tanh(checkpoint_name(h @ w, "up")), None

    def loss(weights, x):
        return (jax.lax.scan(jax.checkpoint(layer, policy=policy), x, weights)[0] ** 2).sum()

    return jax.grad(loss)(weights, x)


def _branches(k, x):
    return jax.lax.switch(k, [lambda x: jnp.tanh(x) @ x, lambda x: x @ x.T, lambda x: x + 1], x)


def _sorted(x, y):
    return jax.lax.sort((x, y), num_keys=1), jnp.sort(x * 2)


def _sorted_beside(x, u):
    """One of its sorts has an operand in place, and copies the other one first."""
    t = jnp.sin(x) + u
    early, late = jnp.maximum(t, 0), jnp.exp(t)
    a = jnp.sort(early, axis=0)
    s, r = jax.lax.sort((a[::-1] + u, late), dimension=0, num_keys=1)
    return jnp.sum(s * r), a


def _solved(x):
    factor = jnp.linalg.cholesky(x @ x.T)
    return jax.lax.linalg.triangular_solve(factor, x, left_side=True, lower=True)


def _chain(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w) * x
    return [w * x.sum() for w in weights], x


def _until(x):
    return jax.lax.while_loop(lambda s: s[1].sum() < 1e6, lambda s: (s[0] + 1, s[1] @ s[1]), (0, x))


STEPS = {
    "branches": (_branches, (_shape(dtype=jnp.int32), _shape(128, 128)), ()),
    "chain": (_chain, ([_shape(256, 256)] * 4, _shape(256, 256)), (0,)),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), (_shape(64, 256),), ()),
    "offloaded": (_offloaded, (_shape(4, 128, 128), _shape(512, 128)), ()),
    "scan": (_scan, (_shape(4, 128, 128), _shape(512, 128)), (0,)),
    "sliced": (lambda x: x[64:128], (_shape(256, 256),), ()),
    "solved": (_solved, (_shape(64, 64),), ()),
    "sorted beside": (_sorted_beside, (_shape(512, 512),) * 2, ()),
    "sorted": (_sorted, (_shape(4096), _shape(4096, dtype=jnp.int32)), ()),
    "swapped": (lambda x, y: (y + 0, x + 0), (_shape(64), _shape(64)), (0, 1)),
    "until": (_until, (_shape(128, 128),), (0,)),
}
"""Name -> (function, shapes, donated arguments)."""


@functools.cache
def compiled(name, dump=None):
    """A step of STEPS, compiled for one H100; with a folder, XLA writes its assignment there."""
    function, shapes, donated = STEPS[name]
    sharding = jax.sharding.SingleDeviceSharding(h100_device())
    placed = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), shapes
    )
    options = {"xla_dump_to": dump, "xla_dump_hlo_as_proto": True} if dump else None
    lowered = jax.jit(function, donate_argnums=donated).lower(*placed)
    return lowered.compile(compiler_options=options)


@functools.cache
def exchanged():
    """A step over eight: gradients are summed, weights gathered, activations sent around."""
    h100_device()  # skips where JAX's plugin is missing
    devices = targets.target("h100", 8).devices
    mesh = jax.sharding.Mesh(devices, ("d",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))

    def step(w, x):
        def loss(w, x):
            whole = jax.lax.all_gather(w, "d", tiled=True)
            y = jnp.tanh(x @ whole)
            y = y + jax.lax.ppermute(y, "d", [(k, (k + 1) % 8) for k in range(8)])
            return jax.lax.psum((y**2).sum(), "d")

        value, gradient = jax.value_and_grad(loss)(w, x)
        return w - 0.1 * gradient, value[None]

    specs = (jax.sharding.PartitionSpec("d"),) * 2
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=specs)
    shapes = [jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=split)] * 2
    return jax.jit(mapped, donate_argnums=0).lower(*shapes).compile()


@functools.cache
def ragged():
    """Rows of different lengths sent to each of eight devices."""
    h100_device()
    mesh = jax.sharding.Mesh(targets.target("h100", 8).devices, ("d",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))

    def step(*arguments):
        return jax.lax.ragged_all_to_all(*arguments, axis_name="d")

    spec = jax.sharding.PartitionSpec("d")
    mapped = jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    rows = [jax.ShapeDtypeStruct((128,), jnp.float32, sharding=split)] * 2
    numbers = [jax.ShapeDtypeStruct((64,), jnp.int32, sharding=split)] * 4
    return jax.jit(mapped).lower(*rows, *numbers).compile()


SHARDED = {"exchanged": exchanged, "ragged": ragged}


def _stage(name) -> Any:
    return SHARDED[name]() if name in SHARDED else compiled(name)


def serialized(name):
    """The executable of a step of STEPS or of SHARDED, as XLA serializes it."""
    return _stage(name).runtime_executable().serialize()


@functools.cache
def read(name):
    """(the module, serialized, and the executable) of a step."""
    module = _stage(name).runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    return module, read_gpu_executable(serialized(name), unsnapped)
