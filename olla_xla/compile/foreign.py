"""Jitted functions of other libraries, which take more than arrays: what to write instead."""

from typing import Any

_CAUTIONS = {
    "flax.nnx": (
        "olla_xla.plan, like jax.jit, loses the changes that an nnx.jit function makes to its "
        "arguments; plan a plain function step(graph, state, batch) instead, with "
        "static_argnums=0 and donate_argnums=1: call "
        "`graph, state = nnx.split((model, optimizer))` before it, begin it with "
        "`model, optimizer = nnx.merge(graph, state)`, and end it with "
        "`return nnx.state((model, optimizer)), loss`"
    ),
    "equinox": (
        "olla_xla.plan, like jax.jit, passes only arrays to an equinox.filter_jit function and "
        "donates none; plan a plain function step(arrays, batch) with donate_argnums=0 instead: "
        "call `arrays, rest = eqx.partition((model, opt_state), eqx.is_array)` before it, begin "
        "it with `model, opt_state = eqx.combine(arrays, rest)`, and end it with "
        "`return eqx.filter((model, opt_state), eqx.is_array), loss`"
    ),
}
"""Library -> what is lost, and the three lines that turn a step it jits into a planned one."""


def caution(fn: Any) -> str:
    """Returns a warning if `fn` was made by nnx.jit or equinox.filter_jit; "" for any other one.
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
