"""Along which dimensions an operation treats each index by itself, and over which it sums.

A factor of an equation is one axis that may be cut: the dimension of each operand and of each
result in which it lies. A dot_general has a factor for every batch, free and contracted dimension;
along the last its result is a sum over the pieces. An operation without factors mixes its axes.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.lax import GatherScatterMode

SUM = -1
"""In place of a dimension: the value is a sum over the axis, of which a piece holds a part."""
REDUCED = -2
"""In place of a dimension: as SUM, of a maximum or another reduction that is no sum."""
SHARDINGS = ("sharding", "out_sharding")
"""Parameters that give a result's sharding; if they leave it free, a piece is run without them."""
Dims = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class Factor:
    """One axis of an equation along which it can be cut into pieces.

    Attributes:
      ins, outs: of each operand and result the dimension in which the axis lies; SUM: each piece
        has a partial sum over it; REDUCED: a partial result of another reduction; None where the
        axis is not in it: each piece needs all of such an operand.
      inner: how the jaxprs of a call are cut: a `Spread` of each.
      component: of index vectors of a scatter or gather, the component that addresses the axis, or
        None. In a piece it is relative to the piece's first index; what lies outside the piece is
        dropped (scatter) or zero (gather).
    """

    ins: Dims
    outs: Dims
    inner: tuple[Any, ...] = ()
    component: int | None = None


ELEMENTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
    bitcast_convert_type cbrt ceil
    clamp clz complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf
    erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow
    is_finite le le_to lgamma log log1p logistic lt lt_to max min mul name ne neg nextafter not
    one_minus_square or polygamma population_count pow real reduce_precision
    regularized_incomplete_beta
    rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh
    sqrt square stop_gradient sub tan tanh threefry2x32 xor zeta
    """.split()
)
_LINEAR = frozenset(("neg", "reshape", "squeeze", "transpose"))
"""Of one operand: applied to the parts of a sum they give the parts of the result."""
_LINEAR_IN_FIRST = _LINEAR | frozenset(
    """
    broadcast_in_dim convert_element_type copy cumsum div dynamic_slice gather mul dot_general
    reduce_sum rev slice split tile unstack
    """.split()
)
"""Linear in their first operand, the others being whole."""
_LINEAR_IN_ALL = frozenset(("add", "add_any", "concatenate", "stack", "sub"))
_REDUCE = ("reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_xor")
REDUCTIONS = (*_REDUCE, "argmax", "argmin", "reduce_sum")
_CUMULATIVE = ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")
_WINDOWS = (
    "reduce_window",
    "reduce_window_max",
    "reduce_window_min",
    "reduce_window_sum",
    "select_and_gather_add",
    "select_and_scatter_add",
)


def factors_of(e: Any, is_zero: Callable[[Any], bool]) -> list[Factor]:
    """Returns the Factors of an equation, axes of more than one element along which it can be cut
    into pieces; [] if it has none, as calls, side effects and unknown operations. `is_zero`:
    whether an operand is known to be all zeros.
    """
    if e.effects:
        return []
    name = e.primitive.name
    factors: list[Factor] = []
    if all(_is_free(e.params.get(k)) for k in SHARDINGS):
        if name in ELEMENTWISE:
            factors = _elementwise(e)
        elif name in _RULES:
            factors = _RULES[name](e)
        if name in ("scatter-add", "scatter_add") and is_zero(e.invars[0]):
            factors += _scattered_sum(e)
    factors = [f for f in factors if _is_worth(e, f)]
    if name in _LINEAR:
        factors.append(Factor((SUM,), (SUM,)))
    if name == "add_any":
        factors.append(Factor((SUM, SUM), (SUM,)))
    return factors


def linear_factors(e: Any, is_zero: Callable[[Any], bool]) -> list[Factor]:
    """Returns Factors (ways to cut) in which a linear equation makes partial sums of its result
    (SUM) from partial sums of operands; [] for others. They are used inside of calls, such as a
    loop's body. Elsewhere few are worth it (`factors_of`): each piece would do what can be done
    once with the whole sum. `is_zero`: whether an operand is known to be all zeros.
    """
    name, n = e.primitive.name, len(e.invars)
    floats = all(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in e.outvars)
    if e.effects or not floats:
        return []
    outs = (SUM,) * len(e.outvars)
    factors = []
    if name in _LINEAR_IN_ALL:
        factors.append(Factor(tuple(None if is_zero(v) else SUM for v in e.invars), outs))
    # What a gather fills in is in every part: a sum has it once.
    is_linear = name in _LINEAR_IN_FIRST and not e.params.get("fill_value")
    if is_linear and jnp.issubdtype(e.invars[0].aval.dtype, jnp.inexact):
        factors.append(Factor((SUM, *(None,) * (n - 1)), outs))
    if name in ("dot_general", "mul"):
        factors.append(Factor((None, SUM), outs))
    if name == "pad" and is_zero(e.invars[1]):
        factors.append(Factor((SUM, None), outs))
    if name == "select_n":
        factors.append(Factor((None, *(None if is_zero(v) else SUM for v in e.invars[1:])), outs))
    added = {"dynamic_update_slice": 1, "scatter-add": 2, "scatter_add": 2}.get(name)
    if added is not None:
        sums = (None if is_zero(v) else SUM for v in e.invars)
        factors.append(
            Factor(tuple(d if k in (0, added) else None for k, d in enumerate(sums)), outs)
        )
    return factors


def _is_free(sharding: Any) -> bool:
    """Whether a sharding is None, on an empty mesh, or names only axes that XLA may shard."""
    mesh = getattr(sharding, "mesh", None)
    return (
        sharding is None
        or getattr(mesh, "empty", False)
        or getattr(mesh, "are_all_axes_auto", False)
    )


def _is_worth(e: Any, f: Factor) -> bool:
    """Whether each dimension that the Factor `f` cuts into pieces has more than one element."""
    pairs = [*zip(e.invars, f.ins, strict=True), *zip(e.outvars, f.outs, strict=True)]
    return all(d is None or d < 0 or v.aval.shape[d] > 1 for v, d in pairs)


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)


def _elementwise(e: Any) -> list[Factor]:
    """Returns Factors (axes to cut along) of an elementwise equation, one for each dimension of its
    results; [] if operands differ from these in more than sizes of 1, scalars aside.
    """
    whole = _shape(e.outvars[0])
    for v in (*e.invars, *e.outvars):
        given = _shape(v)
        if given and (
            len(given) != len(whole)
            or any(g not in (1, n) for g, n in zip(given, whole, strict=True))
        ):
            return []
    if any(_shape(v) != whole for v in e.outvars):
        return []

    def dim(v: Any, d: int) -> int | None:
        return d if _shape(v) and _shape(v)[d] == whole[d] else None

    return [
        Factor(tuple(dim(v, d) for v in e.invars), (d,) * len(e.outvars)) for d in range(len(whole))
    ]


def _other_dims(e: Any, mixed: Sequence[int]) -> list[Factor]:
    """Returns a Factor (axis to cut along) for each dimension but `mixed`, in which elements are
    combined; none unless all arrays have one rank or are scalars.
    """
    rank = len(_shape(e.outvars[0]))
    return [
        Factor(tuple(d if _shape(v) else None for v in e.invars), (d,) * len(e.outvars))
        for d in range(rank)
        if d not in mixed and all(len(_shape(v)) in (0, rank) for v in (*e.invars, *e.outvars))
    ]


def _reduce(e: Any) -> list[Factor]:
    axes = e.params["axes"]
    kept = [d for d in range(len(_shape(e.invars[0]))) if d not in axes]
    how = SUM if e.primitive.name == "reduce_sum" else REDUCED
    return [Factor((d,), (k,)) for k, d in enumerate(kept)] + [Factor((d,), (how,)) for d in axes]


def _broadcast(e: Any) -> list[Factor]:
    where, shape, given = e.params["broadcast_dimensions"], e.params["shape"], _shape(e.invars[0])
    factors = []
    for d in range(len(shape)):
        operand = list(map(int, where)).index(d) if d in where else None
        if operand is not None and given[operand] != shape[d]:
            operand = None
        factors.append(Factor((operand, *(None,) * (len(e.invars) - 1)), (d,)))
    return factors


def reshapes(e: Any) -> list[tuple[int, int]]:
    """Returns pairs (operand's dimension, result's) along which a reshape can be cut into pieces.
    They are those, of sizes above 1, before which the products of all dimensions are equal, be they
    kept, split or merged: then a contiguous part of the operand's is one of the result's. With the
    parameter `dimensions` the operand is transposed before. [] if the shape is no constant.
    """
    if len(e.invars) != 1:
        return []
    given, after = _shape(e.invars[0]), _shape(e.outvars[0])
    order = e.params.get("dimensions")
    order = range(len(given)) if order is None else list(map(int, order))
    before = [given[d] for d in order]
    return [
        (order[i], j)
        for i in range(len(before))
        for j in range(len(after))
        if before[i] > 1 and after[j] > 1 and math.prod(before[:i]) == math.prod(after[:j])
    ]


def _squeeze(e: Any) -> list[Factor]:
    kept = [d for d in range(len(_shape(e.invars[0]))) if d not in e.params["dimensions"]]
    return [Factor((d,), (k,)) for k, d in enumerate(kept)]


def _stack(e: Any) -> list[Factor]:
    """Returns Factors (axes to cut along) of `stack` and `unstack`: each dimension but `axis`."""
    axis, n = e.params["axis"], len(_shape(e.invars[0]))
    if e.primitive.name == "stack":
        return [Factor((d,) * len(e.invars), (d + (d >= axis),)) for d in range(n)]
    return [Factor((d,), (d - (d > axis),) * len(e.outvars)) for d in range(n) if d != axis]


def _transpose(e: Any) -> list[Factor]:
    return [Factor((int(d),), (k,)) for k, d in enumerate(e.params["permutation"])]


def _dot(e: Any) -> list[Factor]:
    (contract_l, contract_r), (batch_l, batch_r) = e.params["dimension_numbers"]
    factors = [Factor((a, b), (k,)) for k, (a, b) in enumerate(zip(batch_l, batch_r, strict=True))]
    free_l = [
        d for d in range(len(_shape(e.invars[0]))) if d not in contract_l and d not in batch_l
    ]
    free_r = [
        d for d in range(len(_shape(e.invars[1]))) if d not in contract_r and d not in batch_r
    ]
    first = len(batch_l)
    factors += [Factor((d, None), (first + k,)) for k, d in enumerate(free_l)]
    factors += [Factor((None, d), (first + len(free_l) + k,)) for k, d in enumerate(free_r)]
    return factors + [Factor(pair, (SUM,)) for pair in zip(contract_l, contract_r, strict=True)]


def _convolution(e: Any) -> list[Factor]:
    numbers = e.params["dimension_numbers"]
    lhs, rhs, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    alone = e.params["feature_group_count"] == 1
    factors = []
    if e.params["batch_group_count"] == 1:
        factors.append(Factor((lhs[0], None), (out[0],)))
        if alone:
            factors.append(Factor((None, rhs[0]), (out[1],)))
            factors.append(Factor((lhs[1], rhs[1]), (SUM,)))
    return factors


def _gather(e: Any) -> list[Factor]:
    numbers, sizes = e.params["dimension_numbers"], e.params["slice_sizes"]
    operand, rank = _shape(e.invars[0]), len(_shape(e.outvars[0]))
    batch = [d for d in range(rank) if d not in numbers.offset_dims]
    factors = []
    paired = dict(
        zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    for b, d in enumerate(batch):
        factors.append(Factor((paired.get(b), b), (d,)))
    hidden = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    windows = [d for d in range(len(operand)) if d not in hidden]
    for d, o in zip(windows, numbers.offset_dims, strict=True):
        if sizes[d] == operand[d] and d not in numbers.start_index_map:
            factors.append(Factor((d, None), (o,)))
    if e.params["mode"] == GatherScatterMode.PROMISE_IN_BOUNDS:
        for k, d in enumerate(numbers.start_index_map):
            if d in numbers.collapsed_slice_dims:
                factors.append(Factor((d, None), (SUM,), component=k))
    return factors


def scatter_dims(e: Any) -> tuple[Any, list[int], dict[int, int]]:
    """Returns a scatter's (dimension numbers, batch dimensions of its updates, {window dimension of
    the operand: that of the updates}).
    """
    numbers = e.params["dimension_numbers"]
    hidden = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = [d for d in range(len(_shape(e.invars[0]))) if d not in hidden]
    rank = len(_shape(e.invars[2]))
    batch = [d for d in range(rank) if d not in numbers.update_window_dims]
    return numbers, batch, dict(zip(windows, numbers.update_window_dims, strict=True))


def _scatter(e: Any) -> list[Factor]:
    if len(e.invars) != 3:
        return []
    numbers, batch, windows = scatter_dims(e)
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    factors = [Factor((o, i, batch[i]), (o,)) for o, i in pairs]
    operand, updates = _shape(e.invars[0]), _shape(e.invars[2])
    for o, u in windows.items():
        if operand[o] == updates[u] and o not in numbers.scatter_dims_to_operand_dims:
            factors.append(Factor((o, None, u), (o,)))
    if e.params["mode"] != GatherScatterMode.CLIP:
        for k, o in enumerate(numbers.scatter_dims_to_operand_dims):
            if o in numbers.inserted_window_dims:
                factors.append(Factor((o, None, None), (o,), component=k))
    return factors


def _scattered_sum(e: Any) -> list[Factor]:
    """Returns Factors (axes to cut along) of a scatter-add to zeros: batch dimensions of its
    updates that its operand does not have; of each piece its results are partial sums (SUM).
    """
    numbers, batch, _ = scatter_dims(e)
    return [
        Factor((None, i, u), (SUM,))
        for i, u in enumerate(batch)
        if i not in numbers.scatter_indices_batching_dims
    ]


def _dynamic_slice(e: Any) -> list[Factor]:
    given, sizes = _shape(e.invars[0]), e.params["slice_sizes"]
    starts = (None,) * (len(e.invars) - 1)
    return [Factor((d, *starts), (d,)) for d in range(len(given)) if given[d] == sizes[d]]


def _dynamic_update(e: Any) -> list[Factor]:
    given, update = _shape(e.invars[0]), _shape(e.invars[1])
    starts = (None,) * (len(e.invars) - 2)
    return [Factor((d, d, *starts), (d,)) for d in range(len(given)) if given[d] == update[d]]


def _slice(e: Any) -> list[Factor]:
    p, given = e.params, _shape(e.invars[0])
    strides = p["strides"] or (1,) * len(given)
    whole = zip(given, p["start_indices"], p["limit_indices"], strides, strict=True)
    return [
        Factor((d,), (d,))
        for d, (n, start, limit, stride) in enumerate(whole)
        if start == 0 and limit == n and stride == 1
    ]


def _pad(e: Any) -> list[Factor]:
    padded = [d for d, p in enumerate(e.params["padding_config"]) if tuple(p) != (0, 0, 0)]
    return _other_dims(e, padded)


def _windows(e: Any) -> list[Factor]:
    p = e.params
    rank = len(p["window_dimensions"])
    dilations = [p.get(k) or (1,) * rank for k in ("base_dilation", "window_dilation")]
    mixed = [
        d
        for d in range(rank)
        if (p["window_dimensions"][d], p["window_strides"][d]) != (1, 1)
        or tuple(p["padding"][d]) != (0, 0)
        or any(dilation[d] != 1 for dilation in dilations)
    ]
    if "jaxpr" in p and any(_shape(v) for v in e.invars[len(e.invars) // 2 :]):
        return []
    return _other_dims(e, mixed)


def _top_k(e: Any) -> list[Factor]:
    rank = len(_shape(e.invars[0]))
    return _other_dims(e, (e.params.get("axis", -1) % rank,))


def _leading(e: Any) -> list[Factor]:
    """Returns Factors (axes to cut) of equations on matrices: all dimensions but the last two."""
    rank = len(_shape(e.invars[0]))
    return _other_dims(e, (rank - 2, rank - 1))


def _keys(e: Any) -> list[Factor]:
    """Returns Factors of equations on random keys: the keys' dimensions, of one size everywhere."""
    atoms = [v for v in (*e.invars, *e.outvars) if _shape(v)]
    sizes = list(zip(*map(_shape, atoms), strict=False))
    alike = [d for d, extents in enumerate(sizes) if len(set(extents)) == 1]
    given = e.invars[0].aval.ndim - (e.primitive.name == "random_wrap")
    return [
        Factor(tuple(d if _shape(v) else None for v in e.invars), (d,)) for d in alike if d < given
    ]


def _fft(e: Any) -> list[Factor]:
    rank = len(_shape(e.invars[0]))
    return _other_dims(e, range(rank - len(e.params["fft_lengths"]), rank))


_RULES: dict[str, Callable[[Any], list[Factor]]] = {
    **dict.fromkeys(_REDUCE, _reduce),
    **dict.fromkeys(("argmax", "argmin"), _reduce),
    **dict.fromkeys(_CUMULATIVE, lambda e: _other_dims(e, (e.params["axis"],))),
    **dict.fromkeys(_WINDOWS, _windows),
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add", "scatter-mul"), _scatter),
    **dict.fromkeys(("random_fold_in", "random_seed", "random_split"), _keys),
    **dict.fromkeys(("random_unwrap", "random_wrap"), _keys),
    **dict.fromkeys(("cholesky", "triangular_solve"), _leading),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda e: _other_dims(e, (e.params["dimension"],)),
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "fft": _fft,
    "gather": _gather,
    "iota": lambda e: [Factor((), (d,)) for d in range(len(e.params["shape"]))],
    "pad": _pad,
    "reduce_sum": _reduce,
    "reshape": lambda e: [Factor((i,), (j,)) for i, j in reshapes(e)],
    "rev": lambda e: _other_dims(e, e.params["dimensions"]),
    "slice": _slice,
    "sort": lambda e: _other_dims(e, (e.params["dimension"],)),
    "split": lambda e: _other_dims(e, (e.params["axis"],)),
    "squeeze": _squeeze,
    **dict.fromkeys(("stack", "unstack"), _stack),
    "tile": lambda e: _other_dims(e, [d for d, n in enumerate(e.params["reps"]) if n != 1]),
    "top_k": _top_k,
    "transpose": _transpose,
}
