"""Results of scans that depend on nothing carried, made by a scan of their own.

A layer's weights that are cast, scaled or reshaped in a scan's body are kept for its gradient
beside the activations. Where a cut goes along the batch, each piece needs all of these weights, and
only its part of the activations; one call gives no results of both kinds.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from olla_xla.segments.equations import (
    function_of,
    has_effect,
    is_variable,
    needed_for,
    renamed,
    scan_counts,
)


def hoisted(equations: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Moves scans' results that depend on no carried value into scans of their own.

    Returns:
      (the new equations, `outputs` as variables of these).
    """
    names: dict[Any, Any] = {}

    found = []
    for e in equations:
        e = e.replace(invars=renamed(e.invars, names))
        if e.primitive.name == "scan" and not e.effects:
            found += _apart(e, names)
        found.append(e)
    return found, renamed(outputs, names)


def _apart(e: Any, names: dict[Any, Any]) -> Iterator[Any]:
    """A scan that gives what `e` stacks and does not depend on what it carries; adds to `names`."""
    p, (constants, carries) = e.params, scan_counts(e)
    closed, body = p["jaxpr"], p["jaxpr"].jaxpr
    fixed, xs = body.invars[:constants], body.invars[constants + carries :]
    tainted = set(body.invars[constants : constants + carries])
    for inner in body.eqns:
        if has_effect(inner) or any(is_variable(v) and v in tainted for v in inner.invars):
            tainted.update(inner.outvars)
    made = {v for inner in body.eqns for v in inner.outvars}
    stacked = [
        k
        for k, v in enumerate(body.outvars)
        if k >= carries and is_variable(v) and v in made - tainted
    ]
    if not carries or not stacked:
        return
    results = [body.outvars[k] for k in stacked]
    pure = [inner for inner in body.eqns if not has_effect(inner)]
    function = function_of(needed_for(results, pure), [*body.constvars, *fixed, *xs], results)

    def alone(*values: Any) -> Any:
        def step(_: Any, x: Any) -> Any:
            return (), function(*closed.consts, *values[:constants], *x)

        how = {name: p[name] for name in ("length", "reverse", "unroll")}
        return jax.lax.scan(step, (), list(values[constants:]), **how)[1]

    atoms = [*e.invars[:constants], *e.invars[constants + carries :]]
    traced = jax.make_jaxpr(alone)(
        *(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in atoms)
    )
    if traced.consts:
        return
    inside: dict[Any, Any] = dict(zip(traced.jaxpr.invars, atoms, strict=True))
    for one in traced.jaxpr.eqns:
        yield one.replace(invars=renamed(one.invars, inside), source_info=e.source_info)
    names.update(zip((e.outvars[k] for k in stacked), traced.jaxpr.outvars, strict=True))
