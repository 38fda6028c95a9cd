"""Steps over several devices, as a loss: what all of them sum is read again beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.random_programs.spec import Sharded

_DEVICES = 4
_AXIS = "d"


def _softmax(h: Any) -> Any:
    most = jax.lax.pmax(jax.lax.stop_gradient(h).max(0), _AXIS)
    scores = jnp.exp(h - most)
    return scores / jax.lax.psum(scores.sum(0), _AXIS)


def _norm(h: Any) -> Any:
    centred = h - jax.lax.pmean(h.mean(0), _AXIS)
    return centred / jnp.sqrt(jax.lax.pmean((centred * centred).mean(0), _AXIS) + 1e-3)


EXCHANGES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda h: 0.2 * (h + jax.lax.psum(h, _AXIS)),
    "mean": lambda h: h - jax.lax.pmean(h, _AXIS),
    "softmax": _softmax,
    "norm": _norm,
    "gather": lambda h: h + jax.lax.all_gather(h, _AXIS).mean(0),
    "none": jnp.tanh,
}
"""What a layer does with all devices' rows: name -> (this device's rows) -> rows."""


def with_devices(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that has several CPU devices."""
    flag = f"--xla_force_host_platform_device_count={_DEVICES}"
    return {**environment, "XLA_FLAGS": f"{environment.get('XLA_FLAGS', '')} {flag}".strip()}


def sharded_parameters(body: Sharded, random: np.random.Generator) -> dict[str, Any]:
    """The arrays that are trained: a stack of matrices, on every device."""
    shape = (len(body.layers), body.width, body.width)
    return {"w": random.standard_normal(shape) / body.width**0.5}


def sharded_batch(body: Sharded, random: np.random.Generator) -> dict[str, Any]:
    """What the step is given anew each time."""
    return {"x": random.standard_normal((body.rows * _DEVICES, body.width))}


def sharded_options() -> dict[str, Any]:
    """Options of `jax.jit`: arguments and results are whole on every device."""
    whole = NamedSharding(_mesh(), PartitionSpec())
    return {"in_shardings": whole, "out_shardings": whole}


def sharded_loss(body: Sharded, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """Loss, and values for additional results."""

    def local(w: Any, x: Any) -> tuple[Any, Any]:
        h = x
        if body.scanned:

            def layer(h: Any, weight: Any) -> tuple[Any, Any]:
                return EXCHANGES[body.layers[0]](jnp.tanh(h @ weight)), None

            h, _ = jax.lax.scan(layer, h, w)
        else:
            for name, weight in zip(body.layers, w, strict=True):
                h = EXCHANGES[name](jnp.tanh(h @ weight))
        wide = h.astype(jnp.promote_types(h.dtype, jnp.float32))
        return jax.lax.pmean((wide * wide).mean(), _AXIS), h

    rows, whole = PartitionSpec(_AXIS), PartitionSpec()
    over = jax.shard_map(
        local, mesh=_mesh(), in_specs=(whole, rows), out_specs=(whole, rows), check_vma=False
    )
    loss, last = over(params["w"], batch["x"].astype(params["w"].dtype))
    return loss, {"last": last, "middle": last[: body.rows]}


def _mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:_DEVICES]), (_AXIS,))
