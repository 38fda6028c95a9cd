"""Jitted functions of other libraries, which take more than arrays: what to write instead."""

from typing import Any

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
"""Library -> what is lost, and the three lines that turn a step it jits into a planned one."""


def caution(fn: Any) -> str:
    """A warning text if `fn` was made by nnx.jit or equinox.filter_jit; "" for any other function.

    Both split objects into arrays and the rest at every call. If inlined into another jitted
    function, the first updates copies of the objects, and the second loses its donations. An object
    without `lower` is the function that such a library passes to `jax.jit`, and needs no caution.
    """
    if not hasattr(fn, "lower"):
        return ""
    for kind in type(fn).__mro__:
        for library, text in _CAUTIONS.items():
            if f"{kind.__module__}.".startswith(f"{library}.") and "Jit" in kind.__name__:
                return text
    return ""
