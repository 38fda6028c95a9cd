"""`olla_xla.spill`: what one scan writes for another, or a state, waits in host memory."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import primitives

from olla_xla.errors import InputError, LimitError
from olla_xla.problem.function_name import function_name
from olla_xla.problem.options import parse_bytes
from olla_xla.segments import host_state
from olla_xla.segments.beside import Beside
from olla_xla.segments.trace import (
    TracedCall,
    as_written,
    bytes_of,
    inlined,
    is_variable,
    scan_counts,
    traced_call,
    user_line,
)

_logger = logging.getLogger("olla_xla")

_LEAST = 2**20
"""Bytes of an array below which the copies' own costs outweigh what it frees."""


@dataclasses.dataclass(frozen=True)
class Spilled:
    """An array that waits in host memory, between two scans or as state between two calls.

    Attributes:
      array: its type and shape, such as "float32[16,4096,8192]"; between scans the first dimension
        counts the iterations, each of which copies one slice.
      bytes: of the whole array.
      line: "file:line" where a slice is made, or "" where only libraries' lines are known; of
        state, its name, such as "opt_state[0].mu['w']".
      readers: how many scans read it. Each copies it back to the device once.
    """

    array: str
    bytes: int
    line: str
    readers: int


@dataclasses.dataclass(frozen=True)
class SpillPlan:
    """Which arrays `spill` keeps in host memory, largest first."""

    arrays: tuple[Spilled, ...]

    @property
    def host_bytes(self) -> int:
        """The bytes of host memory that the spilled arrays take together."""
        return sum(a.bytes for a in self.arrays)

    def __str__(self) -> str:
        lines = [f"{a.bytes / 2**20:10,.1f} MB  {a.array}  {a.line}".rstrip() for a in self.arrays]
        return "\n".join([*lines, f"{self.host_bytes / 2**20:10,.1f} MB  in host memory"])


def spill(
    fun: Callable[..., Any],
    *,
    state: str | Collection[str] = (),
    least_bytes: int | str = _LEAST,
    host_budget: int | str | None = None,
) -> Callable[..., Any]:
    """Keeps in host memory what one `lax.scan` stores for another, such as scan residuals.

    The function is traced. An array is spilled if a scan makes it slice by slice and nothing but
    other scans read it, slice by slice: in a training step, what the layers of the forward pass
    store for the backward pass. Each iteration of the first scan copies its slice to the host, each
    iteration of the others copies one back. The model needs no names and no policy. The same
    operations run on the same values: on a CPU results are bit-identical; on other devices XLA may
    fuse what is copied otherwise, and so round otherwise.

    `fun` is the whole step, with the gradient in it; wrap it before `jax.jit`. Scans in the bodies
    of scans are looked at too, as in accumulation over microbatches; those inside `jax.checkpoint`,
    branches, while loops and custom derivatives are not.

    The copies overlap with computation, but the link to the host is slow (about 50 GB/s for a PCI
    Express 5 card): a step gets longer where its layers compute less than they copy. On a CPU
    nothing is spilled, since its memory is the host's.

    With `state`, arguments that are in host memory are spilled instead, such as the state of an
    optimizer. Arrays that a result needs together are fetched once the gradient is there that they
    are combined with and those before them have gone back. Their new values, results of the same
    tree structure, shapes and types, are in host memory too, and take their places if donated.
    Both kinds are spilled by `spill(spill(fun), state=...)`.

    Args:
      fun: the function.
      state: names of arguments, or of attributes or keys inside them, such as "opt_state".
      least_bytes: smaller arrays stay on the device; a number or a string such as "1MiB".
      host_budget: the most bytes of host memory that spilled arrays may take, on all devices
        together; first those are spilled whose copies most computation hides. None: any number.

    Returns:
      A function of `fun`'s signature. Its `explain(*args, **kwargs)`, on arrays or shapes, is the
      `SpillPlan`.

    Raises:
      InputError: `fun` is no function, or a number of bytes cannot be read, or `host_budget` is
        given with `state`; at a call: no state has such a name, or none is in host memory.
      LimitError: a number is not positive.

    Examples:
      >>> step = jax.jit(olla_xla.spill(train_step), donate_argnums=0)
      >>> opt_state = jax.device_put(opt_state, jax.memory.Space.Host)  # once
      >>> step = jax.jit(olla_xla.spill(train_step, state="opt_state"), donate_argnums=(0, 1))
    """
    if not callable(fun):
        raise InputError(f"olla_xla.spill takes a function, not {type(fun).__name__}")
    least = _positive("least_bytes", least_bytes)
    most = None if host_budget is None else _positive("host_budget", host_budget)
    if state:
        if most is not None:
            raise InputError("host_budget= is not for state: only what is in host memory is moved")
        return _of_state(fun, (state,) if isinstance(state, str) else tuple(state), least)
    return _of_scans(fun, least, most)


def _of_scans(fun: Callable[..., Any], least: int, most: int | None) -> Callable[..., Any]:
    """`spill` of what scans store."""

    @functools.wraps(fun)
    def spilling(*args: Any, **kwargs: Any) -> Any:
        call = traced_call(fun, args, kwargs)
        spiller = _Spiller(call.jaxpr, least, most)
        if not spiller.chosen:
            _logger.info("%s: no scan stores anything to spill", function_name(fun))
        return jax.tree.unflatten(call.result, spiller.run(call.values))

    def explain(*args: Any, **kwargs: Any) -> SpillPlan:
        """What is spilled for these arguments, arrays or shapes."""
        spiller = _Spiller(traced_call(fun, args, kwargs).jaxpr, least, most)
        return SpillPlan(tuple(spiller.chosen.values()))

    spilling.explain = explain  # pyright: ignore[reportAttributeAccessIssue]
    return spilling


def _of_state(fun: Callable[..., Any], names: tuple[str, ...], least: int) -> Callable[..., Any]:
    """`spill` of a function's state."""

    def traced(args: Any, kwargs: Any) -> tuple[TracedCall, SpillPlan]:
        moved = host_state.Placed(fun, names)
        call = traced_call(moved, args, kwargs)
        return call, SpillPlan(tuple(Spilled(*leaf, 1) for leaf in moved.leaves))

    @functools.wraps(fun)
    def spilling(*args: Any, **kwargs: Any) -> Any:
        call, _ = traced(args, kwargs)
        return jax.tree.unflatten(call.result, host_state.in_turns(call.jaxpr, call.values, least))

    spilling.explain = lambda *args, **kwargs: traced(args, kwargs)[1]  # pyright: ignore
    return spilling


def _positive(name: str, value: int | str) -> int:
    size = parse_bytes(value, name)
    if size <= 0:
        raise LimitError(f"{name}={value!r} must be positive")
    return size


class _Program:
    """A jaxpr with its calls inlined, and the scans in its scans' bodies as programs.

    Attributes:
      inputs, outputs, equations: as in a jaxpr. constants: values of the last inputs.
      bodies: number of an equation that is a scan -> the program of its body.
    """

    def __init__(self, jaxpr: Any) -> None:
        found = inlined(jaxpr)
        self.inputs = (*jaxpr.constvars, *jaxpr.invars, *found.constants)
        self.constants = tuple(found.constants.values())
        self.equations, self.outputs = found.equations, found.outputs
        self._first = len(jaxpr.constvars)
        self.bodies = {
            i: _Program(e.params["jaxpr"].jaxpr)
            for i, e in enumerate(self.equations)
            if e.primitive is primitives.scan_p
        }

    @functools.cached_property
    def beside(self) -> Beside:
        """What can run beside copies, if this is the body of a scan."""
        return Beside(self.equations)

    def arrays(self) -> Iterator[tuple[Any, Spilled, float]]:
        """(variable, what it is spilled as, work) of each array that scans alone touch, by slices.

        The work is what can run beside a copy, for each byte, where there is the least of it.
        """
        made: dict[Any, Any] = {}
        readers: dict[Any, int] = {}
        works: dict[Any, list[float]] = collections.defaultdict(list)
        others = {v for v in self.outputs if is_variable(v)}
        for i, e in enumerate(self.equations):
            sliced = len(e.invars)
            if i in self.bodies:
                sliced = sum(scan_counts(e))
                carries, body = scan_counts(e)[1], self.bodies[i]
                for v, w in list(zip(e.outvars, body.outputs, strict=True))[carries:]:
                    made[v] = body.line(w) or user_line(e)
                    works[v].append(e.params["length"] * body.beside.after(w))
                for v, w in zip(
                    e.invars[sliced:], body.inputs[body._first + sliced :], strict=False
                ):
                    if is_variable(v) and v in made:
                        works[v].append(e.params["length"] * body.beside.before(w))
                yield from body.arrays()
            others.update(v for v in e.invars[:sliced] if is_variable(v))
            for v in {v for v in e.invars[sliced:] if is_variable(v)}:
                readers[v] = readers.get(v, 0) + 1
        for v, line in made.items():
            if v in readers and v not in others:
                shape = v.aval.str_short(short_dtypes=False)
                a = Spilled(shape, bytes_of(v.aval), line or "", readers[v])
                yield v, a, min(works[v]) / max(a.bytes, 1)

    def line(self, result: Any) -> str | None:
        """The user's "file:line" that makes a result, if an equation does."""
        makers = (e for e in self.equations if any(v is result for v in e.outvars))
        return next((user_line(e) for e in makers), None)


class _Spiller:
    """A traced function whose chosen arrays wait in host memory.

    Attributes:
      chosen: variable -> what it is spilled as, largest first.
    """

    def __init__(self, jaxpr: Any, least: int, most: int | None) -> None:
        self._program = _Program(jaxpr)
        found = [one for one in self._program.arrays() if one[1].bytes >= least]
        left, chosen = math.inf if most is None else most, []
        for v, a, _ in sorted(found, key=lambda one: -one[2]):
            if a.bytes <= left:
                left -= a.bytes
                chosen.append((v, a))
        self.chosen: dict[Any, Spilled] = dict(sorted(chosen, key=lambda pair: -pair[1].bytes))

    def run(self, values: Sequence[Any]) -> list[Any]:
        """The results for values of the jaxpr's constants and arguments."""
        return self._run(self._program, values)

    def _run(self, program: _Program, values: Sequence[Any]) -> list[Any]:
        known = dict(zip(program.inputs, (*values, *program.constants), strict=True))
        for i, e in enumerate(program.equations):
            given = [known[v] if is_variable(v) else v.val for v in e.invars]
            with as_written(e):
                if i in program.bodies and self._changes(e, program.bodies[i]):
                    made = self._scan(e, program.bodies[i], given)
                else:
                    made = e.primitive.bind(*given, **e.primitive.get_bind_params(e.params))
                    made = made if e.primitive.multiple_results else [made]
            known.update(zip(e.outvars, made, strict=True))
        return [known[v] if is_variable(v) else v.val for v in program.outputs]

    def _changes(self, e: Any, body: _Program) -> bool:
        """Whether a scan touches a chosen array, or a scan in its body does."""
        touched = any(is_variable(v) and v in self.chosen for v in (*e.invars, *e.outvars))
        inner = ((body.equations[i], b) for i, b in body.bodies.items())
        return touched or any(self._changes(*pair) for pair in inner)

    def _scan(self, e: Any, body: _Program, values: Sequence[Any]) -> list[Any]:
        p, (constants, carries) = e.params, scan_counts(e)
        first = constants + carries
        fetched = [is_variable(v) and v in self.chosen for v in e.invars[first:]]
        sent = [v in self.chosen for v in e.outvars[carries:]]
        consts = p["jaxpr"].consts

        def iteration(carry: Any, xs: Any) -> Any:
            here = _moved(xs, fetched, jax.memory.Space.Device)
            made = self._run(body, [*consts, *values[:constants], *carry, *here])
            return made[:carries], _moved(made[carries:], sent, jax.memory.Space.Host)

        how = {name: p[name] for name in ("length", "reverse", "unroll")}
        carry, ys = jax.lax.scan(
            iteration, list(values[constants:first]), list(values[first:]), **how
        )
        return [*carry, *ys]


def _moved(values: Sequence[Any], which: Sequence[bool], to: Any) -> list[Any]:
    """Values, those of `which` moved to a memory space."""
    return [jax.device_put(v, to) if w else v for v, w in zip(values, which, strict=True)]
