"""Loads what planning needs, in a thread of its own, while XLA compiles as far as its schedule.

Imports take a second or two of a process's first plan, and the machine code of compiled loops as
much again; both wait for nothing that XLA does.
"""

from __future__ import annotations

import functools
import logging
import threading

from hlo.read import from_hlo_text
from olla_xla.planner.module import plan_module
from olla_xla.problem.options import PlanOptions

__all__ = ["loaded"]

_logger = logging.getLogger("olla_xla")

_SHAPE = "f32[64,64]"
_LAYERS = 6


def _text() -> str:
    """A step that every part of the search has something to do for."""
    lines = [f"%p{k} = {_SHAPE} parameter({k})" for k in range(_LAYERS + 1)]
    last = "p0"
    for k in range(_LAYERS):
        lines.append(f"%sum{k} = {_SHAPE} add(%{last}, %p{k + 1})")
        lines.append(f"%act{k} = {_SHAPE} tanh(%sum{k})")
        last = f"act{k}"
    back = last
    for k in reversed(range(_LAYERS)):
        lines.append(f"%grad{k} = {_SHAPE} multiply(%{back}, %sum{k})")
        lines.append(f"%new{k} = {_SHAPE} subtract(%p{k + 1}, %grad{k})")
        back = f"grad{k}"
    results = ", ".join(f"%new{k}" for k in range(_LAYERS))
    shapes = ", ".join([_SHAPE] * _LAYERS)
    lines.append(f"ROOT %out = ({shapes}) tuple({results})")
    body = "\n  ".join(lines)
    return f"HloModule warm_up, is_scheduled=true\n\nENTRY %main {{\n  {body}\n}}\n"


@functools.cache
def loaded() -> None:
    """Plans a small step, so that all compiled loops are loaded, or compiled where they are new."""
    plan_module(from_hlo_text(_text()), PlanOptions(time_limit=60, step_limit=3000), target="cpu")
    _logger.debug("loaded in %s", threading.current_thread().name)
