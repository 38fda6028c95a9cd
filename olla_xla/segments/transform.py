"""`olla_xla.sublinear`: a function whose gradient takes memory sublinear in its length."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from olla_xla.errors import InputError, LimitError
from olla_xla.segments.allocation import Allocation, kept_bytes, least_budget, xla_temp_bytes
from olla_xla.segments.budget import (
    Segment,
    budget_choices,
    mirror_counts,
    mirrored_segments,
    plan_segments,
)
from olla_xla.segments.equations import function_of, has_gradient, is_variable
from olla_xla.segments.trace import Policy, Step, TracedFunction, program_of, steps_of, traced_call

_logger = logging.getLogger("olla_xla")
_AS_IT_IS = -1  # among the budgets that are compared: no segments
KEEP: dict[str, Policy | None] = {"nothing": None, "dots": jax.checkpoint_policies.dots_saveable}
"""What is kept inside segments: nothing, or the results of matrix products and convolutions
(section 4.2 of the paper: only what is cheap is recomputed)."""


def sublinear(
    fun: Callable[..., Any],
    *,
    budget: int | str | Allocation | None = None,
    keep: str | Policy = "nothing",
    depth: int | None = 1,
    splits: int = 1,
    candidates: Callable[[Step], bool] | None = None,
    mirror: Callable[[Step], int] | None = None,
) -> Callable[..., Any]:
    """Makes the gradient of a function recompute rather than store: O(sqrt n) memory.

    The function is traced and cut into segments where few bytes cross; each becomes a
    `jax.checkpoint`. Segments are found as in Chen et al. 2016, "Training Deep Nets with Sublinear
    Memory Cost". Results are those of `fun`: wrap the loss, then differentiate, jit, vmap, scan,
    shard or `olla_xla.plan` as before.

    A loop (`scan`), conditional or custom derivative rule is one step: nothing inside it is cut.

    Args:
      fun: the loss function, or any other; all results are returned, auxiliary ones too.
      budget: bytes of results in one segment (B of algorithm 3). None searches for the best by an
        estimate; "exact" by XLA's buffer assignment of the gradient in all arguments, which is
        compiled for each of six budgets, and without segments. A function from a lowered gradient
        to bytes is used like "exact".
      keep: what is not recomputed: "nothing" is kept; "dots", the results of matrix products and
        convolutions, costs little time but memory in proportion to their number; or a policy of
        `jax.checkpoint`. Where that may keep more than the plain function does, a line of log says
        so; with budget="exact" it never does.
      depth: how often a step is recomputed at most. 1: O(sqrt n) memory for one more forward pass;
        d: O(n^(1 / (d + 1))) for d; None: O(log n) for O(log n).
      splits: k of the recursion g(n) = k + g(n / (k + 1)), for depth=None: how often each part is
        cut. More cuts keep more and recompute less.
      candidates: whether a cut may follow a step (the set C of algorithm 3), such as
        `lambda s: s.name == "cut"` for what `checkpoint_name(x, "cut")` marks; None: where few
        bytes cross.
      mirror: how often a step is recomputed (m of algorithm 2), instead of a search: 0 keeps its
        results, 1 makes them again from those, 2 from the ones of count 1, and so on. What several
        segments read is made again for each, so more often than that; `explain` says how often.

    Returns:
      A function with `fun`'s signature; its `explain`, of arrays or shapes, gives a `SegmentPlan`.

    Raises:
      InputError: an argument is invalid, or two contradict each other; at a call: `candidates`
        allows no cut, `mirror` gives no count, or no exact bytes can be found.
      LimitError: `budget`, `depth` or `splits` is not positive.

    Examples:
      >>> grads = jax.grad(olla_xla.sublinear(loss_fn))(params, batch)
    """
    how = _checked(fun, budget, keep, depth, splits, candidates, mirror)

    @functools.wraps(fun)
    def recomputing(*args: Any, **kwargs: Any) -> Any:
        traced = _trace(fun, how, args, kwargs)
        names = dict(zip(traced.program.inputs, traced.values, strict=True))
        block = _whole_block(traced.program, traced.segments, how.policy)
        results = iter(block.function(*(names[v] for v in block.inputs)))
        leaves = [next(results) if is_variable(v) else v.val for v in traced.program.outputs]
        return jax.tree.unflatten(traced.result, leaves)

    def explain(*args: Any, **kwargs: Any) -> SegmentPlan:
        """Returns what is cut for these arguments, arrays or shapes."""
        traced = _trace(fun, how, args, kwargs)
        return SegmentPlan(
            traced.segments,
            tuple(mirror_counts(traced.program.walk, traced.segments)),
            tuple(e.primitive.name for e in traced.program.equations),
            tuple(traced.program.walk.sizes.tolist()),
        )

    recomputing.explain = explain  # pyright: ignore[reportAttributeAccessIssue]
    return recomputing


@dataclasses.dataclass(frozen=True)
class SegmentPlan:
    """The segments into which `sublinear` cuts a function.

    Attributes:
      segments: ranges of equations; see `olla_xla.segments.budget.Segment`.
      mirror_counts: how often each equation is recomputed (m of the paper's algorithm 2).
      equations: their primitives' names. sizes: bytes that each equation makes.
    """

    segments: tuple[Segment, ...]
    mirror_counts: tuple[int, ...]
    equations: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _SublinearOptions:
    """The checked arguments of `sublinear`; `allocation`: gives a gradient's bytes, or None."""

    policy: Policy | None
    budget: int | None
    allocation: Allocation | None
    depth: int | None
    splits: int
    candidates: Callable[[Step], bool] | None
    mirror: Callable[[Step], int] | None


def _checked(
    fun: Any, budget: Any, keep: str | Policy, depth: Any, splits: Any, candidates: Any, mirror: Any
) -> _SublinearOptions:
    if not callable(fun):
        raise InputError(f"olla_xla.sublinear takes a function, not {type(fun).__name__}")
    allocation: Any = xla_temp_bytes if budget == "exact" else budget if callable(budget) else None
    number: Any = None if allocation is not None else budget
    for name, value in (("budget", number), ("depth", depth), ("splits", splits)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise InputError(f"{name}={value!r} is not an integer; give an integer or None")
        if value is not None and value < 1:
            raise LimitError(f"{name}={value} must be at least 1")
    for name, value in (("candidates", candidates), ("mirror", mirror)):
        if value is not None and not callable(value):
            raise InputError(f"{name}={value!r} must be a function that takes a step")
    if depth is None and budget is not None:
        raise InputError("depth=None needs no budget; leave out budget or depth")
    if splits != 1 and depth is not None:
        raise InputError(f"splits={splits} needs depth=None; give it, or leave splits out")
    if mirror is not None and (budget is not None or candidates is not None or depth != 1):
        raise InputError(
            "mirror=... says what to recompute; leave out budget, candidates and depth"
        )
    if not isinstance(keep, str) and callable(keep):
        policy = keep
    elif keep in KEEP:
        policy = KEEP[keep]
    else:
        raise InputError(f"keep={keep!r} is not one of {', '.join(KEEP)}, nor a JAX policy")
    return _SublinearOptions(policy, number, allocation, depth, splits, candidates, mirror)


@dataclasses.dataclass(frozen=True)
class _TracedSegments:
    program: TracedFunction
    segments: tuple[Segment, ...]
    values: list[Any]
    result: Any


def _trace(
    fun: Callable[..., Any], how: _SublinearOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _TracedSegments:
    """Traces a call of `fun` and cuts it into segments. Non-array arguments become constants."""
    call = traced_call(fun, args, kwargs)
    program = program_of(call.jaxpr, how.policy)
    results = jax.tree.leaves(call.shapes)
    is_loss = bool(results) and results[0].shape == ()
    values = [*call.values, *program.constants]
    segments = _segments(program, how, values, is_loss)
    if how.policy is not None and how.mirror is None and how.allocation is None:
        _say_what_is_kept(program, segments, how.policy, values)
    return _TracedSegments(program, segments, values, call.result)


def _say_what_is_kept(
    program: TracedFunction, segments: tuple[Segment, ...], policy: Policy, values: list[Any]
) -> None:
    """Logs if segments with a policy may keep as many bytes as the function's plain gradient, or
    more. Where each product feeds one function that can be derived from its own result, such as
    tanh, `keep="dots"` keeps the products in place of these, and what crosses the cuts besides.
    """
    names = dict(zip(program.inputs, values, strict=True))
    sizes = []
    for chosen in ((), segments):
        block = _whole_block(program, chosen, policy)
        given = [names[v] for v in block.inputs]
        try:
            sizes.append(kept_bytes(block.function, given, fused=not chosen))
        except (NameError, TypeError, ValueError, NotImplementedError):
            return  # no gradient in all arguments: nothing to compare
    plain, ours = sizes
    ours += max((int(program.walk.sizes[s.start : s.stop].sum()) for s in segments), default=0)
    if ours >= plain:
        _logger.info(
            "sublinear: kept values and the largest segment take about %s bytes, the plain "
            'gradient\'s residuals %s; budget="exact" compiles both and takes the smaller',
            f"{ours:,}",
            f"{plain:,}",
        )


def _segments(
    program: TracedFunction, how: _SublinearOptions, values: list[Any], is_loss: bool
) -> tuple[Segment, ...]:
    """Cuts a program into segments as `how` says: by `mirror`, by the gradient's exact bytes, by a
    budget, or by an estimate. Raises InputError if `candidates` allows no cut. `is_loss`: whether
    it ends in a loss, whose segment need not be recomputed.
    """
    walk = program.walk
    if how.mirror is not None:
        return mirrored_segments(walk, _counts(program, how.mirror))
    if how.candidates is not None:
        allowed = np.array([bool(how.candidates(s)) for s in steps_of(program)], np.bool_)
        if not allowed[:-1].any():
            raise InputError(
                "candidates must return True for at least one equation that is not the last"
            )
        walk = dataclasses.replace(walk, allowed=allowed)
    budget = how.budget
    if how.allocation is not None and how.depth is not None and len(walk):
        choices = {_AS_IT_IS: (), **budget_choices(walk, how.depth, is_loss)}
        blocks = {b: _whole_block(program, s, how.policy) for b, s in choices.items()}
        names = dict(zip(program.inputs, values, strict=True))
        (inputs,) = {block.inputs for block in blocks.values()}
        functions = {b: block.function for b, block in blocks.items()}
        budget = least_budget(functions, [names[v] for v in inputs], how.allocation)
        return choices[budget]
    return plan_segments(walk, depth=how.depth, budget=budget, splits=how.splits, loss_last=is_loss)


def _counts(program: TracedFunction, mirror: Callable[[Step], int]) -> list[int]:
    """Calls `mirror` for each step: how often to recompute it. Raises InputError for bad counts."""
    counts = []
    for step in steps_of(program):
        count = mirror(step)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(f"mirror returned {count!r} for {step.primitive}; return 0, 1, 2, ...")
        counts.append(count)
    return counts


def _whole_block(
    program: TracedFunction, segments: tuple[Segment, ...], policy: Policy | None
) -> _BlockFunction:
    """Makes the function of a program's inputs that returns its outputs but literals, and in whose
    gradient these segments are recomputed, but for results that `policy` keeps.
    """
    outputs = tuple(v for v in program.outputs if is_variable(v))
    return _block(program.equations, segments, outputs, policy)


@dataclasses.dataclass(frozen=True)
class _BlockFunction:
    """A function that runs equations on values of the variables `inputs`, which are in order."""

    inputs: tuple[Any, ...]
    function: Callable[..., Sequence[Any]]


def _block(
    equations: Sequence[Any],
    segments: Sequence[Segment],
    outputs: Sequence[Any],
    policy: Policy | None,
) -> _BlockFunction:
    """Makes a function that runs equations and gives `outputs`, each recomputed segment in a
    `jax.checkpoint`. This is the memory-optimised gradient graph (algorithm 2): a segment's
    backward pass runs the segment's equations again from what crosses into it.
    """
    if not segments:
        inputs = _free(equations, outputs)
        return _BlockFunction(inputs, function_of(equations, inputs, outputs))
    inputs = _free(equations, outputs)
    needed = _needed(equations, segments, outputs)
    # What several segments read of the block's inputs goes from one to the next, as a result: so
    # its gradient is summed up segment by segment rather than from all parts at the end.
    readers = [_free(equations[s.start : s.stop], ()) for s in segments]
    times = collections.Counter(v for variables in readers for v in variables)
    threaded = {v for v in inputs if times[v] > 1 and has_gradient(v)}
    parts = []
    for s, results, variables in zip(segments, needed, readers, strict=True):
        if s.recomputed:
            results = (*results, *(v for v in variables if v in threaded))
        part = _block(equations[s.start : s.stop], s.inner, results, policy)
        if s.again:
            part = _with_again(part, [equations[k] for k in s.again])
        function = part.function
        if s.recomputed:
            function = jax.checkpoint(function, policy=policy)
        parts.append((part.inputs, function, results))

    def run(*values: Any) -> list[Any]:
        names = dict(zip(inputs, values, strict=True))
        for variables, function, results in parts:
            made = function(*(names[v] for v in variables))
            names.update(zip(results, made, strict=True))
        return [names[v] for v in outputs]

    return _BlockFunction(inputs, run)


def _with_again(part: _BlockFunction, earlier: Sequence[Any]) -> _BlockFunction:
    """Makes a function that runs `earlier` equations again, and then `part` with their new results.
    The values are those that are made again; their gradient is that of the ones first made, so that
    nothing is differentiated twice.
    """
    made = {v for e in earlier for v in e.outvars}
    again = tuple(v for v in part.inputs if v in made)
    sources = _free(earlier, ())
    inputs = (*part.inputs, *(v for v in sources if v not in part.inputs))
    remake = function_of(earlier, sources, again)

    def run(*values: Any) -> Sequence[Any]:
        names = dict(zip(inputs, values, strict=True))
        stopped = (jax.lax.stop_gradient(names[v]) for v in sources)
        for v, value in zip(again, remake(*stopped), strict=True):
            names[v] = _relayed(names[v], value) if has_gradient(v) else value
        return part.function(*(names[v] for v in part.inputs))

    return _BlockFunction(inputs, run)


@jax.custom_jvp
def _relayed(first: jax.Array, again: jax.Array) -> jax.Array:
    """Returns `again`, equal to `first`, with `first`'s derivative, so `first` need not be kept."""
    return again


@_relayed.defjvp
def _(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]) -> Any:
    return primals[1], tangents[0]


def _free(equations: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
    """Returns variables that equations or `outputs` read and no equation defines, by first use."""
    defined: set[Any] = set()
    free: dict[Any, None] = {}
    for e in equations:
        free.update((v, None) for v in e.invars if is_variable(v) and v not in defined)
        defined.update(e.outvars)
    free.update((v, None) for v in outputs if v not in defined)
    return tuple(free)


def _needed(
    equations: Sequence[Any], segments: Sequence[Segment], outputs: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """Returns for each segment the variables it defines that later segments or `outputs` read."""
    wanted = dict.fromkeys(outputs)
    needed: list[tuple[Any, ...]] = []
    for s in reversed(segments):
        part = equations[s.start : s.stop]
        defined = dict.fromkeys(v for e in part for v in e.outvars)
        needed.append(tuple(v for v in defined if v in wanted))
        wanted.update((v, None) for e in part for v in e.invars if is_variable(v))
        wanted.update((v, None) for v in _free([equations[k] for k in s.again], ()))
    return needed[::-1]
