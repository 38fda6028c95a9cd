"""`olla_xla.fission`: a function whose largest values are made a piece at a time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from olla_xla.errors import BudgetError, InputError, LimitError
from olla_xla.pieces.choice import choose, line_of, pieces_for
from olla_xla.pieces.graph import Graph
from olla_xla.pieces.loop import Pieces, run_region
from olla_xla.pieces.region import Region, largest
from olla_xla.remat.segments.trace import function_of, inlined, is_variable, traced_call

__all__ = ["FissionPlan", "fission"]

Axis = int | tuple[int | None, ...] | None


@dataclasses.dataclass(frozen=True)
class FissionPlan:
    """What `olla_xla.fission` cuts.

    Attributes:
      axis: what is cut: the largest value of the region, and its dimension.
      pieces: how many there are, the last of which may be smaller. units: how many there can be.
      operations: names of the operations that run in pieces, in order.
      first_line, last_line: where the first and the last of them are in the user's code.
      sums: shapes of what is added up over the pieces. stacked: of what is made piece by piece.
      largest_before, largest_after: bytes of the largest value that is made, without and with.
    """

    axis: str
    pieces: int
    units: int
    operations: tuple[str, ...]
    first_line: str
    last_line: str
    sums: tuple[str, ...]
    stacked: tuple[str, ...]
    largest_before: int
    largest_after: int

    def __str__(self) -> str:
        return (
            f"{self.axis} in {self.pieces} pieces: {len(self.operations)} operations from "
            f"{self.first_line} to {self.last_line}; largest value "
            f"{self.largest_before / 2**20:,.1f} -> {self.largest_after / 2**20:,.1f} MB"
        )


def fission(
    fun: Callable[..., Any],
    *,
    axis: Axis = None,
    pieces: int | None = None,
    memory_budget: int | None = None,
    accumulate_dtype: Any = jnp.float32,
) -> Callable[..., Any]:
    """Runs the part of a function that makes its largest values a piece at a time.

    The function is traced. An axis is looked for along which what makes the largest values works on
    each index by itself (tokens through a projection to a large vocabulary, samples under `vmap`,
    patches, queries of attention), with the operations around that share it. These run in a
    `jax.lax.scan` over pieces of the axis; what sums over the axis becomes an accumulator. `fun`
    may be a loss that is differentiated later, when each piece is computed again in the backward
    pass, inside its own iteration, or may itself hold the gradient, up to a whole training step,
    when nothing is computed twice.

    What is computed for each index is computed as before, by operations on fewer of them: XLA may
    choose another kernel for a smaller matrix product. Sums over the axis are added in another
    order, so results differ from those of `fun` by rounding.

    Args:
      fun: the function; nothing in it needs a mark.
      axis: what is cut, as `jax.vmap`'s `in_axes`: the dimension of all arrays of each positional
        argument, None for those that each piece needs whole. None: the axis is looked for.
      pieces: how many; the last is smaller where that does not divide the axis. None: by an
        estimate, so many that more would save little, or what `memory_budget` asks for.
      memory_budget: bytes of arguments, results and temporaries, by XLA's buffer assignment of the
        function on this process's device, for the fewest pieces that meet it; each number tried is
        compiled.
      accumulate_dtype: sums over pieces of values of narrower floating-point types are accumulated
        in this type, gradients of what is used whole as well.

    Returns:
      A function of `fun`'s signature. Its `explain(*args, **kwargs)`, on arrays or shapes, is the
      `FissionPlan`.

    Raises:
      InputError: an argument is of no use here; when called: nothing can be cut, and the message
        names the operation and the line that forbids it.
      LimitError: `pieces` or `memory_budget` is not positive; when called: there are fewer indices
        than pieces. BudgetError: when called: no number of pieces meets the budget.

    Examples:
      >>> loss = olla_xla.fission(loss_fn, pieces=16)
      >>> grads = jax.grad(loss)(params, tokens)
    """
    how = _checked(fun, axis, pieces, memory_budget, accumulate_dtype)

    @functools.wraps(fun)
    def in_pieces(*args: Any, **kwargs: Any) -> Any:
        traced = _trace(fun, how, args, kwargs)
        return jax.tree.unflatten(traced.result, traced.run(traced.values))

    def explain(*args: Any, **kwargs: Any) -> FissionPlan:
        """What is cut for these arguments, arrays or shapes."""
        return _explained(_trace(fun, how, args, kwargs))

    in_pieces.explain = explain  # pyright: ignore[reportAttributeAccessIssue]
    return in_pieces


@dataclasses.dataclass(frozen=True)
class _How:
    """What `fission` was asked for."""

    name: str
    axis: Axis
    pieces: int | None
    memory_budget: int | None
    accumulate_dtype: Any


def _checked(fun: Any, axis: Any, pieces: Any, memory_budget: Any, accumulate_dtype: Any) -> _How:
    if not callable(fun):
        raise InputError(f"olla_xla.fission takes a function, not a {type(fun).__name__}")
    for name, value in (("pieces", pieces), ("memory_budget", memory_budget)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise InputError(f"{name}={value!r} is not an integer; give {name}=None or a number")
        if value is not None and value < 1 + (name == "pieces"):
            raise LimitError(f"{name}={value} must be at least {1 + (name == 'pieces')}")
    if pieces is not None and memory_budget is not None:
        raise InputError("memory_budget chooses the pieces; leave out one of the two")
    dims = axis if isinstance(axis, tuple) else (axis,)
    if any(d is not None and (not isinstance(d, int) or isinstance(d, bool)) for d in dims):
        raise InputError(f"axis={axis!r} is no integer, nor a tuple of integers and None")
    if isinstance(axis, tuple) and all(d is None for d in axis):
        raise InputError(f"axis={axis!r} cuts nothing; leave it out to have an axis looked for")
    try:
        dtype = jnp.dtype(accumulate_dtype)
    except TypeError:
        dtype = None
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise InputError(f"accumulate_dtype={accumulate_dtype!r} is no floating-point type")
    name = getattr(fun, "__name__", type(fun).__name__)
    return _How(name, axis, pieces, memory_budget, dtype)


@dataclasses.dataclass(frozen=True)
class _Traced:
    """A traced function and its cut. `values`: of the graph's inputs."""

    graph: Graph
    region: Region
    pieces: Pieces
    accumulate_dtype: Any
    values: list[Any]
    result: Any

    def run(self, values: list[Any]) -> list[Any]:
        """The results for values of the graph's inputs."""
        r, names = self.region, dict(zip(self.graph.inputs, values, strict=True))
        needed = {*r.whole_inputs, *(v for v, _ in r.cut_inputs)}
        outputs = [v for v in self.graph.outputs if is_variable(v)]
        after = [self.graph.equations[i] for i in r.after]
        needed.update(v for e in after for v in e.invars if is_variable(v))
        needed.update(outputs)
        _run_range([self.graph.equations[i] for i in r.before], names, needed)
        names.update(run_region(r, names, self.pieces, self.accumulate_dtype))
        _run_range(after, names, set(outputs))
        return [names[v] if is_variable(v) else v.val for v in self.graph.outputs]


def _run_range(equations: list[Any], names: dict[Any, Any], needed: set[Any]) -> None:
    """Runs equations, and adds those of their results to `names` that are needed."""
    made = dict.fromkeys(v for e in equations for v in e.outvars)
    read = dict.fromkeys(v for e in equations for v in e.invars if is_variable(v) and v not in made)
    results = [v for v in made if v in needed]
    function = function_of(equations, list(read), results)
    names.update(zip(results, function(*(names[v] for v in read)), strict=True))


def _trace(
    fun: Callable[..., Any], how: _How, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Traced:
    """Traces and cuts. Arguments that are no arrays are fixed by the trace."""
    call = traced_call(fun, args, kwargs)
    jaxpr = call.jaxpr
    equations, outputs = inlined(jaxpr)
    graph = Graph(equations, (*jaxpr.constvars, *jaxpr.invars), outputs)
    seeds = None
    if how.axis is not None:
        dims = [d for d, a in zip(_dims(how.axis, args, kwargs), call.arrays, strict=True) if a]
        seeds = _seeds(jaxpr.invars, dims)
    region = choose(graph, seeds, how.pieces, how.name)
    if how.pieces is not None and how.pieces > region.units:
        raise LimitError(f"pieces={how.pieces} is more than the {region.units} that can be made")
    count = how.pieces or pieces_for(region)
    pieces = Pieces.of(region.units, count)
    traced = _Traced(graph, region, pieces, how.accumulate_dtype, call.values, call.result)
    return traced if how.memory_budget is None else _within(traced, how.memory_budget)


def _dims(axis: Axis, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int | None]:
    """The dimension asked for of each leaf."""
    if isinstance(axis, tuple) and len(axis) != len(args):
        raise InputError(f"axis={axis!r} is for {len(axis)} arguments, and there are {len(args)}")
    by_argument = axis if isinstance(axis, tuple) else (axis,) * len(args)
    dims: list[int | None] = []
    for d, argument in zip(by_argument, args, strict=True):
        dims += [d] * len(jax.tree.leaves(argument))
    return dims + [None] * len(jax.tree.leaves(kwargs))


def _seeds(variables: list[Any], dims: list[int | None]) -> dict[Any, int]:
    seeds = {}
    for v, d in zip(variables, dims, strict=True):
        if d is not None:
            rank = len(v.aval.shape)
            if not -rank <= d < rank:
                raise InputError(f"axis {d} is none of {v.aval.str_short()}, an argument's array")
            seeds[v] = d % rank
    sizes = {v.aval.shape[d] for v, d in seeds.items()}
    if len(sizes) > 1:
        raise InputError(f"the axis has different sizes in the arguments: {sorted(sizes)}")
    return seeds


def _within(traced: _Traced, budget: int) -> _Traced:
    """With the fewest pieces whose total meets the budget."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in traced.values]
    least, pieces = None, 2
    while True:
        pieces = min(pieces, traced.region.units)
        cut = dataclasses.replace(traced, pieces=Pieces.of(traced.region.units, pieces))
        analysis = jax.jit(cut.run).lower(shapes).compile().memory_analysis()
        if analysis is None:
            raise InputError("this backend does not say what an executable takes; give pieces=")
        total = (
            analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
            - analysis.alias_size_in_bytes
            + analysis.temp_size_in_bytes
        )
        least = total if least is None else min(least, total)
        if total <= budget:
            return cut
        if pieces == traced.region.units:
            raise BudgetError(budget, least)
        pieces *= 2


def _explained(traced: _Traced) -> FissionPlan:
    r = traced.region
    inside = [v for e in r.equations for v in e.outvars if r.cut.get(v, -1) >= 0]
    main = max(inside, key=lambda v: v.aval.size * v.aval.dtype.itemsize)
    count = len(traced.pieces)
    return FissionPlan(
        axis=f"dimension {r.cut[main]} of {main.aval.str_short()}",
        pieces=count,
        units=r.units,
        operations=tuple(e.primitive.name for e in r.equations),
        first_line=line_of(r.equations[0]),
        last_line=line_of(r.equations[-1]),
        sums=tuple(v.aval.str_short() for v in r.sums),
        stacked=tuple(v.aval.str_short() for v, _ in r.stacked),
        largest_before=largest(traced.graph, None, 1),
        largest_after=largest(traced.graph, r, count),
    )
