"""Makes planning ready in a process: loads its imports and its compiled loops' machine code.

Both take some tenths of a second of a process's first plan, on an idle machine, and wait for
nothing that XLA does (compile/loading.py). The first time after installation loops are compiled.
"""

import functools
import logging
import threading

from hlo.text import from_hlo_text
from olla_xla.memory.lifetimes import live_spans
from olla_xla.planner.pipeline import plan_module
from olla_xla.problem.options import PlanOptions
from olla_xla.schedule.search import moves

_logger = logging.getLogger("olla_xla")

_SHAPE = "f32[64,64]"
_LAYERS = 6


def _text() -> str:
    """The HLO text of a small training step on which every part of the search has work to do."""
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


_lock = threading.Lock()


@functools.cache
def _load() -> None:
    # A GPU's rates are known; a CPU's would be measured, while the machine is busy.
    options = PlanOptions(time_limit=60, step_limit=3000)
    plan_module(from_hlo_text(_text()), options, target="cuda")
    _logger.debug("loaded in %s", threading.current_thread().name)


def loaded() -> None:
    """Loads or compiles the planner's loops in this process, once, by planning a small step."""
    with _lock:
        _load()


def load_kept() -> None:
    """Loads the planner's compiled loops if an earlier process left their machine code on disk."""
    if live_spans.is_kept:
        loaded()
    if moves.late_acceptance_search.is_kept:
        moves.load()
