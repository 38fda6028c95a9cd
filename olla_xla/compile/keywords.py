"""The keyword arguments of `olla_xla.plan`, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict


class PlanKeywords(TypedDict, total=False):
    """The fields of `PlanOptions`, and `jax.jit`'s own arguments for plain functions."""

    # Fields of PlanOptions.
    time_limit: float | None
    step_limit: int | None
    seed: int
    tolerance: float
    in_place: bool
    memory_budget: int | str | None
    max_overhead: float | str | None
    loops: bool
    collectives: bool
    method: str
    early_updates: bool

    # Arguments of jax.jit; `backend` is a field of PlanOptions too.
    in_shardings: Any
    out_shardings: Any
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    device: Any
    backend: str | None
    inline: Any
    compiler_options: dict[str, Any] | None
