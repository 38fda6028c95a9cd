"""A planned function that is written in one of several ways, chosen for each signature."""

from __future__ import annotations

import abc
import dataclasses
import functools
import logging
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax

from olla_xla.compile.checkpoint_policy import CheckpointPolicy
from olla_xla.compile.environment import strict
from olla_xla.compile.events import tell, withheld
from olla_xla.compile.jax_private import under_trace
from olla_xla.compile.planned_function import MEANT, PlannedFunction, PlanSettings, planned_function
from olla_xla.compile.stages import PlannedLowered, PlannedTraced
from olla_xla.problem.function_name import function_name

_logger = logging.getLogger("olla_xla")


class ChosenFunction(abc.ABC):
    """A planned function that is written in one of several forms: in pieces of an axis, or with
    values in host memory. For each new signature (the arguments' shapes and types) several are
    compiled, and one is chosen. `jit_options`: of `jax.jit`. `plan_settings`: of every form's plan.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        jit_options: Mapping[str, Any],
        plan_settings: PlanSettings,
    ) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self.__name__: str = function_name(function)
        self._jit_options, self._plan_settings = dict(jit_options), plan_settings
        self._by_signature: dict[Any, tuple[Any, PlannedFunction]] = {}
        self._plain = planned_function(function, self._jit_options, plan_settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function in the form (as 4 pieces) chosen for such arguments, for new ones by
        compiling; inside another function's trace, or if a bug ends the search, in its plain form.
        """
        return self._for(args, kwargs)(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> PlannedLowered:
        """As `jax.jit`'s: lowers the function in the form (such as 4 pieces) that calls run."""
        return self._for(args, kwargs).lower(*args, **kwargs)

    def choice(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what is chosen for these arguments (arrays or shapes), such as a number of
        pieces, if need be by compiling. Raises BudgetError if no form meets the budget.
        """
        return self._chosen(args, kwargs)[0]

    def trace(self, *args: Any, **kwargs: Any) -> PlannedTraced:
        """As `jax.jit`'s: traces the function in the form (such as 4 pieces) that calls run."""
        return self._for(args, kwargs).trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns shapes and dtypes of the results, as `jax.jit`'s does; nothing is compiled."""
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Drops traces and executables, as `jax.jit`'s does, but no choice made for a signature."""
        for function in (self._plain, *(function for _, function in self._by_signature.values())):
            function.clear_cache()

    def as_policy(self, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        """Returns a `jax.checkpoint` policy that keeps the scan residuals that the plan keeps for
        these arguments, on the device or in host memory.
        """
        return self._for(args, kwargs).as_policy(*args, **kwargs)

    @property
    def jit_options(self) -> dict[str, Any]:
        """A copy of the arguments of `jax.jit` that the function was made with."""
        return dict(self._jit_options)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds the function to an instance, as Python functions do, so methods can be planned."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        chosen = ", ".join(self._named(choice) for choice, _ in self._by_signature.values())
        return f"<olla_xla.plan of {self.__name__}: {self._word.format(chosen or 'no')} so far>"

    _word: str
    """Of the choices so far, which stand in its braces."""

    @abc.abstractmethod
    def _search(self, args: Any, kwargs: Any) -> tuple[Any, PlannedFunction]:
        """Compiles several forms of the function for a new signature; returns (what is chosen, such
        as a number of pieces; the planned function in that form).
        """

    @abc.abstractmethod
    def _named(self, choice: Any) -> str:
        """Returns the text of a choice, as a number of pieces, in a word or two for messages."""

    def _for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PlannedFunction:
        # Inside another function's trace nothing is planned, and it is inlined as by jax.jit.
        if under_trace(args, kwargs):
            return self._plain
        try:
            return self._chosen(args, kwargs)[1]
        except Exception as error:
            if strict() or self._plan_settings.options.budget_bytes or isinstance(error, MEANT):
                raise
            self._plain.trace(*args, **kwargs)  # raises what jax.jit does
            kind = type(error).__name__
            _logger.warning("%s: a bug ended the search: %s: %s", self.__name__, kind, error)
            return self._plain

    def _chosen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, PlannedFunction]:
        key = _signature(args, kwargs)
        if key not in self._by_signature:
            with withheld() as events:
                chosen = choice, function = self._search(args, kwargs)
            _logger.info("%s: %s", self.__name__, self._word.format(self._named(choice)))
            ran = [(plan.assigned_bytes, plan.host_bytes) for plan in function.plans[-1:]]
            if kept := [e for e in events if [(e.bytes, e.host_bytes)] == ran] or events[:1]:
                seconds = round(sum(e.seconds for e in events), 3)
                reason, xla = getattr(choice, "host_reason", ""), kept[-1].xla_bytes
                if kept[-1].host_bytes:  # that is XLA's order of what spills
                    xla = next((e.xla_bytes for e in events if not e.host_bytes), xla)
                changed = {"seconds": seconds, "host_reason": reason, "xla_bytes": xla}
                tell(dataclasses.replace(kept[-1], **changed))
            self._by_signature[key] = chosen
        return self._by_signature[key]


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, tree = jax.tree.flatten((args, kwargs))
    return tree, tuple(
        (x.shape, x.dtype, getattr(x, "sharding", None), getattr(x, "weak_type", False))
        if hasattr(x, "shape") and hasattr(x, "dtype")
        else (type(x), x if isinstance(x, bool | str | None) else None)
        for x in leaves
    )
