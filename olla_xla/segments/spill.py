"""`olla_xla.spill`: scan residuals, or a state kept between steps, wait in host memory."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import primitives

from olla_xla.errors import InputError
from olla_xla.problem.function_name import function_name
from olla_xla.problem.options import parse_positive
from olla_xla.segments import host_state
from olla_xla.segments.beside import Beside
from olla_xla.segments.equations import (
    as_written,
    bytes_of,
    is_variable,
    run_equation,
    scan_counts,
    user_line,
    values_of,
)
from olla_xla.segments.trace import TracedCall, checkpoint_names, inlined, traced_call

_logger = logging.getLogger("olla_xla")
LEAST = 2**20
"""Bytes of an array below which the copies' own costs outweigh what it frees."""
_OF_THE_LINK = 7_500.0
"""Operations of matrix products in the time in which a byte is copied: an H100 runs about
375e12 in a second, and its link copies 50e9 bytes."""
_WORTH_APART = 0.25
"""Part of an array's copies that an iteration of their own must hide: it takes two slices more."""


@dataclasses.dataclass(frozen=True)
class Spilled:
    """An array that waits in host memory, between two scans or as state between two calls.

    Attributes:
      array: its type and shape, such as "float32[16,4096,8192]"; between scans the first dimension
        counts the iterations, each of which copies one slice. bytes: of the whole array.
      line: "file:line" where a slice is made, or "" where only libraries' lines are known; of
        state, its name, such as "opt_state[0].mu['w']".
      readers: how many scans read it. Each copies it back to the device once.
      name: given by `checkpoint_name` to it, or to the value it follows from elementwise; or "".
    """

    array: str
    bytes: int
    line: str
    readers: int
    name: str = ""


@dataclasses.dataclass(frozen=True)
class SpillPlan:
    """Which arrays `spill` keeps in host memory, largest first."""

    arrays: tuple[Spilled, ...]

    @property
    def host_bytes(self) -> int:
        """The bytes of host memory that the arrays which wait there take together."""
        return sum(a.bytes for a in self.arrays)

    def __str__(self) -> str:
        lines = [f"{a.bytes / 2**20:10,.1f} MB  {a.array}  {a.line}".rstrip() for a in self.arrays]
        return "\n".join([*lines, f"{self.host_bytes / 2**20:10,.1f} MB  in host memory"])


def spill(
    fun: Callable[..., Any],
    *,
    state: str | Collection[str] = (),
    least_bytes: int | str = LEAST,
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
    Express 5 card): a step gets longer where its layers compute less than they copy. A slice is
    copied beside a neighbouring iteration where that hides it. On a CPU nothing is spilled.

    With `state`, arguments that are in host memory are spilled instead, such as the state of an
    optimizer. Arrays that a result needs together are fetched once the gradient is there that they
    are combined with and those before them have gone back. Their new values, results of the same
    tree structure, shapes and types, are in host memory too, and take their places if donated. Both
    kinds are spilled by `spill(spill(fun), state=...)`.

    Args:
      fun: the function.
      state: names of arguments, or of attributes or keys inside them, such as "opt_state".
      least_bytes: smaller arrays stay on the device; a number or a string such as "1MiB".
      host_budget: the most bytes of host memory that spilled arrays may take, on all devices
        together; first the largest whose copies computation hides. None: any number.

    Returns:
      A function with `fun`'s signature; its `explain`, of arrays or shapes, gives a `SpillPlan`.

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
    least = parse_positive(least_bytes, "least_bytes")
    most = None if host_budget is None else parse_positive(host_budget, "host_budget")
    if state:
        if most is not None:
            raise InputError("leave out host_budget= with state=, which is in host memory already")
        return _of_state(fun, (state,) if isinstance(state, str) else tuple(state), least)
    return of_scans(fun, least, most)


def of_scans(
    fun: Callable[..., Any],
    least: int,
    most: int | None,
    waits: float = math.inf,
    hidden: float | None = None,
) -> Callable[..., Any]:
    """Wraps `fun` so that scan residuals wait in host memory: `spill` without state. `least`,
    `most`: as `least_bytes` and `host_budget` of `spill`, in bytes. `waits`: the most time that
    scans may wait for copies, by estimate, as a part of a run's time. `hidden`: bytes that the link
    copies during one operation of a matrix product; None: an H100's.
    """
    hidden = 1 / _OF_THE_LINK if hidden is None else hidden

    @functools.wraps(fun)
    def spilling(*args: Any, **kwargs: Any) -> Any:
        call = traced_call(fun, args, kwargs)
        spiller = _Spiller(call.jaxpr, least, most, waits, hidden)
        if not spiller.chosen:
            _logger.info("%s: no scan stores a value that can be spilled", function_name(fun))
        return jax.tree.unflatten(call.result, spiller.run(call.values))

    def explain(*args: Any, **kwargs: Any) -> SpillPlan:
        """Returns what is spilled for these arguments, arrays or shapes."""
        spiller = _Spiller(traced_call(fun, args, kwargs).jaxpr, least, most, waits, hidden)
        return SpillPlan(tuple(spiller.chosen.values()))

    spilling.explain = explain  # pyright: ignore[reportAttributeAccessIssue]
    return spilling


def spilled_by_waits(
    fun: Callable[..., Any],
    args: Any,
    kwargs: Any,
    most: int,
    waits: Sequence[float],
    link_bytes: float,
) -> list[tuple[Callable[..., Any], SpillPlan]]:
    """Tries limits of waiting for copies; returns (wrapped function, its SpillPlan) for each
    distinct plan that spills anything. `fun`, `args`, `kwargs`: the call. `most`: bytes that may be
    in host memory. `waits`: as of `of_scans`, rising. `link_bytes`: that links copy in a run's
    predicted time.
    """
    jaxpr = traced_call(fun, args, kwargs).jaxpr
    hidden = link_bytes / max(_InlinedProgram(jaxpr).beside.work, 1.0)
    by_plan: dict[SpillPlan, float] = {}
    for part in waits:
        spiller = _Spiller(jaxpr, LEAST, most, part, hidden)
        by_plan.setdefault(SpillPlan(tuple(spiller.chosen.values())), part)
    return [
        (of_scans(fun, LEAST, most, part, hidden), plan)
        for plan, part in by_plan.items()
        if plan.arrays
    ]


def _of_state(fun: Callable[..., Any], names: tuple[str, ...], least: int) -> Callable[..., Any]:
    """Wraps `fun` so that arguments of these names wait in host memory: `spill` with state."""

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


class _Use(NamedTuple):
    """A scan that makes (if `makes`) or reads an array, one slice in each iteration. `body`,
    `length`: of the scan. `runs`: how often it runs. `work`: operations in an iteration that can
    run while the slice is copied. `turned`: whether it runs in the other direction than the scan
    that makes the array, or is it.
    """

    body: _InlinedProgram
    length: int
    runs: int
    makes: bool
    work: float
    turned: bool


class _Found(NamedTuple):
    """An array that can be spilled: its variable, and the scans that make (first) and read it."""

    variable: Any
    array: Spilled
    uses: tuple[_Use, ...]

    @property
    def is_turned(self) -> bool:
        """Whether copies may overlap with an adjacent iteration: all readers run the other way."""
        return all(use.turned for use in self.uses)

    def hidden_part(self, hidden: float) -> float:
        """Returns the part, 0 to 1, of the array's copies to and from the host that computation
        hides if there are no others, at the worst scan. `hidden`: bytes copied in an operation's
        time.
        """
        works = ((use.body.beside.work if self.is_turned else use.work, use) for use in self.uses)
        least = min(use.length * work for work, use in works)
        return min(1.0, hidden * least / max(self.array.bytes, 1))


def _apart(chosen: Sequence[_Found], hidden: float) -> set[Any]:
    """Returns variables whose slices are copied beside the next or previous iteration, which hides
    more. Chosen greedily while one saves waiting for at least 1/4 of its array's bytes. `hidden`:
    bytes that a link copies in the time of one operation.
    """
    apart: set[Any] = set()
    left = [one for one in chosen if one.is_turned]
    while left:
        now = _waits(chosen, apart, hidden)
        then = [_waits(chosen, {*apart, one.variable}, hidden) for one in left]
        least = min(range(len(left)), key=then.__getitem__)
        if now - then[least] < _WORTH_APART * left[least].array.bytes:
            break
        apart.add(left.pop(least).variable)
    return apart


def _waits(chosen: Sequence[_Found], apart: Set[Any], hidden: float) -> float:
    """Estimates the time that scans wait for copies, as bytes that a link copies in that time;
    `hidden`: bytes in one operation's time. Copies of variables in `apart` overlap with a whole
    iteration. Copies to the host share one link, those from it another, in an iteration's order.
    """
    copies: dict[tuple[_InlinedProgram, bool, int], list[tuple[float, int]]]
    copies = collections.defaultdict(list)
    for one in chosen:
        for use in one.uses:
            beside = use.body.beside.work if one.variable in apart else use.work
            time = use.length * hidden * beside
            copies[use.body, use.makes, use.runs].append((time, one.array.bytes))
    waited = 0.0
    for (_, _, runs), transfers in copies.items():
        # A copy must have ended when what is beside it has; one that is sent, backwards in time.
        end = most = 0.0
        for time, size in sorted(transfers):
            end += size
            most = max(most, end - time)
        waited += runs * most
    return waited


class _InlinedProgram:
    """A jaxpr with its calls inlined; the bodies of its scans are programs too. `inputs`,
    `outputs`, `equations`: as in a jaxpr. `constants`: values of the last inputs. `bodies`: number
    of an equation that is a scan -> the program of its body.
    """

    def __init__(self, jaxpr: Any) -> None:
        flat = inlined(jaxpr)
        self.inputs = (*jaxpr.constvars, *jaxpr.invars, *flat.constants)
        self.constants = tuple(flat.constants.values())
        self.equations, self.outputs = flat.equations, flat.outputs
        self._first = len(jaxpr.constvars)
        self.bodies = {
            i: _InlinedProgram(e.params["jaxpr"].jaxpr)
            for i, e in enumerate(self.equations)
            if e.primitive is primitives.scan_p
        }

    @functools.cached_property
    def beside(self) -> Beside:
        """The estimate of how much of these equations' work overlaps with copies of slices."""
        return Beside(self.equations)

    def arrays(self, runs: int = 1) -> Iterator[_Found]:
        """Yields the arrays that only scans make and read, slice by slice, those in scans' bodies
        too, which may thus wait in host memory. `runs` says how often the program runs.
        """
        made: dict[Any, tuple[str, str, bool]] = {}
        used: dict[Any, list[_Use]] = collections.defaultdict(list)
        others = {v for v in self.outputs if is_variable(v)}
        for i, e in enumerate(self.equations):
            sliced = len(e.invars)
            if i in self.bodies:
                sliced = sum(scan_counts(e))
                carries, body = scan_counts(e)[1], self.bodies[i]
                length, reverse = e.params["length"], e.params["reverse"]
                names = checkpoint_names(body.equations)
                for v, w in list(zip(e.outvars, body.outputs, strict=True))[carries:]:
                    line = body.line(w) or user_line(e) or ""
                    made[v] = line, names.get(id(w), ""), reverse
                    used[v].append(_Use(body, length, runs, True, body.beside.after(w), True))
                read = e.invars[sliced:], body.inputs[body._first + sliced :]
                for v, w in zip(*read, strict=False):
                    if is_variable(v) and v in made:
                        turned = reverse != made[v][2]
                        used[v].append(
                            _Use(body, length, runs, False, body.beside.before(w), turned)
                        )
                yield from body.arrays(length * runs)
            others.update(v for v in e.invars[:sliced] if is_variable(v))
        for v, (line, name, _) in made.items():
            if len(used[v]) > 1 and v not in others:
                shape = v.aval.str_short(short_dtypes=False)
                readers = len({use.body for use in used[v][1:]})
                array = Spilled(shape, bytes_of(v), line, readers, name)
                yield _Found(v, array, tuple(used[v]))

    def line(self, result: Any) -> str | None:
        """Returns the user's "file:line" of the equation that makes `result`; None if unknown."""
        makers = (e for e in self.equations if any(v is result for v in e.outvars))
        return next((user_line(e) for e in makers), None)


class _Spiller:
    """Chooses which arrays of a jaxpr wait in host memory, within limits, and runs it with copies.
    A copy that its iteration would wait for overlaps with a whole iteration if that hides most of
    it: a slice is sent in the iteration after the one that makes it, or fetched in the one before
    that reads it. So entry i of the array in host memory is slice i - 1, and the last slice stays
    on the device. `chosen`: variable -> the array, largest first.
    """

    def __init__(
        self, jaxpr: Any, least: int, most: int | None, waits: float, hidden: float
    ) -> None:
        self._program = _InlinedProgram(jaxpr)
        large = [one for one in self._program.arrays() if one.array.bytes >= least]
        left, chosen = math.inf if most is None else most, []
        most_waits = waits * hidden * self._program.beside.work
        for one in sorted(large, key=lambda one: (-one.hidden_part(hidden), -one.array.bytes)):
            more = [*chosen, one]
            if one.array.bytes <= left and (
                math.isinf(most_waits) or _waits(more, _apart(more, hidden), hidden) <= most_waits
            ):
                left, chosen = left - one.array.bytes, more
        self._apart = _apart(chosen, hidden)
        chosen.sort(key=lambda one: -one.array.bytes)
        self.chosen: dict[Any, Spilled] = {one.variable: one.array for one in chosen}

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Runs the jaxpr, with copies, on its constants and arguments; returns its results."""
        return self._run(self._program, values)

    def _run(self, program: _InlinedProgram, values: Sequence[Any]) -> list[Any]:
        known = dict(zip(program.inputs, (*values, *program.constants), strict=True))
        for i, e in enumerate(program.equations):
            given = values_of(e.invars, known)
            with as_written(e):
                if i in program.bodies and self._changes(e, program.bodies[i]):
                    made = self._scan(e, program.bodies[i], given)
                else:
                    made = run_equation(e, given)
            known.update(zip(e.outvars, made, strict=True))
        return values_of(program.outputs, known)

    def _changes(self, e: Any, body: _InlinedProgram) -> bool:
        """Whether scan `e`, or a scan in its body, makes or reads an array kept in host memory."""
        touched = any(is_variable(v) and v in self.chosen for v in (*e.invars, *e.outvars))
        inner = ((body.equations[i], b) for i, b in body.bodies.items())
        return touched or any(self._changes(*pair) for pair in inner)

    def _scan(self, e: Any, body: _InlinedProgram, values: Sequence[Any]) -> list[Any]:
        p, (constants, carries) = e.params, scan_counts(e)
        first = constants + carries
        read, made = e.invars[first:], e.outvars[carries:]
        fetched = [is_variable(v) and v in self.chosen for v in read]
        sent = [v in self.chosen for v in made]
        names = [self.chosen[v].name if v in self.chosen else "" for v in made]
        early = [k for k, v in enumerate(read) if fetched[k] and v in self._apart]
        late = [k for k, v in enumerate(made) if v in self._apart]
        consts = p["jaxpr"].consts

        def iteration(state: Any, xs: Any) -> Any:
            carry, here, before = state
            xs, following = _exchanged(_moved(xs, fetched, jax.memory.Space.Device), early, here)
            results = self._run(body, [*consts, *values[:constants], *carry, *xs])
            ys, last = _exchanged(results[carries:], late, before)
            ys = [checkpoint_name(y, n) if n else y for y, n in zip(ys, names, strict=True)]
            return (results[:carries], following, last), _moved(ys, sent, jax.memory.Space.Host)

        here = [values[first + k][1] for k in early]
        xs, _ = _exchanged(values[first:], early, [values[first + k][0] for k in early])
        before = [jnp.zeros(made[k].aval.shape[1:], made[k].aval.dtype) for k in late]
        how = {name: p[name] for name in ("length", "reverse", "unroll")}
        state = list(values[constants:first]), here, before
        (carry, _, last), ys = jax.lax.scan(iteration, state, xs, **how)
        return [*carry, *_exchanged(ys, late, [*zip((ys[k] for k in late), last, strict=True)])[0]]


def _exchanged(
    values: Sequence[Any], which: Sequence[int], others: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Returns (`values` with `others` at the indices `which`, what was at these indices)."""
    given = dict(zip(which, others, strict=True))
    return [given.get(k, v) for k, v in enumerate(values)], [values[k] for k in which]


def _moved(values: Sequence[Any], which: Sequence[bool], to: Any) -> list[Any]:
    """Returns `values`, those with a true flag in `which` moved to the memory space `to`."""
    return [jax.device_put(v, to) if w else v for v, w in zip(values, which, strict=True)]
