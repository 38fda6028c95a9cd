"""JAX's stages of a planned function: traced, lowered, and compiled with its plan.
Each is an instance of JAX's own class, whose attributes are not set and are looked up in the JAX
stage that it wraps. So `isinstance` and reads of private attributes work as with JAX's stages.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax

from olla_xla.compile import assignment, loading, verification
from olla_xla.compile.accounting import Donation, donation, final_module
from olla_xla.compile.outcomes import Outcome
from olla_xla.errors import CheckError, OllaError
from olla_xla.problem.summary import in_a_line

if TYPE_CHECKING:
    from olla_xla.problem.graph import TensorGraph


class _Function(Protocol):
    """The methods of a planned function that its stages call (planned_function.py)."""

    __name__: str
    _verify: bool | None

    def _outcome(
        self, lowered: jax.stages.Lowered, device_key: str, **compile_kwargs: Any
    ) -> Outcome: ...

    def _difference(
        self, expected: Any, found: Any, comparison: verification.ResultComparison
    ) -> str: ...

    def _say(self, text: str) -> None: ...

    def _warn(self, text: str) -> None: ...


class _Stage:
    """One of JAX's stages, with all its attributes, and the planned function it came from."""

    def __init__(self, function: _Function, stage: Any, device_key: str) -> None:
        self._function = function
        self._stage = stage
        self._device_key = device_key

    @property
    def stage(self) -> Any:
        """The JAX stage (traced, lowered or compiled) that this object wraps."""
        return self._stage

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._stage, name)


class PlannedTraced(_Stage, jax.stages.Traced):
    """A `jax.stages.Traced` whose `lower` returns a stage that plans when it is compiled."""

    def lower(self, **kwargs: Any) -> PlannedLowered:
        """Lowers the function as `jax.stages.Traced.lower`, into a stage whose `compile` plans."""
        return PlannedLowered(self._function, self._stage.lower(**kwargs), self._device_key)


class PlannedLowered(_Stage, jax.stages.Lowered):
    """A `jax.stages.Lowered` whose `compile` looks for a plan and applies it."""

    def compile(
        self, compiler_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> PlannedCompiled:
        """Compiles as `jax.stages.Lowered.compile` does, with a planned schedule if one is found
        that saves memory and passes the checks.
        """
        if compiler_options:
            kwargs["compiler_options"] = compiler_options
        try:
            outcome = self._function._outcome(self._stage, self._device_key, **kwargs)
        except OllaError as error:  # at the caller's line, as for a call
            raise error.with_traceback(None) from error.__cause__
        return PlannedCompiled(self._function, outcome, self._device_key, self._stage)


class PlannedCompiled(_Stage, jax.stages.Compiled):
    """A `jax.stages.Compiled`, with the plan that it runs.

    Attributes:
      plan: the plan in use; XLA's own order when `planned` is False; None when planning failed.
      planned: True when the executable runs another order than XLA's own.
      reason: why it does not, or "".
    """

    def __init__(
        self,
        function: _Function,
        outcome: Outcome,
        device_key: str,
        lowered: jax.stages.Lowered,
    ) -> None:
        super().__init__(function, outcome.compiled, device_key)
        self._lowered = lowered
        self._outcome: Outcome | None = outcome  # None after the first call
        self.plan = outcome.plan
        self.planned = outcome.planned
        self.reason = outcome.reason

    def __repr__(self) -> str:
        if self.planned and self.plan is not None:
            state = f"planned, {in_a_line(self.plan)}"
        elif self.plan is not None:
            state = f"not planned, {self.reason}: {in_a_line(self.plan)}"
        else:
            state = f"not planned, {self.reason}"
        return f"<olla_xla.plan of {self._function.__name__}, compiled: {state}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the executable; its first results are compared with XLA's own if that is due.
        If they differ, warns, returns XLA's own, and runs XLA's executable from then on.
        """
        if self._outcome is None:
            return self._stage(*args, **kwargs)
        outcome, self._outcome, function = self._outcome, None, self._function
        comparison = verification.due(function._verify, outcome, self._lowered, function._say)
        if comparison is None:
            return self._stage(*args, **kwargs)
        own_args, own_kwargs = verification.copies((args, kwargs))
        outputs = self._stage(*args, **kwargs)
        own = self._lowered.compile(compiler_options={})  # XLA's own, not the one that calls run
        expected = comparison.expected(own, own_args, own_kwargs)
        difference = expected and function._difference(*expected, outputs, comparison)
        if not expected or not difference:
            return outputs
        self._stage, self.planned = own, False
        self.reason = "its planned results differed from XLA's own"
        function._warn(verification.report(function.__name__, difference))
        return expected[0]

    @functools.cached_property
    def donation(self) -> Donation:
        """Numbers of donated argument arrays, by what XLA did with their memory."""
        return donation(self._stage)

    def graphs(self) -> list[TensorGraph]:
        """Returns the tensor graphs of the computations: callees first, the step itself last.
        `olla_xla.tools.to_networkx.to_networkx` makes a networkx graph of one, and
        `olla_xla.tools.to_networkx.write_graphml` writes it. Raises CheckError without a plan.
        """
        if self.plan is None:
            raise CheckError(f"{self._function.__name__} has no plan: {self.reason}")
        return loading.planner().graphs(final_module(self._stage), self.plan.target)

    def check(self, dump: Path | None = None) -> assignment.AssignmentReport:
        """Compares XLA's real buffer assignment with the plan, tensor by tensor.
        On a GPU each thunk of the executable is compared with the module as well, byte by byte.
        Raises CheckError if they differ, or there is no plan.

        Args:
          dump: where XLA dumped its buffer assignment; needed on a GPU whose executables cannot be
            read: `.compile(compiler_options=compile.assignment.dump_options(dump))`.
        """
        if self.plan is None:
            raise CheckError(f"{self._function.__name__} has no plan to check: {self.reason}")
        return assignment.check_compiled(self._stage, self.plan, dump)
