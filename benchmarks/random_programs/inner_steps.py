"""Several steps of an optimizer in one loop: trained by it, or a gradient through all of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs.spec import InnerSteps

INNER_FORMS = ("scan", "fori", "unrolled", "scan_jit")
INNER_OPTIMIZERS = ("sgd", "momentum", "adam", "rms")

_LONGEST = 2
"""Where the count of steps stops, from which it follows how much of its zeros a mean still has."""


def inner_parameters(body: InnerSteps, random: np.random.Generator) -> dict[str, Any]:
    """The weights that the inner steps begin with."""
    return {
        "w": random.standard_normal((body.inputs, body.width)) / body.inputs**0.5,
        "v": random.standard_normal((body.width, body.inputs)) / body.width**0.5,
        "rate": np.asarray(-2.0),
    }


def inner_batch(body: InnerSteps, random: np.random.Generator) -> dict[str, Any]:
    """What the step is given anew each time: a batch for each inner step, or one for all."""
    lead = (body.steps,) if body.batches else ()
    return {
        name: random.standard_normal((*lead, body.rows, body.inputs)) for name in ("x", "y")
    } | {"test": random.standard_normal((body.rows, body.inputs))}


def inner_loss(body: InnerSteps, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """The loss after the steps, to be differentiated through them; values for results."""
    state, losses = _trained(body, params, batch)
    test = batch["test"].astype(params["w"].dtype)
    last = _loss(state["p"], test, jnp.sin(test))
    loss = last.astype(losses.dtype) + 0.1 * losses.mean()
    return loss, {"last": state["p"]["w"], "middle": losses, "mean": state["mean"]}


def inner_next(body: InnerSteps, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """The weights after the steps, and values for results."""
    state, losses = _trained(body, params, batch)
    new = {name: value.astype(params[name].dtype) for name, value in state["p"].items()}
    return {**params, **new}, {"last": losses, "middle": state["mean"]}


def _loss(p: Any, x: Any, y: Any) -> Any:
    """A loss that is the sum of two means."""
    found = jnp.tanh(x @ p["w"]) @ p["v"]
    wide = jnp.promote_types(found.dtype, jnp.float32)
    return ((found - y).astype(wide) ** 2).mean() + 0.01 * (p["w"].astype(wide) ** 2).mean()


def _trained(body: InnerSteps, params: Any, batch: Any) -> tuple[Any, Any]:
    """The state after all steps, and the loss of each."""
    dtype = params["w"].dtype
    weights = {"w": params["w"], "v": params["v"]}
    rate = jnp.exp(params["rate"])

    def step(state: Any, data: Any) -> tuple[Any, Any]:
        x, y = (one.astype(dtype) for one in data)
        loss, grads = jax.value_and_grad(_loss)(state["p"], x, y)
        n = state["n"]
        n = jnp.where(n < _LONGEST, n + 1, _LONGEST) if body.saturates else n + 1
        state = {**state, "n": n}
        moved = {name: _moved(body, state, name, grads[name], rate) for name in weights}
        mean = 0.8 * state["mean"] + 0.2 * loss
        state = {"n": n, "mean": mean} | {
            part: {name: moved[name][part].astype(dtype) for name in weights} for part in "pmv"
        }
        return state, loss

    if body.form == "scan_jit":
        step = jax.jit(step)
    zeros = jax.tree.map(jnp.zeros_like, weights)
    mean = jnp.zeros((), jnp.promote_types(dtype, jnp.float32))
    state = {"p": weights, "m": zeros, "v": zeros, "n": jnp.int32(0), "mean": mean}

    def data(number: Any) -> Any:
        return tuple(batch[name][number] if body.batches else batch[name] for name in "xy")

    if body.form == "unrolled":
        losses = []
        for number in range(body.steps):
            state, loss = step(state, data(number))
            losses.append(loss)
        return state, jnp.stack(losses)
    if body.form == "fori":

        def turn(number: Any, carry: Any) -> Any:
            state, losses = carry
            state, loss = step(state, data(number))
            return state, losses.at[number].set(loss)

        return jax.lax.fori_loop(0, body.steps, turn, (state, jnp.zeros(body.steps, mean.dtype)))
    xs = (batch["x"], batch["y"]) if body.batches else None
    return jax.lax.scan(
        lambda state, given: step(state, given if body.batches else data(0)),
        state,
        xs,
        length=body.steps,
    )


def _moved(body: InnerSteps, state: Any, name: str, g: Any, rate: Any) -> dict[str, Any]:
    """A weight and its two moments after a step."""
    p, m, v = (state[part][name] for part in "pmv")
    if body.optimizer == "sgd":
        return {"p": p - rate * g, "m": m, "v": v}
    if body.optimizer == "momentum":
        m = 0.9 * m + g
        return {"p": p - rate * m, "m": m, "v": v}
    v = 0.99 * v + 0.01 * g * g
    if body.optimizer == "rms":
        return {"p": p - rate * 0.1 * g / jnp.sqrt(v + 1e-4), "m": m, "v": v}
    m = 0.9 * m + 0.1 * g
    fair_m, fair_v = m / (1 - 0.9 ** state["n"]), v / (1 - 0.99 ** state["n"])
    return {"p": p - rate * 0.1 * fair_m / jnp.sqrt(fair_v + 1e-6), "m": m, "v": v}
