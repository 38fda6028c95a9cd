"""Jitted functions of other libraries, which are no functions of arrays: what to write instead."""

from __future__ import annotations

from typing import Any

import jax

from olla_xla.errors import InputError

__all__ = ["caution", "jax_stage"]

_CAUTIONS = {
    "flax.nnx": (
        "as under jax.jit, what an nnx.jit function changes in its arguments is lost; plan the "
        "plain function of a state instead: "
        "`graph, state = nnx.split((model, optimizer))` before the step(graph, state, batch), "
        "planned with static_argnums=0 and donate_argnums=1; "
        "`model, optimizer = nnx.merge(graph, state)` at its start; "
        "`return nnx.state((model, optimizer)), loss` at its end"
    ),
    "equinox": (
        "as under jax.jit, an equinox.filter_jit function takes arrays only, and donates none; "
        "plan the plain function of them instead: "
        "`arrays, rest = eqx.partition((model, opt_state), eqx.is_array)` before the step(arrays, "
        "batch), planned with donate_argnums=0; `model, opt_state = eqx.combine(arrays, rest)` at "
        "its start; `return eqx.filter((model, opt_state), eqx.is_array), loss` at its end"
    ),
}
"""By library, what is lost, and the three lines that make a planned step of one that it jits."""


def caution(fn: Any) -> str:
    """What to know of a function that nnx.jit or equinox.filter_jit returned; "" of any other.

    Both split objects into arrays and the rest at every call. Inlined into another jitted function
    the first updates copies of objects, and the second loses its donations. What offers no `lower`
    is the function that such a library gives to `jax.jit` itself, and is as good as any.
    """
    if not hasattr(fn, "lower"):
        return ""
    for kind in type(fn).__mro__:
        for library, text in _CAUTIONS.items():
            if f"{kind.__module__}.".startswith(f"{library}.") and "Jit" in kind.__name__:
                return text
    return ""


def jax_stage(stage: Any) -> Any:
    """JAX's own lowered function, which another library's holds; our own and JAX's as they are.

    Libraries that split objects into arrays and the rest (Flax's nnx, equinox) wrap what `lower()`
    gives, and their wrappers have some of JAX's attributes.

    Raises:
      InputError: it holds none.
    """
    ours = stage if isinstance(stage, jax.stages.Lowered) else getattr(stage, "lowered", None)
    if not isinstance(ours, jax.stages.Lowered):
        kind = f"{type(stage).__module__}.{type(stage).__qualname__}"
        raise InputError(f"lower() gave a {kind}, which holds no jax.stages.Lowered; use jax.jit")
    return ours
