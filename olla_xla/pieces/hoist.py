"""A jaxpr's equations in a form in which more of them can be cut.

Results of scans that depend on nothing carried are made by a scan of their own. A layer's weights
that are cast, scaled or reshaped in a scan's body are kept for its gradient beside the activations.
Where a cut goes along the batch, each piece needs all of these weights, and only its part of the
activations; one call gives no results of both kinds. Random bits are written as arithmetic on the
key and on the place of each, so that a piece makes its own; bits of other generators than JAX's
default stay as they are.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from jax.interpreters.partial_eval import dce_jaxpr

from olla_xla.segments.equations import (
    function_of,
    has_effect,
    is_variable,
    needed_for,
    renamed,
    scan_counts,
)
from olla_xla.segments.trace import Inlined, inlined


def prepared(jaxpr: Any) -> Inlined:
    """Rewrites a jaxpr's equations so that more can run in pieces: plain jitted calls are inlined,
    stacked results of scans that need no carry have scans of their own, and random bits of JAX's
    default generator are arithmetic. What neither results nor effects need is left out, also inside
    loops: derivatives leave such values behind.
    """
    names: dict[Any, Any] = {}

    rewritten = []
    needed, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    equations, outputs, constants = inlined(needed)
    for e in equations:
        e = e.replace(invars=renamed(e.invars, names))
        if e.primitive.name == "scan" and not e.effects:
            rewritten += _apart(e, names)
        if e.primitive.name == "random_bits":
            rewritten += _written_out(e, names) or [e]
        else:
            rewritten.append(e)
    return Inlined(tuple(rewritten), tuple(renamed(outputs, names)), constants)


def _apart(e: Any, names: dict[Any, Any]) -> list[Any]:
    """Makes new scans for results of scan `e`, stacked over its iterations, that do not depend on
    its carry; returns their equations and adds {old variable: new one} to `names`. Results that
    share no equation have a scan each: some may be cut where others are whole.
    """
    body, (constants, carries) = e.params["jaxpr"].jaxpr, scan_counts(e)
    tainted = set(body.invars[constants : constants + carries])
    for inner in body.eqns:
        if has_effect(inner) or any(is_variable(v) and v in tainted for v in inner.invars):
            tainted.update(inner.outvars)
    made = {v for inner in body.eqns for v in inner.outvars}
    pure = [inner for inner in body.eqns if not has_effect(inner)]
    groups: list[tuple[set[Any], list[int]]] = []
    for k, v in enumerate(body.outvars):
        if 0 < carries <= k and is_variable(v) and v in made - tainted:
            needed = {id(inner) for inner in needed_for([v], pure)}
            joined = [one for one in groups if not one[0].isdisjoint(needed)]
            groups = [one for one in groups if one not in joined]
            together = [n for _, results in joined for n in results]
            groups.append((needed.union(*(g for g, _ in joined)), [*together, k]))
    return [one for _, results in groups for one in _alone(e, pure, results, names)]


def _alone(e: Any, pure: Sequence[Any], stacked: Sequence[int], names: Any) -> list[Any]:
    """Makes a scan without carry for the results numbered `stacked` of scan `e`; returns its
    equations, adds {old variable: new} to `names`. `pure`: the body's equations without effects.
    """
    p, (constants, carries) = e.params, scan_counts(e)
    closed, body = p["jaxpr"], p["jaxpr"].jaxpr
    fixed, xs = body.invars[:constants], body.invars[constants + carries :]
    results = [body.outvars[k] for k in stacked]
    function = function_of(needed_for(results, pure), [*body.constvars, *fixed, *xs], results)

    def alone(*values: Any) -> Any:
        def step(_: Any, x: Any) -> Any:
            return (), function(*closed.consts, *values[:constants], *x)

        how = {name: p[name] for name in ("length", "reverse", "unroll")}
        return jax.lax.scan(step, (), list(values[constants:]), **how)[1]

    atoms = [*e.invars[:constants], *e.invars[constants + carries :]]
    return _in_place(e, alone, atoms, [e.outvars[k] for k in stacked], names)


def _in_place(
    e: Any, function: Callable[..., Any], atoms: Sequence[Any], made: Sequence[Any], names: Any
) -> list[Any]:
    """Traces `function` of the operands `atoms` to equations that replace the results `made` of
    `e`; returns them and adds {old variable: new one} to `names`; [] if it has constants.
    """
    traced = jax.make_jaxpr(function)(
        *(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in atoms)
    )
    if traced.consts:
        return []
    jaxpr, _ = dce_jaxpr(traced.jaxpr, [True] * len(made), instantiate=True)
    inside: dict[Any, Any] = dict(zip(jaxpr.invars, atoms, strict=True))
    names.update(zip(made, jaxpr.outvars, strict=True))
    return [
        one.replace(invars=renamed(one.invars, inside), source_info=e.source_info)
        for one in jaxpr.eqns
    ]


def _written_out(e: Any, names: dict[Any, Any]) -> list[Any]:
    """Returns equations that compute a `random_bits` equation from the place of each element, and
    adds {its result: theirs} to `names`; [] but for Threefry's, if partitionable and of 32 bits and
    2**32 elements a key at most.
    """
    (keys,), width, shape = e.invars, e.params["bit_width"], e.params["shape"]
    is_counted = jax.config.jax_threefry_partitionable and width <= 32
    if str(keys.aval.dtype) != "key<fry>" or not is_counted or math.prod(shape) > 2**32:
        return []
    return _in_place(e, functools.partial(_bits, width, shape), [keys], e.outvars, names)


def _bits(width: int, shape: tuple[int, ...], keys: Any) -> Any:
    """Returns the random bits of keys, [*keys.shape, *shape], as `jax.random.bits` gives them."""
    rank, each = keys.ndim, (1,) * keys.ndim + shape
    data = jax.random.key_data(keys)
    first, second = (
        jax.lax.broadcast_in_dim(data[..., k], keys.shape + (1,) * len(shape), range(rank))
        for k in (0, 1)
    )
    place = jnp.zeros(each, jnp.uint32)
    for d, stride in enumerate(itertools.accumulate(shape[:0:-1], operator.mul, initial=1)):
        at = jax.lax.broadcasted_iota(jnp.uint32, each, len(each) - 1 - d)
        place += at * jnp.uint32(stride)
    upper, lower = threefry2x32_p.bind(first, second, jnp.zeros_like(place), place)
    return (upper ^ lower).astype(jnp.dtype(f"uint{width}"))
