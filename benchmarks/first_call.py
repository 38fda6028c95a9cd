"""What planning adds to a first call: seconds from `lower()` to the compiled step, jit's and ours.

Each turn is a fresh process, as a user's would be. On disk it finds the machine code of compiled
loops, but neither plans nor executables. With `cached` it also finds plans and JAX's persistent
compilation cache, filled by processes that are not measured.

`python -m benchmarks.first_call REQUEST` is one turn; its result is the last line of stdout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax

import olla_xla
from benchmarks.schedule import Case
from benchmarks.worker_lines import worker_lines
from olla_xla import targets
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.tools import models


@dataclasses.dataclass(frozen=True)
class Row:
    """The measurements of one step; seconds are medians over the turns.

    Attributes:
      case: its name. jit_seconds, plan_seconds: from `lower()` to the compiled step.
      xla_bytes, planned_bytes: assigned totals of both.
      search_seconds: the planner's part of `plan_seconds`, by its own clock.
      turns: processes of each kind.
    """

    case: str
    jit_seconds: float
    plan_seconds: float
    xla_bytes: int
    planned_bytes: int
    search_seconds: float
    turns: int

    @property
    def ratio(self) -> float:
        """plan_seconds / jit_seconds: 1 means that the first call takes as long as jit's."""
        return self.plan_seconds / self.jit_seconds

    @property
    def saving(self) -> float:
        """The fraction of XLA's total that the plan saves."""
        return 1 - self.planned_bytes / self.xla_bytes


def measure(case: Case, turns: int = 3, cached: bool = False, overhead: float | None = None) -> Row:
    """Compiles a step in turns, by `jax.jit` and by `olla_xla.plan`.

    Args:
      case: the step. turns: of each. cached: whether caches are filled before.
      overhead: `max_overhead` of the plans.

    Raises:
      OllaError: a process failed.
    """
    with _cache(cached) as folder:
        if cached:
            for planned in (True, True, False):
                _turn(case, planned, folder, overhead)
        runs = [
            tuple(_turn(case, planned, folder, overhead) for planned in (False, True))
            for _ in range(turns)
        ]
    jitted, planned = zip(*runs, strict=True)
    return Row(
        case=case.name,
        jit_seconds=statistics.median(r["seconds"] for r in jitted),
        plan_seconds=statistics.median(r["seconds"] for r in planned),
        xla_bytes=jitted[-1]["bytes"],
        planned_bytes=planned[-1]["bytes"],
        search_seconds=statistics.median(r["search_seconds"] for r in planned),
        turns=turns,
    )


@contextlib.contextmanager
def _cache(cached: bool) -> Iterator[str]:
    """A folder for JAX's persistent cache, or "" for none."""
    if not cached:
        yield ""
        return
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def _turn(case: Case, planned: bool, cache: str, overhead: float | None) -> dict[str, Any]:
    options = {} if overhead is None else {"max_overhead": overhead}
    about = {**dataclasses.asdict(case), "options": options if planned else None}
    caching = {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    environment = {**os.environ, **(caching if cache else {})}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a used installation has its bytecode
    *_, last = worker_lines("benchmarks.first_call", about, case.name, environment=environment)
    return last


def _one(request: dict[str, Any]) -> dict[str, Any]:
    """One turn in this process."""
    options = request.pop("options")  # of the plan; None: by jax.jit
    planned = options is not None
    case = Case(**request)
    targets.prepare_environment(case.target)
    model = models.build(case.model, batch_size=case.batch_size, optimizer=case.optimizer)
    step: Any = jax.jit(model.step, **model.jit_options)
    if planned:
        step = olla_xla.plan(model.step, **options, **model.jit_options)
    # As in a training script: the state is made after the step is decorated, before its first call.
    given = model.arrays() if case.target == "cpu" else model.arguments
    arguments = targets.target(case.target).place(given)
    jax.block_until_ready(arguments)  # What makes them would run beside either compile.
    with models.tracing(case.model):
        started = time.monotonic()
        compiled: Any = step.lower(*arguments).compile()
        seconds = time.monotonic() - started
    plan = compiled.plan if planned else None
    search = 0.0 if plan is None else plan.seconds
    return {"seconds": seconds, "bytes": assigned_bytes(compiled), "search_seconds": search}


if __name__ == "__main__":
    print(json.dumps(_one(json.loads(sys.argv[1]))))
