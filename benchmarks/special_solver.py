"""Solvers of models that are not linear, each a module with `solve(model, limits) -> Result`."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Mapping
from typing import Any

from olla_xla.errors import InputError
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status


def solve_special(
    registry: Mapping[str, str], model: Any, limits: SolverLimits | None, backend: str
) -> SolverResult:
    """Minimises a model that is not linear; the caller checks the point.

    Args:
      registry: name of a backend -> its module, with `solve(model, limits) -> Result`.
      model: what that takes. limits: of the solver. backend: a name.

    Returns:
      A result with the solver's point; ERROR, with the reason in `failures`, if the solver is
      missing or fails.

    Raises:
      InputError: another backend.
    """
    if backend not in registry:
        raise InputError(f"backend={backend!r}: choose one of {', '.join(registry)}")
    started = time.monotonic()
    try:
        solver = importlib.import_module(registry[backend])
        result = solver.solve(model, limits or SolverLimits())
    except Exception as error:  # a solver may raise anything
        reason = f"{backend}: {type(error).__name__}: {error}"
        return SolverResult(Status.ERROR, message="the backend failed", failures=(reason,))
    return dataclasses.replace(result, backend=backend, seconds=time.monotonic() - started)
