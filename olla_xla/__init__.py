"""Plans the memory of JAX programs: a better execution order for XLA, with identical results.

    import olla_xla

    @olla_xla.plan(donate_argnums=0)
    def step(state, batch): ...

Importing this package imports nothing heavy, starts no JAX backend and registers nothing with XLA.
"""

import importlib
from typing import TYPE_CHECKING, Any

from olla_xla.errors import (
    BudgetError,
    CheckError,
    GraphError,
    InputError,
    LimitError,
    ModuleFormatError,
    OllaError,
    PlanFileError,
    PlanMismatchError,
    SolverError,
    VersionError,
)

if TYPE_CHECKING:
    from olla_xla import check as check
    from olla_xla.analysis.analysis import Analysis
    from olla_xla.compile.analyze import analyze
    from olla_xla.compile.decorator import PlannedCompiled, PlannedFunction, PlanWarning, plan
    from olla_xla.compile.max_batch import max_batch
    from olla_xla.compile.measure import measure
    from olla_xla.problem.options import PlanOptions
    from olla_xla.problem.plan import Plan
    from olla_xla.remat.segments.transform import sublinear

__all__ = [
    "Analysis",
    "BudgetError",
    "CheckError",
    "GraphError",
    "InputError",
    "LimitError",
    "ModuleFormatError",
    "OllaError",
    "Plan",
    "PlanFileError",
    "PlanMismatchError",
    "PlanOptions",
    "PlanWarning",
    "PlannedCompiled",
    "PlannedFunction",
    "SolverError",
    "VersionError",
    "__version__",
    "analyze",
    "check",
    "max_batch",
    "measure",
    "plan",
    "sublinear",
]

__version__ = "0.1.0"

_HOMES = {
    "Analysis": "analysis.analysis",
    "Plan": "problem.plan",
    "PlanOptions": "problem.options",
    "PlanWarning": "compile.decorator",
    "PlannedCompiled": "compile.decorator",
    "PlannedFunction": "compile.decorator",
    "max_batch": "compile.max_batch",
    "measure": "compile.measure",
    "analyze": "compile.analyze",
    "plan": "compile.decorator",
    "sublinear": "remat.segments.transform",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for."""
    if name == "check":
        return importlib.import_module("olla_xla.check")
    if name not in _HOMES:
        raise AttributeError(f"module 'olla_xla' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"olla_xla.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
