"""Runs the equations of a region on one piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend import core
from jax.lax import GatherScatterMode

from olla_xla.pieces.accumulators import promoted
from olla_xla.pieces.calls import CALLS, CHECKPOINTS
from olla_xla.pieces.factors import SHARDINGS, Factor
from olla_xla.pieces.graph import Spread
from olla_xla.segments.equations import (
    as_written,
    inexact,
    is_variable,
    run_equation,
    scan_counts,
    zeros_but,
)


@dataclasses.dataclass(frozen=True)
class Piece:
    """One piece of a cut axis: `count` of its `units`, the most equal parts that it can be cut
    into, from `start` on, which may be traced. `on_cpu`: whether it runs on a CPU for certain.
    """

    units: int
    count: int
    start: Any
    on_cpu: bool = False

    def size(self, whole: int) -> int:
        """Returns the piece's size along a dimension whose size for the whole axis is `whole`."""
        return whole // self.units * self.count


def run_piece(
    equations: Sequence[Any],
    chosen: Mapping[int, Factor],
    whole: Mapping[Any, Any],
    pieces: Mapping[Any, Any],
    piece: Piece,
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Evaluates equations for one piece of an axis: those in `chosen` on slices, others on whole
    arrays. `whole`, `pieces`: values by variable, of what is given whole and of what is given for
    the piece. Returns copies of the two with the results; those cut or summed are in `pieces`.
    """
    whole, pieces = dict(whole), dict(pieces)
    for i, e in enumerate(equations):
        f = chosen.get(i)
        cut = (None,) * len(e.invars) if f is None else f.ins
        values = [
            v.val if not is_variable(v) else whole[v] if d is None else pieces[v]
            for v, d in zip(e.invars, cut, strict=True)
        ]
        with as_written(e):
            made = run_equation(e, values) if f is None else _cut(e, f, values, piece)
        (whole if f is None else pieces).update(zip(e.outvars, made, strict=True))
    return whole, pieces


def _cut(e: Any, f: Factor, values: Sequence[Any], piece: Piece) -> list[Any]:
    """Evaluates an equation on one piece. `values`: of its operands, the piece's slices or partial
    sums where Factor `f` cuts, others whole.
    """
    name, params = e.primitive.name, dict(e.params)
    if name in CALLS:
        functions = [_function(s, piece) for s in f.inner]
        if not functions:  # the scan's own axis is cut
            functions = [core.jaxpr_as_fun(params["jaxpr"])]
            e = e.replace(params={**params, "length": piece.size(params["length"])})
        return call(e, functions, values)
    params.update((k, None) for k in SHARDINGS if params.get(k) is not None)
    dim = f.outs[0]
    if f.component is not None:
        along = f.ins[0]
        assert along is not None
        first = piece.start * (e.invars[0].aval.shape[along] // piece.units)
        values = [values[0], _counted_from(first, values[1], f.component), *values[2:]]
        if f.ins[1] is None:  # else each piece has the indices of its own rows
            params["mode"] = jax.lax.GatherScatterMode.FILL_OR_DROP
            if name == "gather":
                params["fill_value"] = 0
    if name == "dot_general" and piece.on_cpu and takes_rows(e):
        return [product_of_rows(e, values, piece.start)]
    if dim is None or dim < 0:
        return run_equation(e, values, params)
    if name in ("scatter-add", "scatter_add") and is_one_each(e):
        return [with_one_added(e, *values)]
    size = piece.size(e.outvars[0].aval.shape[dim])
    if name in _SHAPES:
        params[_SHAPES[name]] = _with(params[_SHAPES[name]], dim, size)
    elif name in ("dynamic_slice", "gather") and f.ins[0] is not None:
        of_operand = e.invars[0].aval.shape[f.ins[0]]
        if params["slice_sizes"][f.ins[0]] == of_operand:
            params["slice_sizes"] = _with(params["slice_sizes"], f.ins[0], piece.size(of_operand))
    made = run_equation(e, values, params)
    if name == "iota" and dim == params["dimension"]:
        first = piece.start * (e.outvars[0].aval.shape[dim] // piece.units)
        return [made[0] + jnp.asarray(first).astype(made[0].dtype)]
    return made


def _counted_from(first: Any, indices: Any, component: int) -> Any:
    """Returns indices (signed) with `first` subtracted from one component of each index vector."""
    dtype = promoted(indices.dtype, jnp.int32)
    if not jnp.issubdtype(dtype, jnp.signedinteger):
        dtype = jnp.int32
    shift = jnp.zeros(indices.shape[-1], dtype).at[component].set(jnp.asarray(first, dtype))
    return indices.astype(dtype) - jnp.broadcast_to(shift, indices.shape)


_SHAPES = {
    "broadcast_in_dim": "shape",
    "iota": "shape",
    "reshape": "new_sizes",
    "slice": "limit_indices",
}
"""The parameter that holds the result's size, along the dimensions that can be cut."""


def _with(sizes: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*sizes[:dim], size, *sizes[dim + 1 :])


_Function = Callable[..., list[Any]]


def _function(s: Spread, piece: Piece) -> _Function:
    """Makes a Python function of a jaxpr that `s` cuts into pieces: it takes the inputs that one
    piece has, and returns the outputs that it makes.
    """

    def function(*values: Any) -> list[Any]:
        given = dict(zip(s.graph.inputs, values, strict=True))
        pieces = {v: x for v, x in given.items() if v in s.cut}
        whole = {v: x for v, x in given.items() if v not in s.cut} | s.graph.constants
        whole, pieces = run_piece(s.graph.equations, s.chosen, whole, pieces, piece)
        made = {**whole, **pieces}
        return [
            made[v] if is_variable(v) else jnp.asarray(v.val, v.aval.dtype) for v in s.graph.outputs
        ]

    return function


def call(e: Any, functions: Sequence[_Function], values: Sequence[Any]) -> list[Any]:
    """Evaluates a call-like equation (scan, cond, ...) with functions in place of its jaxprs."""
    return _CALLED[e.primitive.name](e, functions, values)


def _checkpoint(e: Any, functions: Sequence[_Function], values: Sequence[Any]) -> list[Any]:
    p = e.params
    if p["differentiated"] and np.any(p["prevent_cse"]):
        values = jax.lax.optimization_barrier(list(values))
    return jax.checkpoint(functions[0], prevent_cse=p["prevent_cse"], policy=p["policy"])(*values)


def _cond(e: Any, functions: Sequence[_Function], values: Sequence[Any]) -> list[Any]:
    del e
    return jax.lax.switch(values[0], functions, *values[1:])


def _scan(e: Any, functions: Sequence[_Function], values: Sequence[Any]) -> list[Any]:
    p, (constants, carries) = e.params, scan_counts(e)
    fixed, state, xs = (
        values[:constants],
        values[constants : constants + carries],
        values[constants + carries :],
    )

    def body(carry: Any, x: Any) -> Any:
        made = functions[0](*fixed, *carry, *x)
        return list(made[:carries]), list(made[carries:])

    how = {name: p[name] for name in ("length", "reverse", "unroll")}
    carry, ys = jax.lax.scan(body, list(state), list(xs), **how)
    return [*carry, *ys]


def _while(e: Any, functions: Sequence[_Function], values: Sequence[Any]) -> list[Any]:
    of_cond, fixed = e.params["cond_nconsts"], e.params["cond_nconsts"] + e.params["body_nconsts"]
    body, goes_on = functions
    return jax.lax.while_loop(
        lambda state: jnp.any(goes_on(*values[:of_cond], *state)[0]),
        lambda state: body(*values[:fixed], *state),
        list(values[fixed:]),
    )


def _custom_jvp(e: Any, functions: Sequence[_Function], values: Sequence[Any]) -> list[Any]:
    """Runs a custom_jvp call on a piece. `functions`: its function, and if the user's rule is cut
    too, that: from arguments and tangents to results and tangents.
    """
    if len(functions) == 1:
        return functions[0](*values)
    moving, results = inexact(e.invars), inexact(e.outvars)
    function, whole_rule = functions
    function = jax.custom_jvp(function)

    def rule(primals: Any, tangents: Any) -> Any:
        made = whole_rule(*primals, *(tangents[i] for i in moving))
        out, moved = made[: len(e.outvars)], made[len(e.outvars) :]
        return out, zeros_but(out, results, moved)

    function.defjvp(rule)
    return function(*values)


def _custom_vjp(e: Any, functions: Sequence[_Function], values: Sequence[Any]) -> list[Any]:
    """Runs a custom_vjp call on a piece. `functions`: its function, and if its rules are cut too,
    one that runs both, from arguments and cotangents of results to cotangents of arguments.
    """
    if len(functions) == 1:
        return functions[0](*values)
    moving, results = inexact(e.invars), inexact(e.outvars)
    plain, both = functions
    function = jax.custom_vjp(plain)

    def backward(given: Any, cotangents: Any) -> Any:
        return tuple(zeros_but(given, moving, both(*given, *(cotangents[k] for k in results))))

    function.defvjp(lambda *given: (plain(*given), given), backward)
    return function(*values)


_CALLED = {
    **dict.fromkeys(CHECKPOINTS, _checkpoint),
    "cond": _cond,
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    "scan": _scan,
    "while": _while,
}


_DROPPING = (GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS)


def is_one_each(e: Any) -> bool:
    """Whether a scatter-add adds to one element of each row, and may ignore indices out of range.
    So does the gradient of `jnp.take_along_axis` of one element, as of a label's logit.
    """
    numbers, operand, indices = e.params["dimension_numbers"], e.invars[0].aval, e.invars[1].aval
    along = numbers.inserted_window_dims
    return (
        len(along) == 1
        and numbers.scatter_dims_to_operand_dims == along
        and len(numbers.operand_batching_dims) == operand.ndim - 1
        and indices.size * operand.shape[along[0]] == operand.size
        and e.params["mode"] in _DROPPING
    )


def with_one_added(e: Any, operand: Any, indices: Any, updates: Any) -> Any:
    """Computes a scatter-add for which `is_one_each` is true, by a select, which XLA can fuse. A
    scatter's result is a buffer of its own: of a loss over a vocabulary the largest.
    """
    numbers = e.params["dimension_numbers"]
    (along,) = numbers.inserted_window_dims
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    order = [i for _, i in sorted(pairs)]
    order += [i for i in range(updates.ndim) if i not in order]  # of one element each
    rows = (*operand.shape[:along], 1, *operand.shape[along + 1 :])
    at, added = (jnp.transpose(x, order).reshape(rows) for x in (indices[..., 0], updates))
    dtype = jax.dtypes.canonicalize_dtype(promoted(at.dtype, jnp.int32))
    here = jax.lax.broadcasted_iota(dtype, operand.shape, along) == at.astype(dtype)
    return jnp.where(here, operand + added, operand)


_BY_ROWS = Layout((0, 1))


def takes_rows(e: Any) -> bool:
    """Whether a dot_general sums over the rows of two bfloat16 matrices, as a weight's gradient
    does. XLA's library for CPUs takes a first operand only where its last dimension is summed over.
    For others XLA converts both operands to float32, before a loop if they do not change in it.
    """
    matrices = all(v.aval.ndim == 2 and v.aval.dtype == "bfloat16" for v in e.invars)
    return matrices and e.params["dimension_numbers"] == (((0,), (0,)), ((), ()))


def product_of_rows(e: Any, operands: Sequence[Any], start: Any) -> Any:
    """Computes a dot_general that sums over the rows of two matrices, with a transposed copy of the
    smaller. It depends on `start`, the piece's, so that it is not held beyond its iteration.
    """
    left, right = operands
    first = left.size < right.size
    small, other = (left, right) if first else (right, left)
    small, _ = jax.lax.optimization_barrier((small, start))
    made = jax.lax.dot_general(
        with_layout_constraint(small.T, _BY_ROWS),
        other,
        (((1,), (0,)), ((), ())),
        precision=e.params["precision"],
        preferred_element_type=e.params["preferred_element_type"],
    )
    # XLA would fold a transposition of the result into the product, which is then added up in
    # bfloat16 by a plain loop.
    made = with_layout_constraint(made, _BY_ROWS)
    return made if first else made.T
