"""Which integers number the rows of an array, as in `x[jnp.arange(n), i]`.

A look-up or a scatter that is addressed by row numbers treats each row by itself, though JAX writes
the numbers among its indices as if they were any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from olla_xla.pieces.factors import Factor, reshapes, scatter_dims
from olla_xla.segments.equations import is_variable

Rows = Mapping[int | None, int]
"""Of an array: index c in its last dimension -> d where array[..., c] counts from 0 along dimension
d; None -> d where the whole array does."""


def rows_made(e: Any, rows: Callable[[Any], Rows], made_by: Callable[[Any], Any]) -> Rows:
    """Returns where the one result of an equation, no call, is known to count up along a dimension:
    {c: d} if result[..., c] is the index in dimension d, {None: d} if all of it is, else {}.
    `rows`: the same of an operand. `made_by`: the equation that makes an operand, or None.
    """
    name, p = e.primitive.name, e.params
    if name == "iota":
        return {None: p["dimension"]}
    if name in ("convert_element_type", "copy", "copy_p"):
        return rows(e.invars[0])
    if name in ("broadcast_in_dim", "reshape"):
        (given,), made = (v.aval.shape for v in e.invars[:1]), e.outvars[0].aval.shape
        d = rows(e.invars[0]).get(None)
        pairs = enumerate(p["broadcast_dimensions"]) if "shape" in p else reshapes(e)
        counted = [int(k) for i, k in pairs if i == d and given[i] == made[k]]
        return {None: counted[0]} if counted else {}
    if name == "select_n" and _is_below_zero(made_by(e.invars[0]), rows):
        return rows(e.invars[1])  # jnp counts indices below zero from the end
    if name == "concatenate" and p["dimension"] == e.outvars[0].aval.ndim - 1:
        first, counted = 0, {}
        for v in e.invars:
            known = rows(v)
            for c in range(n := v.aval.shape[-1]):
                d = known.get(c, known.get(None))
                if d is not None and d < v.aval.ndim - 1:
                    counted[first + c] = d
            first += n
        return counted
    return {}


def _is_below_zero(e: Any, rows: Callable[[Any], Rows]) -> bool:
    """Whether `e` is an equation `x < 0` whose `x` counts up from 0, so that it is never true."""
    if e is None or e.primitive.name != "lt" or is_variable(e.invars[1]):
        return False
    return e.invars[1].val == 0 and None in rows(e.invars[0])


def agreed(found: Iterable[Rows]) -> Rows:
    """Returns the entries (what counts up along which dimension) that all these Rows share."""
    one, *others = [*found] or [{}]
    return {c: d for c, d in one.items() if all(other.get(c) == d for other in others)}


def shifted(rows: Rows, by: int) -> Rows:
    """Returns the Rows (along which dimension parts count up) of an array with `by` more first
    dimensions. `by` may be negative; entries of dimensions that are gone are left out.
    """
    return {c: d + by for c, d in rows.items() if d + by >= 0}


def row_factors(e: Any, rows: Rows) -> list[Factor]:
    """Returns Factors (axes to cut along) of a gather or scatter: those along which its indices
    count up, so that each row is addressed by its own number. `rows`: of the index array.
    """
    name, operand, indices = e.primitive.name, e.invars[0].aval, e.invars[1].aval
    numbers, factors = e.params["dimension_numbers"], []
    if name == "gather":
        dims, alone = numbers.start_index_map, numbers.collapsed_slice_dims
        batch = [d for d in range(e.outvars[0].aval.ndim) if d not in numbers.offset_dims]
    else:
        dims, alone = numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims
        batch = scatter_dims(e)[1]
    for c, d in rows.items():
        if c is None or dims[c] not in alone or operand.shape[dims[c]] != indices.shape[d]:
            continue
        others = (batch[d],) if name == "gather" else (dims[c],)
        ins = (dims[c], d) if name == "gather" else (dims[c], d, batch[d])
        factors.append(Factor(ins, others, component=c))
    return factors
