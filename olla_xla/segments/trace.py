"""Traced functions: calls are inlined, and equations become the steps of a walk."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.extend.core import primitives

from olla_xla.segments.equations import (
    bytes_of,
    has_effect,
    inner_jaxprs,
    is_variable,
    operands,
    renamed,
    user_line,
)
from olla_xla.segments.walk import Walk

Policy = Callable[..., bool]
"""`jax.checkpoint`'s: whether a primitive's results are kept, by primitive, avals and params."""
_ATOM = 1024
"""Calls that make less than this part of all bytes, one in _ATOM, are steps of their own: a cut
inside one would gain nothing, and equal calls stay one compiled function."""
_VIEWS = frozenset(
    (
        primitives.broadcast_in_dim_p,
        primitives.reshape_p,
        primitives.squeeze_p,
        primitives.transpose_p,
    )
)
_MOVABLE = _VIEWS | {
    primitives.convert_element_type_p,
    primitives.dynamic_slice_p,
    primitives.slice_p,
}
"""Primitives that may run on arguments just before the first use, not ahead of everything."""


@dataclasses.dataclass(frozen=True)
class TracedFunction:
    """A traced function: the equations of its jaxpr, most calls inlined, in an order in which they
    can run, and their walk, which has sizes and reads of them as its steps. `inputs`, `outputs`:
    variables (outputs: or literals); constants are inputs too. `constants`: values of the last
    inputs.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    equations: tuple[Any, ...]
    walk: Walk
    constants: tuple[Any, ...]


class Inlined(NamedTuple):
    """A jaxpr with jitted calls inlined; `constants`: variable -> value, of those of the calls."""

    equations: tuple[Any, ...]
    outputs: tuple[Any, ...]
    constants: dict[Any, Any]


@dataclasses.dataclass(frozen=True)
class Step:
    """One equation, as passed to the caller's `candidates` and `mirror` functions.

    Attributes:
      index: its place among the equations. primitive: its name, such as "dot_general".
      name: given by `jax.ad_checkpoint.checkpoint_name`, or "".
      scope: the names of modules and functions around it, such as "block_3/conv".
      bytes: that it makes, also inside calls, but for views and what is kept. crossing_bytes: of
        values made up to this step and read after it.
    """

    index: int
    primitive: str
    name: str
    scope: str
    bytes: int
    crossing_bytes: int


def steps_of(program: TracedFunction) -> list[Step]:
    """Describes a program's equations as Steps, in the order in which they run."""
    sizes, crossing = program.walk.sizes.tolist(), program.walk.crossing().tolist()
    return [
        Step(
            index,
            e.primitive.name,
            str(e.params.get("name", "")) if e.primitive.name == "name" else "",
            str(e.source_info.name_stack),
            sizes[index],
            crossing[index],
        )
        for index, e in enumerate(program.equations)
    ]


def program_of(jaxpr: Any, policy: Policy | None = None) -> TracedFunction:
    """Makes a TracedFunction of an open jaxpr, most of its calls of jitted functions inlined, and
    casts, slices and views of inputs moved to their first use. Calls are not inlined that make
    under 1/1024 of all bytes, have effects, or set shardings, layouts or compiler options. Inputs
    are the jaxpr's constants, its arguments, then constants of inlined calls. Results that `policy`
    keeps count 0 bytes in a step: recomputing frees none.
    """
    sizes = _Sizes(policy)
    inputs = (*jaxpr.constvars, *jaxpr.invars)
    whole = sum(sizes.equation(e) for e in jaxpr.eqns)

    def called(e: Any) -> Any:
        return _plain_call(e) if sizes.equation(e) >= whole // _ATOM else None

    equations, outputs, constants = Inliner(called).inlined(jaxpr)
    inputs = (*inputs, *constants)
    moved = tuple(_moved(list(equations), inputs, outputs))
    walk = _walk(moved, outputs, sizes)
    return TracedFunction(inputs, outputs, moved, walk, tuple(constants.values()))


def inlined(jaxpr: Any) -> Inlined:
    """Inlines all calls of jitted functions in a jaxpr, small ones too. Calls stay that have
    effects, shard their arguments or say how they are compiled.
    """
    return Inliner(_plain_call, user_lines=True).inlined(jaxpr)


def checkpoint_names(equations: Sequence[Any]) -> dict[int, str]:
    """Returns {id of a variable: its `checkpoint_name`, or that of the one named value from which
    it is computed elementwise}; others are left out. A factor of a derivative, such as cos(x) for
    sin(x), follows from the named x at no fewer bytes: if x is kept, the factor need not be. The
    operand of `checkpoint_name` itself has no name: a policy does not keep it for other readers,
    such as tanh's derivative.
    """
    named = {
        id(equation.outvars[0]): equation.params["name"]
        for equation in equations
        if equation.primitive.name == "name"
    }
    sources: dict[int, frozenset[int]] = {}
    for equation in equations:
        taken = [v for v in equation.invars if is_variable(v)]
        arrays = [v for v in taken if getattr(v.aval, "shape", ())]
        for out in equation.outvars:
            alike = all(v.aval.shape == getattr(out.aval, "shape", None) for v in arrays)
            origins = frozenset([id(out)])
            if alike and arrays and id(out) not in named and len(equation.outvars) == 1:
                origins = frozenset().union(*(sources.get(id(v), {id(v)}) for v in arrays))
            sources[id(out)] = origins
    return {
        variable: named[next(iter(origins))]
        for variable, origins in sources.items()
        if len(origins) == 1 and next(iter(origins)) in named
    }


class _Sizes:
    """Counts the bytes that an equation, or all in a jaxpr, make, those inside calls included,
    except in while loops and checkpoints; views and results that `policy` keeps count 0.
    """

    def __init__(self, policy: Policy | None) -> None:
        self._policy = policy
        self._known: dict[int, tuple[int, Any]] = {}

    def equation(self, e: Any) -> int:
        results = sum(map(bytes_of, e.outvars))
        inner = [self.jaxpr(j) for j in inner_jaxprs(e)]
        name = e.primitive.name
        if e.primitive in _VIEWS or self._keeps(e):
            return 0
        if not inner or name in ("while", "checkpoint", "remat", "remat2"):
            return results
        if name == "cond":
            return max(results, *inner)
        if name == "scan":
            return max(results, e.params["length"] * sum(inner))
        return max(results, sum(inner))

    def jaxpr(self, jaxpr: Any) -> int:
        if id(jaxpr) not in self._known:
            # The jaxpr is kept with its size: an id stays its own only while it lives.
            self._known[id(jaxpr)] = sum(map(self.equation, jaxpr.eqns)), jaxpr
        return self._known[id(jaxpr)][0]

    def _keeps(self, e: Any) -> bool:
        if self._policy is None:
            return False
        return self._policy(e.primitive, *(v.aval for v in e.invars), **e.params) is True


class Inliner:
    """Replaces calls by what they call, with fresh variables for every call. `called` gives the
    jaxpr of an equation that is to be inlined, None for others. `user_lines`: whether equations of
    libraries get the line where the user calls them.
    """

    def __init__(self, called: Callable[[Any], Any], user_lines: bool = False) -> None:
        self._called = called
        self._user_lines = user_lines
        self._new = core.gensym()
        self._constants: dict[int, tuple[Any, Any]] = {}  # by id: variable and value

    def inlined(self, jaxpr: Any) -> Inlined:
        """Inlines calls in all of a jaxpr's equations, renames its outputs; returns an Inlined."""
        names: dict[Any, Any] = {}
        equations = tuple(self.equations(jaxpr.eqns, names))
        outputs = tuple(renamed(jaxpr.outvars, names))
        return Inlined(equations, outputs, dict(self._constants.values()))

    def equations(self, equations: Sequence[Any], names: dict[Any, Any]) -> Iterator[Any]:
        """Yields equations, renamed by `names` and with calls inlined; adds to `names` the results
        of inlined calls. Constants of these calls are recorded.
        """
        for e in equations:
            inputs = renamed(e.invars, names)
            inner = self._called(e)
            if inner is None:
                yield e.replace(invars=inputs, outvars=[self._renamed(v, names) for v in e.outvars])
                continue
            jaxpr = getattr(inner, "jaxpr", inner)
            inside = dict(zip(jaxpr.invars, inputs, strict=True))
            for v, value in zip(jaxpr.constvars, getattr(inner, "consts", ()), strict=False):
                inside[v] = self._constants.setdefault(id(value), (self._new(v.aval), value))[0]
            for v in _defined(jaxpr):
                inside[v] = self._new(v.aval)
            for made in self.equations(jaxpr.eqns, inside):
                stack = e.source_info.name_stack + made.source_info.name_stack
                info = made.source_info.replace(name_stack=stack)
                if self._user_lines and user_line(made) is None:
                    info = info.replace(traceback=e.source_info.traceback)
                yield made.replace(source_info=info)
            names.update(zip(e.outvars, renamed(jaxpr.outvars, inside), strict=True))

    def _renamed(self, v: Any, names: dict[Any, Any]) -> Any:
        return v if isinstance(v, core.DropVar) else names.get(v, v)


def _defined(jaxpr: Any) -> Iterator[Any]:
    for e in jaxpr.eqns:
        yield from (v for v in e.outvars if not isinstance(v, core.DropVar))


def _plain_call(e: Any) -> Any:
    """Returns the jaxpr of a jitted call without shardings, layouts, options, effects; or None."""
    if e.primitive is not primitives.jit_p or e.effects:
        return None
    p = e.params
    shardings = (*p["in_shardings"], *p["out_shardings"])
    layouts = (*p["in_layouts"], *p["out_layouts"])
    jaxpr = p["jaxpr"]
    plain = (
        all(type(s).__name__ == "UnspecifiedValue" for s in shardings)
        and all(layout is None for layout in layouts)
        and not p["compiler_options_kvs"]
    )
    return jaxpr if plain else None


def _moved(equations: list[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Returns the equations, with casts, slices and views of inputs just before their first use.
    Programs often begin with casts of all parameters; made there they would cross every cut up to
    their use. Those that nothing uses are left out.
    """
    given = set(inputs)
    waiting: dict[Any, Any] = {}
    result = []

    def emit(v: Any) -> None:
        e = waiting.pop(v)
        for operand in operands(e):
            if operand in waiting:
                emit(operand)
        result.append(e)

    for e in equations:
        read = operands(e)
        early = all(v in given or v in waiting for v in read)
        if early and read and e.primitive in _MOVABLE and len(e.outvars) == 1:
            waiting[e.outvars[0]] = e
            continue
        for v in read:
            if v in waiting:
                emit(v)
        result.append(e)
    for v in outputs:
        if is_variable(v) and v in waiting:
            emit(v)
    return result


def _walk(equations: Sequence[Any], outputs: Sequence[Any], sizes: _Sizes) -> Walk:
    number: dict[Any, int] = {}
    values: list[tuple[int, int, list[int]]] = []
    for step, e in enumerate(equations):
        for v in operands(e):
            if v in number:
                values[number[v]][2].append(step)
        for v in e.outvars:
            if not isinstance(v, core.DropVar):
                number[v] = len(values)
                values.append((bytes_of(v), step, []))
    # Results of the function are kept whatever is cut: they cost no cut anything.
    kept = {number[v] for v in outputs if is_variable(v) and v in number}
    values = [(0 if k in kept else b, s, uses) for k, (b, s, uses) in enumerate(values)]
    return Walk.of(
        [sizes.equation(e) for e in equations],
        values,
        [step for step, e in enumerate(equations) if has_effect(e)],
    )


@dataclasses.dataclass(frozen=True)
class TracedCall:
    """A function traced for given arguments: the jaxpr of its array arguments, and the `values` (or
    shapes) of the jaxpr's constants and then arguments. `shapes`: its results, as a pytree of
    shapes. `arrays`: for each leaf of (args, kwargs), whether it is an array.
    """

    jaxpr: Any
    shapes: Any
    arrays: list[bool]
    values: list[Any]

    @property
    def result(self) -> Any:
        """The pytree structure of the function's result."""
        return jax.tree.structure(self.shapes)


def traced_call(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TracedCall:
    """Traces `fun(*args, **kwargs)`. Arguments that are no arrays, as numbers, become constants."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = [_is_array(leaf) for leaf in leaves]

    def flat(values: list[Any]) -> Any:
        given = iter(values)
        whole = [next(given) if a else leaf for a, leaf in zip(arrays, leaves, strict=True)]
        arguments, keywords = jax.tree.unflatten(tree, whole)
        return fun(*arguments, **keywords)

    given = [leaf for a, leaf in zip(arrays, leaves, strict=True) if a]
    closed, shapes = jax.make_jaxpr(flat, return_shape=True)(given)
    return TracedCall(closed.jaxpr, shapes, arrays, [*closed.consts, *given])


def _is_array(leaf: Any) -> bool:
    """Whether a leaf is an array or shape. Python's numbers are not: `fun` may branch on them."""
    if isinstance(leaf, bool | int | float | complex):
        return False
    return isinstance(leaf, jax.ShapeDtypeStruct) or core.valid_jaxtype(leaf)
