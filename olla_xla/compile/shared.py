"""State shared by planned functions of one function, as by functions that `jax.jit` makes of one.
Calling `jax.jit(f)(x)` twice traces and compiles once, since JAX caches by `f`. A planned function
must not share this cache with a plain one, which would run its executables, nor with one that has
other settings. So JAX gets a partial of the function, one for all planned alike.
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


class Outcomes:
    """Outcomes of compiling one lowering, by compile arguments; `lock` is held while compiling."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_variant: dict[Hashable, Outcome] = {}


class Shared:
    """State that planned functions of one function with the same settings share.

    Attributes:
      jitted: the jitted function, used only by functions planned alike.
      lock: for the rest. outcomes: by JAX's lowering. plans: in the order they were made.
      unplanned: why the last compile has no plan, or "".
      said: messages that the user has got.
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
    """Finds or makes the state shared by functions that are equal (==) and have equal settings
    (`way`, in tuples, lists, dicts); new, and not shared, for what is unhashable. `jit`: jits a
    function. Returns (the first function equal to this one, to be kept alive; the shared state).
    """
    try:
        key = _frozen(way)
        hash((key, function))
        weakref.ref(function)
    except TypeError:  # not hashable, or no weak references: nothing is shared
        return function, Shared(jit(_partial(function, function)))
    with _lock:
        made_before = _known.setdefault(function, {})
        if key in made_before and (first := made_before[key][0]()) is not None:
            return first, made_before[key][1]
        # A weak reference: otherwise the value would keep the function, which is its key, alive.
        made = Shared(jit(_partial(weakref.proxy(function), function)))
        made_before[key] = weakref.ref(function), made
        return function, made


class _Called(functools.partial[Any]):
    """A partial of a function that prints as the function itself in JAX's messages."""

    def __repr__(self) -> str:
        return self._text("__repr__")

    def __str__(self) -> str:
        return self._text("__str__")

    def _text(self, method: str) -> str:
        """Calls `__repr__` or `__str__` of the function; of the partial if the function is gone."""
        try:
            return getattr(self.func, method)()
        except ReferenceError:
            return super().__repr__()


def _partial(called: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a partial of `called`, a function or a weak proxy of it, with the name of `function`.
    It gets the function's signature where a proxy does not give it (ufuncs).
    """
    made = _Called(called)
    for name in ("__name__", "__qualname__"):
        if hasattr(function, name):
            setattr(made, name, getattr(function, name))
    try:
        inspect.signature(made)
    except (ValueError, TypeError):
        with contextlib.suppress(ValueError, TypeError):  # the function has no signature either
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


class Plans(tuple["Plan", ...]):
    """A tuple of plans; the IndexError for one that is not there says why (`named`)."""

    _message = ""

    def named(self, name: str, why: str) -> Plans:
        """Sets the IndexError's message: a function's name, why it has no plan. Returns itself."""
        self._message = f"{name} has {len(self) or 'no'} plan{'s' * (len(self) > 1)}: {why}"
        return self

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except IndexError:
            raise IndexError(self._message) from None
