"""Jitted functions of other libraries, which are no functions of arrays: what to write instead."""

from __future__ import annotations

from typing import Any

from olla_xla.errors import InputError

__all__ = ["refuse_foreign"]

_INSTEAD = {
    "flax.nnx": (
        "an nnx.jit function updates its arguments in place; pass the plain function of a state: "
        "`graph, state = nnx.split((model, optimizer))` before the step(graph, state, batch), "
        "planned with static_argnums=0 and donate_argnums=1; "
        "`model, optimizer = nnx.merge(graph, state)` at its start; "
        "`return nnx.state((model, optimizer)), loss` at its end"
    ),
    "equinox": (
        "an equinox.filter_jit function takes more than arrays; pass the plain function of them: "
        "`arrays, rest = eqx.partition((model, opt_state), eqx.is_array)` before the step(arrays, "
        "batch), planned with donate_argnums=0; `model, opt_state = eqx.combine(arrays, rest)` at "
        "its start; `return eqx.filter((model, opt_state), eqx.is_array), loss` at its end"
    ),
}
"""By library, the three lines that make a planned step of one that it jits."""


def refuse_foreign(fn: Any) -> None:
    """Raises InputError, with the lines to write, for what nnx.jit and equinox.filter_jit return.

    Both split objects into arrays and the rest at every call. Inlined into a jitted function of
    ours, the first would update objects with tracers, and the second would lose its donations.
    """
    for kind in type(fn).__mro__:
        for library, instead in _INSTEAD.items():
            if f"{kind.__module__}.".startswith(f"{library}.") and "Jit" in kind.__name__:
                raise InputError(f"olla_xla.plan: {instead}")
