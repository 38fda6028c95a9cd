"""What planned functions of one function share, as functions that `jax.jit` makes of one do.

`jax.jit(f)(x)` twice traces and compiles once: JAX knows what it has made of `f`. A planned
function must not share that with a plain one, which would run its executables, nor with one that
is planned otherwise. So JAX is given a partial of the function, one for each way of planning it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

    from olla_xla.compile.outcomes import Outcome
    from olla_xla.problem.plan import Plan

__all__ = ["Outcomes", "Shared", "shared"]


class Outcomes:
    """What the compiles of one signature came to, and the lock under which that is found out."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_variant: dict[Hashable, Outcome] = {}


class Shared:
    """What is known of a function that is planned in one way.

    Attributes:
      jitted: a jitted form of it that only functions planned alike use.
      lock: of what follows. outcomes: by JAX's lowering. plans: in the order they were made.
      unplanned: why the last compile that has no plan has none; or "".
      said: what the user has been told.
      refused: digests of lowered modules whose planned results differed from XLA's.
    """

    def __init__(self, jitted: jax.stages.Wrapped) -> None:
        self.jitted: Any = jitted
        self.lock = threading.Lock()
        self.outcomes: weakref.WeakKeyDictionary[Any, Outcomes] = weakref.WeakKeyDictionary()
        self.plans: list[Plan] = []
        self.unplanned = ""
        self.said: set[str] = set()
        self.refused: set[str] = set()


def shared(
    function: Callable[..., Any],
    way: Any,
    jit: Callable[[Callable[..., Any]], jax.stages.Wrapped],
) -> tuple[Callable[..., Any], Shared]:
    """What functions share that are planned like this one.

    Args:
      function: what is planned. way: all that says how, in tuples, lists and dictionaries.
      jit: makes its jitted form.

    Returns:
      The function to hold, the first that was equal to it, and what is shared.
    """
    try:
        key = _frozen(way)
        hash((key, function))
        weakref.ref(function)
    except TypeError:  # one of them cannot be looked up again: nothing is shared
        return function, Shared(jit(_partial(function, function)))
    with _lock:
        made_before = _known.setdefault(function, {})
        if key in made_before and (first := made_before[key][0]()) is not None:
            return first, made_before[key][1]
        # Held weakly, or the function, which is the key, would live as long as what it leads to.
        made = Shared(jit(_partial(weakref.proxy(function), function)))
        made_before[key] = weakref.ref(function), made
        return function, made


class _Called(functools.partial[Any]):
    """A call of a function, which reads as the function itself in JAX's messages."""

    def __repr__(self) -> str:
        return self._text("__repr__")

    def __str__(self) -> str:
        return self._text("__str__")

    def _text(self, method: str) -> str:
        """What a method of the function says; of what a proxy is to, not of the proxy."""
        try:
            return getattr(self.func, method)()
        except ReferenceError:
            return super().__repr__()


def _partial(called: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A partial of its own, under the function's name, by which JAX's messages call it.

    It says what the function takes where a proxy does not (ufuncs).
    """
    made = _Called(called)
    for name in ("__name__", "__qualname__"):
        if hasattr(function, name):
            setattr(made, name, getattr(function, name))
    try:
        inspect.signature(made)
    except (ValueError, TypeError):
        with contextlib.suppress(ValueError, TypeError):  # the function does not say so either
            made.__signature__ = inspect.signature(function)  # pyright: ignore[reportAttributeAccessIssue]
    return made


_known: weakref.WeakKeyDictionary[
    Any, dict[Hashable, tuple[weakref.ref[Callable[..., Any]], Shared]]
] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return "dict", tuple((name, _frozen(value[name])) for name in sorted(value))
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_frozen, value))
    return value
