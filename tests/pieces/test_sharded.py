"""Axes that are sharded over devices are cut within a device.

The tests run in a process of eight devices, which the last one starts.
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import olla_xla
from olla_xla.errors import InputError
from olla_xla.pieces.sharded import leaf_shardings
from olla_xla.pieces.transform import in_pieces

RNG = np.random.default_rng(0)
ON_EIGHT = pytest.mark.skipif(jax.device_count() < 8, reason="runs in a process of its own")
ROWS, WIDTH, WORDS = 2048, 32, 4096


def loss(w, x, y):
    logits = jnp.tanh(x @ w["in"]) @ w["out"]
    place = jax.lax.broadcasted_iota(jnp.float32, logits.shape, 0) / ROWS
    logits = logits.astype(jnp.float32) + place  # a piece knows its own place on its device
    picked = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
    return jnp.mean((jax.nn.logsumexp(logits, -1) - picked) * (1 + place[:, 0]))


def arguments(dtype, spec):
    """Weights, rows and labels on a mesh of 4 x 2 of the devices that tests have."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))

    def put(x, *names):
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*names)))

    normal = [jnp.asarray(RNG.normal(size=s), dtype) for s in ((WIDTH, WIDTH), (WIDTH, WORDS))]
    w = {"in": put(normal[0]), "out": put(normal[1] / 8, None, spec)}
    x = put(jnp.asarray(RNG.normal(size=(ROWS, WIDTH)), dtype), "data")
    return w, x, put(jnp.asarray(RNG.integers(0, WORDS, ROWS)), "data")


def compiled(function, args):
    found = jax.jit(function).lower(*args).compile()
    m = found.memory_analysis()
    return m.temp_size_in_bytes, found.as_text().count("all-gather")


@ON_EIGHT
@pytest.mark.parametrize("spec", [None, "model"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_each_device_cuts_its_own_part(dtype, spec):
    args = arguments(dtype, spec)
    gradient = jax.value_and_grad(loss, (0, 1))
    shardings, told = leaf_shardings(args, {}), []
    inside = in_pieces(gradient, 16, told.append, shardings)
    outside = jax.value_and_grad(in_pieces(loss, 16, told.append, shardings), (0, 1))
    expected = jax.jit(gradient)(*args)
    before, _ = compiled(gradient, args)
    for ours in (inside, outside):
        made = jax.jit(ours)(*args)
        assert told[-1].regions[0].devices == 4
        assert "on each of 4 devices" in str(told[-1])
        for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
            a, b = (np.asarray(v, np.float32) for v in (a, b))
            np.testing.assert_allclose(a, b, 1e-4, 2 ** (-20 if dtype == jnp.float32 else -7))
        bytes_, gathers = compiled(ours, args)
        assert bytes_ < 0.7 * before
        assert not gathers


@ON_EIGHT
def test_planned_in_pieces():
    args = arguments(jnp.float32, None)
    options = {"time_limit": 1.0, "step_limit": 100, "memory_budget": "7MiB"}
    function = olla_xla.plan(jax.value_and_grad(loss), fission=True, **options)
    found = function.choice(*args)
    assert found.pieces > 1
    assert found.plan.regions[0].devices == 4
    np.testing.assert_allclose(function(*args)[0], jax.jit(loss)(*args), 1e-5)


@ON_EIGHT
def test_a_device_with_one_index_has_nothing_to_cut():
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    x = jax.device_put(jnp.ones((4, 4096)), NamedSharding(mesh, PartitionSpec("data")))
    with pytest.raises(InputError, match="over 4 devices"):
        olla_xla.fission(lambda x: jnp.cumsum(jnp.sort(x, 1), 1).sum(), axis=0)(x)


@pytest.mark.skipif(jax.device_count() >= 8, reason="this is that process")
def test_all_of_it_on_eight_devices():
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2000:]
    assert "......s" in found.stdout, found.stdout[-2000:]
