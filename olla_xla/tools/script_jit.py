"""What `jax.jit` is in a script that `olla_xla run` runs: it plans, and notes what it planned."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from olla_xla.analysis.analysis import Analysis
from olla_xla.analysis.analyze import analyze
from olla_xla.compile.decorator import plan
from olla_xla.compile.events import on_plan
from olla_xla.compile.outcomes import Outcome
from olla_xla.compile.plan_event import PlanEvent
from olla_xla.compile.planned_function import PlannedFunction
from olla_xla.memory.own_jit import own_jit
from olla_xla.pieces.on_host import HostFunction
from olla_xla.problem.function_name import function_name

_JAX = os.path.join(os.path.dirname(os.path.realpath(str(jax.__file__))), "")
_SHOWN = 2
"""Arrays in the text of a signature, the last ones: batches come after weights."""


class Signature:
    """One compile of a function for some argument shapes, with what came of planning it.

    Attributes:
      event: what came of planning it.
      text: how many arrays it takes, and the last, as "48 arrays: .., float32[32,784], int32[32]".
      seconds: that its first call took, or its compile, where it was compiled without a call.
    """

    def __init__(self, event: PlanEvent) -> None:
        self.event, self.text, self.seconds = event, "", event.seconds
        self._function: PlannedFunction | None = None
        self._arguments: tuple[list[Any], Any] = ([], None)  # leaves, and their tree

    def called(self, function: PlannedFunction, args: Any, kwargs: Any) -> list[Any]:
        """Stores a function and the shapes of its call's arguments; returns the call's leaves."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        self._function, self._arguments = function, ([_shape(leaf) for leaf in leaves], tree)
        return leaves

    def analyze(self) -> Analysis | None:
        """Compiles the function again for an Analysis with advice; None where it was not called."""
        if self._function is None:
            return None
        leaves, tree = self._arguments
        args, kwargs = tree.unflatten(leaves)
        return analyze(self._function, *args, advice=True, **kwargs)


class _Notes(threading.local):
    """Thread-local state: the Signature (a compile of a function) made last, or None."""

    latest: Signature | None = None


class _NotedFunction(PlannedFunction):
    """A planned function that notes argument shapes and seconds of each compile (`Signature`)."""

    notes: _Notes

    def _before_miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        began, self.notes.latest = time.monotonic(), None
        then = super()._before_miss(args, kwargs)
        noted = self.notes.latest
        if noted is None:
            return then
        noted.called(self, args, kwargs)

        def finish() -> None:
            noted.seconds = time.monotonic() - began
            if then is not None:
                then()

        return finish

    def _outcome(self, lowered: Any, device_key: str, **compile_kwargs: Any) -> Outcome:
        self.notes.latest = None
        outcome = super()._outcome(lowered, device_key, **compile_kwargs)
        if self.notes.latest is not None:
            self.notes.latest.text = _text(jax.tree.leaves(lowered.args_info))
        return outcome


class _NotedHostFunction(HostFunction):
    """A `HostFunction` (values may wait in host memory) that notes the shapes of each compile."""

    notes: _Notes

    def _chosen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.notes.latest = None
        chosen = super()._chosen(args, kwargs)
        if (noted := self.notes.latest) is not None:
            noted.text = _text(noted.called(chosen[1], args, kwargs))
        return chosen


def install(
    options_of: Callable[[str, str], dict[str, Any] | None], found: list[Signature]
) -> None:
    """Replaces `jax.jit` by a function that plans what it is given, except for JAX's own code, and
    listens to all plans of the process. Neither is undone.

    Args:
      options_of: from a function's name, and the name with that of its module before it, to the
        options of `olla_xla.plan`; None where it is not to be planned.
      found: a list, to which a Signature is appended for each compile with planning.
    """
    notes = _Notes()

    def listen(event: PlanEvent) -> None:
        notes.latest = Signature(event)
        found.append(notes.latest)

    @functools.wraps(own_jit)
    def jit(fun: Any = None, /, **jit_options: Any) -> Any:
        if fun is None:
            return functools.partial(jit, **jit_options)
        name = function_name(fun)
        options = options_of(name, f"{getattr(fun, '__module__', '')}.{name}")
        if options is None or _is_jaxs(fun):
            return own_jit(fun, **jit_options)
        made = plan(fun, **options, **jit_options)
        of, settings, own = made.__wrapped__, made._plan_settings, made.jit_options
        if isinstance(made, HostFunction):
            noted = _NotedHostFunction(of, own, settings, made._most, fission=False)
        else:
            noted = _NotedFunction(of, made._shared, settings, own)
        noted.notes = notes
        return noted

    on_plan(listen)
    jax.jit = jit


def _is_jaxs(function: Any) -> bool:
    """Whether a function, with wrappers and partials removed, is defined in the package jax."""
    while (inner := getattr(function, "__wrapped__", getattr(function, "func", None))) is not None:
        function = inner
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is not None and os.path.realpath(code.co_filename).startswith(_JAX)


def _shape(leaf: Any) -> Any:
    """Returns an array's shape, dtype and committed sharding; a leaf that is no array as it is."""
    if isinstance(leaf, np.ndarray):
        return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
    if not isinstance(leaf, jax.Array):
        return leaf
    where = leaf.sharding if leaf.committed else None
    weak = getattr(leaf, "weak_type", False)  # keys have none
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where, weak_type=weak)


def _text(leaves: list[Any]) -> str:
    leaves = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
    last = (f"{leaf.dtype.name}[{','.join(map(str, leaf.shape))}]" for leaf in leaves[-_SHOWN:])
    many = f"{len(leaves):,} arrays: .., " if len(leaves) > _SHOWN else ""
    return many + ", ".join(last)
