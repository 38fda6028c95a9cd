"""Makes a program's spec into a step, its arguments and its options for `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs import (
    arithmetic,
    convolutional,
    fixed_point,
    graph,
    inner_steps,
    layered,
    recurrent,
    sharded,
    terms,
    transformer,
    updates,
)
from benchmarks.random_programs.optimizers import clipped, optimizer_state, updated
from benchmarks.random_programs.spec import (
    Arithmetic,
    Body,
    ConvNet,
    FixedPoint,
    Graph,
    InnerSteps,
    Layered,
    Program,
    Recurrent,
    Sharded,
    Transformer,
    Updates,
)

EXTRAS = (
    "pass_input",  # the batch is a result, unchanged
    "pass_parameter",  # so is a parameter, as it was before the step
    "repeat",  # a result comes twice
    "middle",  # values in between are results
    "gradients",  # so are the gradients
    "swap",  # two parameters of one shape change places
    "unused",  # an argument that nothing reads
    "empty",  # an array without elements in the state
    "int4",  # a state of four-bit numbers
    "bool",  # a state of truth values
    "complex",  # a state of complex numbers
    "scalar",  # a scalar of the batch in the loss
    "key",  # a random key in the state, and a draw in the results
)
"""What a program may have beside its body."""


class Built(NamedTuple):
    """A program as a step that can be jitted.

    Attributes:
      step: (parameters, state, batch) -> (parameters, state, results).
      arguments: of the first step. jit_options: for `jax.jit`.
    """

    step: Callable[..., Any]
    arguments: tuple[Any, Any, Any]
    jit_options: dict[str, Any]


class _Parts(NamedTuple):
    parameters: Callable[..., dict[str, Any]]
    batch: Callable[..., dict[str, Any]]
    loss: Callable[..., tuple[Any, Any]] | None
    next: Callable[..., tuple[Any, Any]] | None


_PARTS: dict[type, _Parts] = {
    Graph: _Parts(graph.graph_parameters, graph.graph_batch, graph.graph_loss, graph.graph_next),
    Recurrent: _Parts(
        recurrent.recurrent_parameters, recurrent.recurrent_batch, recurrent.recurrent_loss, None
    ),
    Transformer: _Parts(
        transformer.transformer_parameters,
        transformer.transformer_batch,
        transformer.transformer_loss,
        None,
    ),
    ConvNet: _Parts(
        convolutional.conv_parameters, convolutional.conv_batch, convolutional.conv_loss, None
    ),
    Updates: _Parts(updates.updates_parameters, updates.updates_batch, None, updates.updates_next),
    Arithmetic: _Parts(
        arithmetic.arithmetic_parameters,
        arithmetic.arithmetic_batch,
        arithmetic.arithmetic_loss,
        None,
    ),
    Layered: _Parts(layered.layered_parameters, layered.layered_batch, layered.layered_loss, None),
    FixedPoint: _Parts(
        fixed_point.fixed_parameters, fixed_point.fixed_batch, fixed_point.fixed_loss, None
    ),
    InnerSteps: _Parts(
        inner_steps.inner_parameters,
        inner_steps.inner_batch,
        inner_steps.inner_loss,
        inner_steps.inner_next,
    ),
    Sharded: _Parts(sharded.sharded_parameters, sharded.sharded_batch, sharded.sharded_loss, None),
}


def build(program: Program) -> Built:
    """The step of a program, with arguments made from its seed.

    With `x64` that is under `jax.enable_x64`, and whoever runs the step has to be too.
    """
    parts = _PARTS[type(program.body)]
    random = np.random.default_rng(program.seed)
    wide = jnp.float64 if program.x64 and program.dtype == "float64" else jnp.float32
    dtype = jnp.bfloat16 if program.dtype == "bfloat16" else wide
    params = {
        name: jnp.asarray(value, dtype)
        for name, value in parts.parameters(program.body, random).items()
    }
    batch = {
        name: jnp.asarray(value, wide if value.dtype.kind == "f" else None)
        for name, value in parts.batch(program.body, random).items()
    }
    trains = parts.loss is not None and (program.optimizer != "none" or parts.next is None)
    state: dict[str, Any] = {"count": jnp.int32(0)}
    if program.draws:
        state["key"] = jax.random.key(program.seed)
    if trains:
        state["optimizer"] = optimizer_state(program.optimizer, params)
    if kept := terms.terms_state(program.terms, wide):
        state["terms"] = kept
    _add_state(program.extras, state, batch, random)
    step = _train_step(program, parts) if trains else _plain_step(program, parts)
    donate = tuple(sorted({number % 3 for number in program.donate}))
    jit_options: dict[str, Any] = {"donate_argnums": donate}
    if isinstance(program.body, Sharded):
        jit_options |= sharded.sharded_options()
    if program.host:
        device, *_ = jax.devices()
        host = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
        jit_options["out_shardings"] = None, None, host
    if not program.optimized:
        jit_options["compiler_options"] = {"xla_backend_optimization_level": 0}
    return Built(step, (params, state, batch), jit_options)


def _train_step(program: Program, parts: _Parts) -> Callable[..., Any]:
    body: Body = program.body

    def loss(params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        assert parts.loss is not None
        if program.dtype == "mixed":
            params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        value, middle = parts.loss(body, params, batch, key)
        value, more = terms.loss_with_terms(program.terms, value, middle, params)
        return (value * batch["scalar"] if "scalar" in batch else value), (middle, more)

    def step(params: Any, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        state, drawn = _drawn(state)
        derive = jax.value_and_grad(loss, has_aux=True)
        (value, (middle, more)), grads = derive(params, batch, drawn)
        kept = clipped(grads) if program.clip else grads
        name = "sgd" if program.optimizer == "none" else program.optimizer
        new, inner = updated(name, params, kept, state["optimizer"], state["count"])
        state = {**state, "optimizer": inner}
        state, results = _with_terms(program, state, (value, middle, grads, new), more)
        new, state, found = _results(program, params, new, state, batch, value, middle, grads)
        return new, state, {**found, **results}

    return step


def _with_terms(program: Program, state: Any, trees: Any, more: Any) -> tuple[Any, Any]:
    """The state with the scalars that are kept over steps, and results beside the usual ones."""
    number = state["count"] + 1
    kept, found = terms.kept_terms(program.terms, state.get("terms", ()), number, *trees)
    results = {name: list_ for name, list_ in (("parts", more), ("terms", found)) if list_}
    return ({**state, "terms": kept} if kept else state), results


def _plain_step(program: Program, parts: _Parts) -> Callable[..., Any]:
    body: Body = program.body

    def step(params: Any, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        assert parts.next is not None
        state, drawn = _drawn(state)
        if program.dtype == "mixed":
            low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            new, middle = parts.next(body, low, batch, drawn)
            new = jax.tree.map(lambda n: n.astype(jnp.float32), new)
        else:
            new, middle = parts.next(body, params, batch, drawn)
        value = sum(v.astype(jnp.float32).mean() for v in jax.tree.leaves(middle))
        value, more = terms.loss_with_terms(program.terms, value, middle, params)
        state, results = _with_terms(program, state, (value, middle, new), more)
        new, state, found = _results(program, params, new, state, batch, value, middle, {})
        return new, state, {**found, **results}

    return step


def _drawn(state: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The state with its key used up once, and a key to draw from, or None."""
    if "key" not in state:
        return state, None
    key, drawn = jax.random.split(state["key"])
    return {**state, "key": key}, drawn


def _results(
    program: Program,
    params: Any,
    new: dict[str, Any],
    state: dict[str, Any],
    batch: Any,
    value: Any,
    middle: Any,
    grads: Any,
) -> tuple[Any, Any, Any]:
    """All that the step returns, with the extras of the program."""
    results: dict[str, Any] = {"loss": value}
    extras = program.extras
    if "pass_input" in extras:
        results["input"] = batch
    if "pass_parameter" in extras:
        results["old"] = params[min(params)]
    if "repeat" in extras:
        results["again"] = (new[max(new)], new[max(new)], value)
    if "middle" in extras:
        results["middle"] = middle
    if "gradients" in extras:
        results["gradients"] = grads
    if "key" in extras:
        results["drawn"] = jax.random.uniform(state["key"], (16, 16))
    if "swap" in extras:
        new = _swapped(new)
    return new, _next_state(state, value), results


def _swapped(new: dict[str, Any]) -> dict[str, Any]:
    by_shape: dict[Any, str] = {}
    for name in sorted(new):
        if (other := by_shape.setdefault(new[name].shape, name)) != name:
            return {**new, name: new[other], other: new[name]}
    return new


def _add_state(extras: tuple[str, ...], state: Any, batch: Any, random: Any) -> None:
    if "unused" in extras:
        batch["unused"] = jnp.ones((64, 64))
        state["unread"] = jnp.asarray(random.standard_normal((32, 32)), jnp.float32)
    if "scalar" in extras:
        batch["scalar"] = jnp.float32(0.75)
    if "empty" in extras:
        state["empty"] = jnp.zeros((0, 8))
    if "int4" in extras:
        state["int4"] = jnp.asarray(random.integers(-8, 8, (64, 32)), jnp.int4)
    if "bool" in extras:
        state["bool"] = jnp.asarray(random.integers(0, 2, (64, 32)), jnp.bool_)
    if "complex" in extras:
        z = random.standard_normal((32, 32)) + 1j * random.standard_normal((32, 32))
        state["complex"] = jnp.asarray(z, jnp.complex64)


def _next_state(state: dict[str, Any], value: Any) -> dict[str, Any]:
    new = {**state, "count": state["count"] + 1}
    if "empty" in state:
        new["empty"] = state["empty"] * 2
    if "int4" in state:
        new["int4"] = jnp.where(value > 0, state["int4"][::-1], state["int4"] + jnp.int4(1))
    if "bool" in state:
        new["bool"] = state["bool"] ^ (value > 0.5) | state["bool"][::-1]
    if "complex" in state:
        z = state["complex"] * jnp.exp(1j * value.astype(jnp.complex64))
        new["complex"] = (z + z[::-1].conj()) * 0.5
    return new
