"""`olla_xla.fission`: a function whose largest values are made a piece at a time."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from olla_xla.compile.accounting import assigned_bytes
from olla_xla.errors import BudgetError, InputError, LimitError, OllaError
from olla_xla.pieces.choice import Cut, choose, line_of, pieces_for
from olla_xla.pieces.estimate import largest
from olla_xla.pieces.graph import Graph
from olla_xla.pieces.hoist import prepared
from olla_xla.pieces.loop import Pieces, run_region
from olla_xla.pieces.region import LIGHT, AnyStep, Region, regions_in
from olla_xla.pieces.run import call
from olla_xla.pieces.sharded import Devices, leaf_shardings, over_devices, refuse_explicit
from olla_xla.problem.function_name import function_name
from olla_xla.segments.equations import bytes_of, function_of, values_of
from olla_xla.segments.trace import traced_call

Axis = int | tuple[int | None, ...] | None


@dataclasses.dataclass(frozen=True)
class FissionRegion:
    """One part of a function that runs in pieces, for reports.

    Attributes:
      axis: what is cut: the largest value of the region that has the axis, and its dimension.
      pieces: how many there are, the last of which may be smaller. units: how many there can be.
      inside: the innermost loop, branch or checkpoint that holds it, with its line, or "".
      devices: on how many the axis is sharded; each runs its own part in as many pieces.
      operations: names of the operations that run in pieces, in order.
      twice: how many of them also run whole before, for what each piece needs of all pieces.
      first_line, last_line: where the first and the last of them are in the user's code.
      sums: shapes of results added up or reduced over pieces. stacked: of results joined from them.
      value: shape of the largest value that is not made whole, if any; else of `axis`'s.
        value_bytes: of it, whole.
      value_line: where it is made in the user's code.
    """

    axis: str
    pieces: int
    units: int
    inside: str
    devices: int
    operations: tuple[str, ...]
    twice: int
    first_line: str
    last_line: str
    sums: tuple[str, ...]
    stacked: tuple[str, ...]
    value: str
    value_bytes: int
    value_line: str

    def __str__(self) -> str:
        twice = f", {self.twice} of which also run before the pieces," if self.twice else ""
        each = f" on each of {self.devices} devices" if self.devices > 1 else ""
        return (
            f"{self.axis} in {self.pieces} pieces{each}: {len(self.operations)} operations{twice} "
            f"from {self.first_line} to {self.last_line}"
            f"{f', inside {self.inside}' if self.inside else ''}"
        )


@dataclasses.dataclass(frozen=True)
class FissionPlan:
    """The parts of a function that `olla_xla.fission` runs in pieces, and the estimated gain.

    Attributes:
      pieces: how many were given or chosen; a region of fewer units runs in fewer.
      regions: what runs in pieces, in the order in which it runs.
      largest_before, largest_after: bytes of the largest value that is made, without and with.
      peak_before, peak_after: an estimate of the most bytes that are live, besides arguments.
    """

    pieces: int
    regions: tuple[FissionRegion, ...]
    largest_before: int
    largest_after: int
    peak_before: int
    peak_after: int

    def __str__(self) -> str:
        return (
            "".join(f"{region}\n" for region in self.regions) + f"largest value "
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

    The function is traced. The axis cut is one along which the operations that make the largest
    values treat each index by itself: tokens through a projection to a large vocabulary, samples
    under `vmap`, patches, queries of attention. These operations, and those around them that keep
    the axis, run in a `jax.lax.scan` over pieces of it; a sum over the axis becomes an accumulator.
    `fun` may be a loss that is differentiated later: then each piece is computed again in the
    backward pass, inside its own iteration. Or it may itself hold the gradient, up to a whole
    training step: then nothing is computed again for the gradient.

    Each index is computed by the same operations, on fewer indices at a time: XLA may choose
    another kernel for a smaller matrix product. Sums over the axis are added in another order, so
    results differ from those of `fun` by rounding.

    Args:
      fun: the function; nothing in it needs a mark.
      axis: what is cut, as `jax.vmap`'s `in_axes`: the dimension of all arrays of each positional
        argument, None for those that each piece needs whole. None: the axis is looked for.
      pieces: how many; the last is smaller where that does not divide the axis. None: by an
        estimate, so many that more would save little, or what `memory_budget` needs.
      memory_budget: most bytes of arguments, results and temporaries, by XLA's buffer assignment of
        the function on this process's device. 2, 4, 8, ... pieces are compiled until it is met; the
        last number tried is that of all indices.
      accumulate_dtype: sums over pieces of values of narrower floating-point types are accumulated
        in this type, gradients of what is used whole as well.

    Returns:
      A function of `fun`'s signature. Its `explain(*args, **kwargs)`, on arrays or shapes, returns
      the `FissionPlan`.

    Raises:
      InputError: an argument is invalid; when called: nothing can be cut, and the message names the
        operation and the line that forbids it; or shardings or `axis` do not suit the arguments.
      LimitError: `pieces` is below 2, or `memory_budget` is not positive; when called: there are
        fewer indices than pieces. BudgetError: when called: none of the numbers tried meets it.

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
        """Returns what is cut for these arguments, arrays or shapes."""
        return _explained(_trace(fun, how, args, kwargs))

    in_pieces.explain = explain  # pyright: ignore[reportAttributeAccessIssue]
    return in_pieces


def in_pieces(
    fun: Callable[..., Any],
    pieces: int | None,
    on_cut: Callable[[FissionPlan], None],
    shardings: Sequence[Any] = (),
) -> Callable[..., Any]:
    """Wraps `fun` as `fission(fun, pieces=pieces)` does, with a callback and shardings. `on_cut`:
    called with the plan at each trace. `shardings`: of the leaves of the arguments, which are
    traced without them. A region with fewer indices than pieces runs in as many as it has.
    """
    how = _FissionOptions(function_name(fun), None, None, None, jnp.dtype(jnp.float32))

    @functools.wraps(fun)
    def cut(*args: Any, **kwargs: Any) -> Any:
        traced = _trace(fun, how, args, kwargs, pieces, shardings)
        on_cut(_explained(traced))
        return jax.tree.unflatten(traced.result, traced.run(traced.values))

    return cut


@dataclasses.dataclass(frozen=True)
class _FissionOptions:
    """The options of `fission`, and the function's name for messages."""

    name: str
    axis: Axis
    pieces: int | None
    memory_budget: int | None
    accumulate_dtype: Any


def _checked(
    fun: Any, axis: Any, pieces: Any, memory_budget: Any, accumulate_dtype: Any
) -> _FissionOptions:
    if not callable(fun):
        raise InputError(f"olla_xla.fission takes a function, not {type(fun).__name__}")
    for name, value in (("pieces", pieces), ("memory_budget", memory_budget)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise InputError(f"{name}={value!r} is not an integer; give an integer or None")
        if value is not None and value < 1 + (name == "pieces"):
            raise LimitError(f"{name}={value} must be at least {1 + (name == 'pieces')}")
    if pieces is not None and memory_budget is not None:
        raise InputError("give either pieces= or memory_budget=, which sets the number of pieces")
    dims = axis if isinstance(axis, tuple) else (axis,)
    if any(d is not None and (not isinstance(d, int) or isinstance(d, bool)) for d in dims):
        raise InputError(f"axis={axis!r}: give an integer, or a tuple of integers or Nones")
    if isinstance(axis, tuple) and all(d is None for d in axis):
        raise InputError(f"axis={axis!r} cuts no argument; leave out axis to let fission choose")
    try:
        dtype = jnp.dtype(accumulate_dtype)
    except TypeError:
        dtype = None
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise InputError(f"accumulate_dtype={accumulate_dtype!r} is not a floating-point type")
    return _FissionOptions(function_name(fun), axis, pieces, memory_budget, dtype)


@dataclasses.dataclass(frozen=True)
class _TracedCut:
    """A traced function and its cut, which says what runs in `pieces` pieces. `devices`: for each
    region those its axis is sharded over, or None. `values`: of the graph's inputs. `result`: the
    tree definition of the results.
    """

    cut: Cut
    devices: tuple[Devices | None, ...]
    pieces: int
    values: list[Any]
    result: Any

    def run(self, values: list[Any]) -> list[Any]:
        """Evaluates the cut function for values of the graph's inputs; returns its flat results."""
        cut = self.cut
        given = dict(zip(cut.graph.inputs, values, strict=True))
        where = zip(regions_in(cut.steps), self.devices, strict=True)
        devices = [d for (_, around), d in where if around is None]
        return run_steps(cut.steps, cut.graph, given, self.pieces, cut.accumulate_dtype, devices)


def _trace(
    fun: Callable[..., Any],
    how: _FissionOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    most: int | None = None,
    shardings: Sequence[Any] = (),
) -> _TracedCut:
    """Traces a function and chooses what runs in pieces, and in how many, with a memory budget by
    compiling; arguments that are no arrays are constants. `most`: pieces, if so many are possible.
    `shardings`: of the arguments' leaves; (): their own.
    """
    call = traced_call(fun, args, kwargs)
    jaxpr = call.jaxpr
    equations, outputs, constants = prepared(jaxpr)
    inputs = (*jaxpr.constvars, *jaxpr.invars, *constants)
    graph = Graph(equations, inputs, outputs)
    refuse_explicit(graph)
    seeds = None
    if how.axis is not None:
        dims = [d for d, a in zip(_dims(how.axis, args, kwargs), call.arrays, strict=True) if a]
        seeds = _seeds(jaxpr.invars, dims)
    cut = choose(graph, seeds, how.pieces or most, how.name, how.accumulate_dtype)
    units = max(region.units for region in cut.regions)
    if how.pieces is not None and how.pieces > units:
        raise LimitError(f"pieces={how.pieces} is too many; the axis has at most {units} pieces")
    values = [*call.values, *constants.values()]
    given = shardings or leaf_shardings(args, kwargs)
    of_arrays = [x for x, a in zip(given, call.arrays, strict=True) if a]
    devices = over_devices(graph, dict(zip(jaxpr.invars, of_arrays, strict=True)), cut.regions)
    count = how.pieces or most or pieces_for(cut)
    traced = _TracedCut(cut, tuple(devices), count, values, call.result)
    return traced if how.memory_budget is None else _within(traced, how.memory_budget)


def _dims(axis: Axis, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int | None]:
    """Returns the dimension along which `axis` cuts each leaf of the arguments, None for no cut, as
    of all keyword arguments. Raises InputError if it has another number of arguments.
    """
    if isinstance(axis, tuple) and len(axis) != len(args):
        raise InputError(f"axis={axis!r} is for {len(axis)} arguments, but there are {len(args)}")
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
                raise InputError(
                    f"axis {d} does not exist in {v.aval.str_short()}, an array of the arguments"
                )
            seeds[v] = d % rank
    sizes = {v.aval.shape[d] for v, d in seeds.items()}
    if len(sizes) > 1:
        raise InputError(f"the axis to cut has different sizes in the arguments: {sorted(sizes)}")
    return seeds


def _within(traced: _TracedCut, budget: int) -> _TracedCut:
    """Returns the traced function in the fewest pieces, of 2, 4, 8, ... and the most that an axis
    has, that meet a budget in bytes; compiles each number until then. Raises BudgetError if none
    meets it, InputError if XLA does not tell the bytes.
    """
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in traced.values]
    units = max(region.units for region in traced.cut.regions)
    least, pieces = None, 2
    while True:
        pieces = min(pieces, units)
        cut = dataclasses.replace(traced, pieces=pieces)
        compiled = jax.jit(cut.run).lower(shapes).compile()
        try:
            total = assigned_bytes(compiled)
        except OllaError as error:
            raise InputError(f"{error}; give pieces= in place of memory_budget=") from error
        least = total if least is None else min(least, total)
        if total <= budget:
            return cut
        if pieces == units:
            raise BudgetError(budget, least)
        pieces *= 2


def _explained(traced: _TracedCut) -> FissionPlan:
    pieces, graph = traced.pieces, traced.cut.graph
    return FissionPlan(
        pieces=pieces,
        regions=tuple(
            _described(r, around, pieces, d)
            for (r, around), d in zip(regions_in(traced.cut.steps), traced.devices, strict=True)
        ),
        largest_before=largest((graph,), 1),
        largest_after=largest(traced.cut.steps, pieces),
        peak_before=dataclasses.replace(traced.cut, steps=(graph,)).peak(1),
        peak_after=traced.cut.peak(pieces),
    )


def _described(r: Region, around: Any, pieces: int, devices: Devices | None) -> FissionRegion:
    inside = [v for e in r.equations for v in e.outvars if r.cut.get(v, -1) >= 0]
    main = max(inside, key=bytes_of)
    stacked = {v for v, _ in r.stacked}
    made = [v for e in r.equations if e.primitive.name not in LIGHT for v in e.outvars]
    gone = [v for v in made if r.cut.get(v, -1) >= 0 and v not in stacked] or [main]
    value = max(gone, key=bytes_of)
    return FissionRegion(
        axis=f"dimension {r.cut[main]} of {main.aval.str_short()}",
        pieces=len(Pieces.of(r.units, pieces, devices)),
        inside="" if around is None else f"{around.primitive.name} at {line_of(around)}",
        devices=1 if devices is None else devices.count,
        units=r.units,
        operations=tuple(e.primitive.name for e in r.equations),
        twice=len(r.twice),
        first_line=line_of(r.equations[0]),
        last_line=line_of(r.equations[-1]),
        sums=tuple(v.aval.str_short() for v in (*r.sums, *r.reduced)),
        stacked=tuple(v.aval.str_short() for v, _ in r.stacked),
        value=value.aval.str_short(),
        value_bytes=bytes_of(value),
        value_line=next(line_of(e) for e in r.equations if value in e.outvars),
    )


def run_steps(
    steps: Sequence[AnyStep],
    graph: Graph,
    values: Mapping[Any, Any],
    pieces: int,
    accumulate_dtype: Any,
    devices: Sequence[Devices | None] = (),
) -> list[Any]:
    """Evaluates a function that is cut into steps, of which Regions, in calls too, run in at most
    `pieces` pieces; returns its outputs. `graph`: the function's. `values`: of its inputs and
    constants, by variable. Sums over pieces are added in `accumulate_dtype`. `devices`: for each
    Region that is itself a step, those over which its axis is sharded; () if none is.
    """
    names, sharded = dict(values), iter(devices)
    for step in steps:
        if isinstance(step, Graph):
            function = function_of(step.equations, step.inputs, step.outputs)
            made = function(*(names[v] for v in step.inputs))
            names.update(zip(step.outputs, made, strict=True))
        elif isinstance(step, Region):
            names.update(run_region(step, names, pieces, accumulate_dtype, next(sharded, None)))
        else:
            (e,) = step.equations
            functions = [_body(*body, pieces, accumulate_dtype) for body in step.bodies]
            given = values_of(e.invars, names)
            names.update(zip(e.outvars, call(e, functions, given), strict=True))
    return values_of(graph.outputs, names)


def _body(
    graph: Graph, steps: Sequence[AnyStep], pieces: int, accumulate_dtype: Any
) -> Callable[..., list[Any]]:
    def function(*values: Any) -> list[Any]:
        given = {**graph.constants, **dict(zip(graph.inputs, values, strict=True))}
        made = run_steps(steps, graph, given, pieces, accumulate_dtype)
        return [jnp.asarray(x, v.aval.dtype) for x, v in zip(made, graph.outputs, strict=True)]

    return function
