"""Plans the memory of JAX programs: a better execution order for XLA, with identical results.

    import olla_xla

    @olla_xla.plan(donate_argnums=0)
    def step(state, batch): ...

Importing this package imports nothing heavy, starts no JAX backend and registers nothing with XLA.
"""

import importlib
from typing import TYPE_CHECKING, Any

import olla_xla.version  # noqa: F401 (looks for hlo, before what imports it)
from olla_xla.compile import extensions as of_compile
from olla_xla.errors import (
    AgreementError,
    BudgetError,
    CheckError,
    FallbackError,
    GraphError,
    InputError,
    JitError,
    LimitError,
    ModuleFormatError,
    OllaError,
    PlanFileError,
    PlanMismatchError,
    SolverError,
    VersionError,
)
from olla_xla.problem import extensions as of_problem
from olla_xla.remat import extensions as of_remat
from olla_xla.version import __version__, old_jax

if TYPE_CHECKING:
    import olla_xla.check as check
    from olla_xla.analysis.analysis import Analysis
    from olla_xla.analysis.analyze import analyze
    from olla_xla.compile.decorator import plan
    from olla_xla.compile.events import on_plan
    from olla_xla.compile.plan_event import PlanEvent
    from olla_xla.compile.planned_function import PlannedFunction, PlanWarning
    from olla_xla.compile.stages import PlannedCompiled
    from olla_xla.pieces.transform import FissionPlan, fission
    from olla_xla.problem.options import PlanOptions
    from olla_xla.problem.plan import Plan
    from olla_xla.segments.spill import SpillPlan, spill
    from olla_xla.segments.transform import sublinear
    from olla_xla.tools.audit.audit import audit
    from olla_xla.tools.audit.report import Audit
    from olla_xla.tools.max_batch import max_batch
    from olla_xla.tools.measure.measure import measure
    from olla_xla.tools.report import Report, report

__all__ = [
    "Analysis",
    "AgreementError",
    "Audit",
    "BudgetError",
    "CheckError",
    "FallbackError",
    "FissionPlan",
    "GraphError",
    "InputError",
    "JitError",
    "LimitError",
    "ModuleFormatError",
    "OllaError",
    "Plan",
    "PlanEvent",
    "PlanFileError",
    "PlanMismatchError",
    "PlanOptions",
    "PlanWarning",
    "PlannedCompiled",
    "PlannedFunction",
    "Report",
    "SolverError",
    "SpillPlan",
    "VersionError",
    "__version__",
    "analyze",
    "audit",
    "check",
    "fission",
    "max_batch",
    "measure",
    "on_plan",
    "plan",
    "report",
    "spill",
    "sublinear",
]


_MODULES = {
    "Analysis": "analysis.analysis",
    "Audit": "tools.audit.report",
    "FissionPlan": "pieces.transform",
    "Plan": "problem.plan",
    "PlanEvent": "compile.plan_event",
    "PlanOptions": "problem.options",
    "PlanWarning": "compile.planned_function",
    "PlannedCompiled": "compile.stages",
    "PlannedFunction": "compile.planned_function",
    "Report": "tools.report",
    "SpillPlan": "segments.spill",
    "fission": "pieces.transform",
    "max_batch": "tools.max_batch",
    "measure": "tools.measure.measure",
    "analyze": "analysis.analyze",
    "audit": "tools.audit.audit",
    "on_plan": "compile.events",
    "plan": "compile.decorator",
    "report": "tools.report",
    "spill": "segments.spill",
    "sublinear": "segments.transform",
}


_OF_ANY_JAX = ("Audit", "audit")
"""What compiles nothing by a plan, and needs no hook."""


def __getattr__(name: str) -> Any:
    """Imports a name of the package when it is first used; VersionError if JAX is too old for it.
    Raises AttributeError for other names.
    """
    if name != "check" and name not in _MODULES:
        raise AttributeError(f"module 'olla_xla' has no attribute {name!r}")
    if name == "check":
        return importlib.import_module("olla_xla.check")
    if (why := old_jax()) and name not in _OF_ANY_JAX:  # which lacks names that the module imports
        raise VersionError(why)
    value = getattr(importlib.import_module(f"olla_xla.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _of(module: str, name: str) -> Any:
    """Returns a function that imports `name` of a module when called, and calls it."""

    def call(*given: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(f"olla_xla.{module}"), name)(*given, **named)

    return call


of_problem.order_by_ilp = _of("solvers.programs.orders", "order_by_ilp")
of_remat.evictions = _of("solvers.programs.recomputation", "evictions")
of_remat.fewest_bytes = _of("solvers.programs.residuals", "least")
of_remat.least_seconds = _of("solvers.programs.residuals", "quickest")
of_compile.donation_hint = _of("analysis.compiled_leaves", "donation_hint")
of_compile.checkpoint_policy = _of("tools.policy", "checkpoint_policy")
of_compile.memory_of_kind = _of("targets.target", "memory_of_kind")
of_compile.own_places = _of("place.executable.relocate", "relocated")
of_compile.report = _of("tools.report", "report")
