"""State that waits in host memory between steps and is fetched a few arrays at a time.

An update reads each array of an optimizer's state once, late, and returns it. Arrays that one
result needs together are fetched when the gradient is there that they are combined with, and when
the arrays fetched before them have gone back.
"""

import functools
import heapq
import inspect
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from olla_xla.errors import InputError
from olla_xla.segments.equations import (
    as_written,
    bytes_of,
    function_of,
    has_effect,
    is_variable,
    run_equation,
    values_of,
)
from olla_xla.segments.trace import inlined

_HOST, _DEVICE = jax.memory.Space.Host, jax.memory.Space.Device


class Placed:
    """A function that moves `fun`'s state, such as an optimizer's, from host to device memory,
    calls it, and moves the new state back. A result is an argument's new state if it has the same
    tree structure, shapes and types; of several such results, and arguments, the first belongs to
    the first, and so on. `names`: of `fun`'s arguments, or of attributes or keys in them, that are
    state. `leaves`: (array, bytes, name) of what the last call moved, such as ("float32[8]", 32,
    "opt_state[0].mu['w']"): the arrays of the state that are in host memory, largest first.
    """

    def __init__(self, fun: Callable[..., Any], names: tuple[str, ...]) -> None:
        self._fun, self._names = fun, names
        self.leaves: list[tuple[str, int, str]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `fun` with state in device memory; returns its results, with new state in host
        memory. Sets `leaves`. Raises InputError if nothing in host memory has one of the names.
        """
        bound = inspect.signature(self._fun).bind(*args, **kwargs)
        names = tuple(bound.arguments)
        paths, tree = jax.tree_util.tree_flatten_with_path(tuple(bound.arguments.values()))
        values, avals = [v for _, v in paths], [_aval(v) for _, v in paths]
        nodes = list(_nodes(jax.tree.unflatten(tree, range(len(values))), names))
        given = [(_kind(n, avals), jax.tree.leaves(n)) for _, n in nodes]
        state = [i for i, (name, _) in enumerate(nodes) if name in self._names]
        moved = self._in_host_memory([k for i in state for k in given[i][1]], avals)
        self.leaves = []
        for k in sorted(moved, key=lambda k: -bytes_of(avals[k])):
            path, array = paths[k][0], avals[k].update(memory_space=_DEVICE)
            name = names[path[0].idx] + jax.tree_util.keystr(path[1:])
            self.leaves.append((array.str_short(short_dtypes=False), bytes_of(array), name))
            values[k] = jax.device_put(values[k], _DEVICE)
        bound.arguments.update(zip(names, jax.tree.unflatten(tree, values), strict=True))
        results, tree = jax.tree.flatten(self._fun(*bound.args, **bound.kwargs))
        made = [_aval(v) for v in results]
        result_nodes = [n for _, n in _nodes((jax.tree.unflatten(tree, range(len(results))),))]
        sent = set()
        for i in state:
            kind, old = given[i]
            news = [jax.tree.leaves(n) for n in result_nodes if _kind(n, made) == kind]
            before = sum(other == kind for other, _ in given[:i])
            for new in news[before : before + 1]:
                sent.update(r for k, r in zip(old, new, strict=True) if k in moved)
        results = [jax.device_put(v, _HOST) if r in sent else v for r, v in enumerate(results)]
        return jax.tree.unflatten(tree, results)

    def _in_host_memory(self, leaves: Collection[int], avals: Sequence[Any]) -> set[int]:
        """Returns those of `leaves` (indices) in host memory; raises InputError if none is."""
        name = self._names[0]
        if not leaves:
            raise InputError(
                f"state={','.join(self._names)}: no argument, attribute or dict key has this name"
            )
        there = {k for k in leaves if getattr(avals[k], "memory_space", None) is _HOST}
        if not there:
            raise InputError(
                f"{name} is in device memory; before the first step, move it: "
                f"{name} = jax.device_put({name}, jax.memory.Space.Host)"
            )
        return there


def _aval(value: Any) -> Any:
    """Returns the abstract value of an array; any other leaf is returned unchanged."""
    return jax.typeof(value) if hasattr(value, "dtype") else value


def _nodes(tree: Any, names: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yields (name, subtree) of all nodes below a pytree's root, parents first. Names are the last
    keys of paths; `names`, if given, are those of the root's children instead.
    """
    children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    for k, (path, child) in enumerate(children):
        if path:  # a leaf has itself for a child
            name = names[k] if names else jax.tree_util.keystr(path, simple=True)
            yield name, child
            yield from _nodes(child)


def _kind(node: Any, avals: Sequence[Any]) -> Any:
    """Returns a key, equal for a state and its new one: (tree structure, (shape, dtype) of its
    leaves). The leaves of `node` are indices into `avals`.
    """
    leaves, tree = jax.tree.flatten(node)
    kinds = [(getattr(avals[k], "shape", None), getattr(avals[k], "dtype", None)) for k in leaves]
    return tree, tuple(kinds)


class _Equation(NamedTuple):
    """On which arrays fetched from host memory an equation's results depend, `fetches`, a bit set,
    and of these through large arrays alone, `near`. `ready`: number of the last equation, not
    elementwise, on which they depend through large arrays and which depends on no fetched array, as
    a gradient's; -1 without one.
    """

    fetches: int
    near: int
    ready: int


class _Group(NamedTuple):
    """Arrays that some results need together, fetched from host memory at one time: `fetches`,
    their bit set; `results`, variables that are computed from them; `ready`, maximum of the
    results' `_Equation.ready`.
    """

    fetches: int
    ready: int
    results: tuple[Any, ...]


def in_turns(jaxpr: Any, values: Sequence[Any], least: int) -> list[Any]:
    """Runs the jaxpr of a traced `Placed` on its constants and arguments; returns its results.
    State of at least `least` bytes an array is fetched from host memory a group of arrays at a
    time; other equations keep their order. On a CPU, whose memory is the host's, all do: in another
    order XLA may fuse them otherwise, and so round otherwise.
    """
    program = inlined(jaxpr)
    inputs = (*jaxpr.constvars, *jaxpr.invars, *program.constants)
    waits = _waits(program.equations, program.outputs, set(inputs), least)
    order = list(_order(program.equations, waits))

    def ordered(*values: Any) -> list[Any]:
        known = dict(zip(inputs, (*values, *program.constants.values()), strict=True))
        for i in order:
            e = program.equations[i]
            given = values_of(e.invars, known)
            with as_written(e):
                if i in waits:
                    after = [known[v] for v in waits[i]]
                    given = jax.lax.optimization_barrier((*given, *after))[:1]
                known.update(zip(e.outvars, run_equation(e, given), strict=True))
        return values_of(program.outputs, known)

    plain = function_of(jaxpr.eqns, (*jaxpr.constvars, *jaxpr.invars), jaxpr.outvars)
    return jax.lax.platform_dependent(*values, cpu=plain, default=ordered)


def _waits(
    equations: Sequence[Any], outputs: Sequence[Any], inputs: Collection[Any], least: int
) -> dict[int, list[Any]]:
    """Returns {number of an equation that fetches from host memory: variables to be computed before
    it}, if any: results that an earlier group has finished, else the gradient combined with it.
    """
    fetches = [
        i
        for i, e in enumerate(equations)
        if e.primitive.name == "device_put"
        and e.invars[0] in inputs
        and bytes_of(e.invars[0]) >= least
    ]
    bits = {i: 1 << k for k, i in enumerate(fetches)}
    of: dict[Any, _Equation] = {}
    for i, e in enumerate(equations):
        read = [(v, of[v]) for v in e.invars if is_variable(v) and v in of]
        large = [d for v, d in read if bytes_of(v) >= least]
        any_of = functools.reduce(operator.or_, (d.fetches for _, d in read), bits.get(i, 0))
        near = functools.reduce(operator.or_, (d.near for d in large), bits.get(i, 0))
        ready = max((d.ready for d in large), default=-1)
        if not any_of and _combines(e) and max(map(bytes_of, e.outvars)) >= least:
            ready = i
        of.update(dict.fromkeys(e.outvars, _Equation(any_of, near, ready)))
    results = [(v, of[v]) for v in outputs if is_variable(v) and v in of]
    groups = _groups([(v, d) for v, d in results if d.near and bytes_of(v) >= least])
    waits: dict[int, list[Any]] = {}
    gone: list[list[Any]] = []
    for k, group in enumerate(groups):
        later = functools.reduce(operator.or_, (g.fetches for g in groups[k + 1 :]), 0)
        after = next(filter(None, reversed(gone)), _made(equations, group.ready))
        gone.append([v for v in group.results if not of[v].fetches & later])
        waits.update((i, after) for i, bit in bits.items() if bit & group.fetches and after)
    return waits


def _groups(results: Sequence[tuple[Any, _Equation]]) -> list[_Group]:
    """Groups output variables by the arrays fetched from host memory of which they are computed
    (`near`); sorted by `ready`, the last equation before them that depends on no such array.
    """
    groups: list[_Group] = []
    for v, d in results:
        joined = [g for g in groups if g.fetches & d.near]
        groups = [g for g in groups if not g.fetches & d.near]
        group = _Group(d.near, d.ready, (v,))
        for g in joined:
            ready = max(group.ready, g.ready)
            group = _Group(group.fetches | g.fetches, ready, (*g.results, *group.results))
        groups.append(group)
    return sorted(groups, key=lambda g: g.ready)


def _made(equations: Sequence[Any], number: int) -> list[Any]:
    """Returns [the largest result variable of equation `number`], or [] if `number` is -1."""
    return [max(equations[number].outvars, key=bytes_of)] if number >= 0 else []


def _combines(e: Any) -> bool:
    """Whether an equation seems not to be elementwise: its result is stored before it is read."""
    made = max(v.aval.size for v in e.outvars)
    read = [v.aval.size for v in e.invars if is_variable(v)]
    return "dimension_numbers" in e.params or any(size not in (1, made) for size in read)


def _order(equations: Sequence[Any], waits: Mapping[int, Sequence[Any]]) -> Iterator[int]:
    """Yields the numbers of equations in the order to run: always the least whose operands and
    `waits` (number -> variables) are computed; equations with effects keep their order.
    """
    makers = {v: i for i, e in enumerate(equations) for v in e.outvars}
    needs: list[set[int]] = []
    effect = None
    for i, e in enumerate(equations):
        read = [v for v in (*e.invars, *waits.get(i, ())) if is_variable(v)]
        needs.append({makers[v] for v in read if v in makers})
        if has_effect(e):
            needs[-1].update(() if effect is None else (effect,))
            effect = i
    users: dict[int, list[int]] = {}
    for i, before in enumerate(needs):
        for k in before:
            users.setdefault(k, []).append(i)
    ready = [i for i, before in enumerate(needs) if not before]
    while ready:
        i = heapq.heappop(ready)
        yield i
        for k in users.get(i, ()):
            needs[k].discard(i)
            if not needs[k]:
                heapq.heappush(ready, k)
