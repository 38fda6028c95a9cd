"""Runs one cell in this process: `python -m olla_xla.tools.sweep.cell REQUEST`.

Its row is the last line of stdout. Other programs answer such requests with work of their own.
"""

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import olla_xla.targets as targets
from olla_xla.errors import InputError, OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.tools import models
from olla_xla.tools.step import plan_model
from olla_xla.tools.sweep.grid import Cell, SweepSettings

_MOST_OVERHEAD = 0.05
_QUICK_CODE = "--xla_backend_optimization_level=0"
"""Nothing is run, so machine code need not be good. LLVM comes after buffer assignment, so module
and totals are the same; compiling for a CPU takes about half as long."""


Work = Callable[[Cell, SweepSettings], dict[str, Any]]
"""What a program does for a cell: the row's fields besides those that name the cell."""


def _row(cell: Cell, settings: SweepSettings, work: Work) -> dict[str, Any]:
    """Does `work` for a cell (model, batch size, target, ...); returns its row of the table.
    The row has the seconds that it took, and `error` if it failed.
    """
    started = time.monotonic()
    try:
        row = work(cell, settings)
    except OllaError as error:
        row = {"error": " ".join(str(error).split())}
    except MemoryError:
        row = {"error": "out of memory"}
    return {**row, "seconds": round(time.monotonic() - started, 3)}


def planned(cell: Cell, settings: SweepSettings) -> dict[str, Any]:
    """Plans the step of a cell (model, batch size, ...), and returns its figures for the table.
    Raises InputError if its arguments, or its planned total, exceed the target's memory.
    """
    model = models.build(cell.model, batch_size=cell.batch_size, optimizer=cell.optimizer)

    options = PlanOptions(
        time_limit=settings.time_limit,
        step_limit=settings.step_limit,
        seed=settings.seed,
        placement=settings.placement,
        max_overhead=_MOST_OVERHEAD if cell.mode == "overhead" else None,
    )
    target = targets.target(cell.target)
    _check_fit("its arguments alone", _argument_bytes(model.arguments), target)
    result = plan_model(
        model,
        target,
        options,
        stage=_quiet,
        progress=_quiet,
        compare=cell.mode == "order",  # the other mode's row would say the same
    )
    plan = result.plan
    total = result.report.assigned_bytes
    _check_fit("planned", total, target)
    return {
        "xla_bytes": plan.xla_bytes,
        "memory_optimized_bytes": result.memory_optimized_bytes,
        "planned_bytes": total,
        "bound_bytes": plan.lower_bound_bytes,
        "lifetime_gap": plan.gap,
        "assignment_loss": plan.loss,
        "xla_error": _off(plan.xla_predicted_bytes, plan.xla_bytes),
        "planned_error": _off(plan.predicted_bytes, total),
        "clones": len(plan.clones),
        "added_time": plan.overhead,
        "peak_bytes": plan.peak_bytes,
        "operators": sum(map(len, plan.order.values())),
        "order_seconds": plan.seconds,
    }


def _argument_bytes(arguments: Any) -> int:
    import jax

    leaves = [leaf for leaf in jax.tree.leaves(arguments) if hasattr(leaf, "dtype")]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _check_fit(what: str, size: int, target: targets.Target) -> None:
    """Raises InputError if `size` bytes exceed the target's memory; `what` is for the text."""
    if target.memory_bytes is not None and size > target.memory_bytes:
        raise InputError(
            f"the step does not fit: {what} {size / 2**30:,.1f} GiB, {target.name} has "
            f"{target.memory_bytes / 2**30:,.1f} GiB; take a smaller batch"
        )


def _quiet(line: str) -> None:
    """Does nothing with a line of progress, since progress is not shown for cells."""


def _end_with_parent() -> None:
    """Starts a thread that ends this process soon after its parent process is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def answer(arguments: Sequence[str], work: Work) -> int:
    """Program of a child process: does `work` for the cell (model, batch size, ...) it is given.
    The cell, in `arguments[0]`, and its row, which is printed, are in JSON. Returns 0. The process
    ends early if its parent does.
    """
    request = json.loads(arguments[0])
    settings = SweepSettings(**request.pop("settings"))
    cell = Cell(**request)
    _end_with_parent()
    targets.prepare_environment(cell.target)
    given = os.environ.get("XLA_FLAGS", "")
    if "xla_backend_optimization_level" not in given:
        os.environ["XLA_FLAGS"] = f"{given} {_QUICK_CODE}".strip()
    print(json.dumps(_row(cell, settings, work)))
    return 0


def _off(predicted: int, assigned: int) -> float:
    """Relative error of a predicted total, predicted / assigned - 1; 0.0 if assigned is 0."""
    return predicted / assigned - 1 if assigned else 0.0


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1:], planned))
