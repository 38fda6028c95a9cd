"""Compiles and plans each dumped module in a folder, such as those of XLA's own benchmarks.

Every dump has a process of its own, because XLA may abort on one. `python -m benchmarks.suite
REQUEST` is such a process. It prints each result at once, so that the results before an abort are
kept.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.worker_lines import worker_lines
from hlo.dumps.lowered import LoweredModule, read_lowered
from hlo.module import HloError, module_from_bytes
from olla_xla import targets
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.errors import InputError, OllaError
from olla_xla.planner.warm_up import loaded
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.targets.target import Target
from olla_xla.tools.dumped import DumpedStage

_KINDS = (".hlo", ".txt", ".pb", ".mlir")
_SCHEDULED = "it has a schedule: XLA's pipeline is behind it; olla_xla plan --hlo takes it as it is"


@dataclasses.dataclass(frozen=True)
class SuitePlan:
    """A plan of a dump.

    Attributes:
      max_overhead: what it was allowed to add; None is the default.
      bytes: XLA's total of what is used then. step_seconds: its predicted time.
      seconds: of the first call: XLA's compile and the planning inside it.
      planned: whether it is used. reason: why not, or "".
      trouble: whether `reason` is a failure, not just that there is nothing to gain.
      beside: the policy whose predicted step time the plan was allowed, or "".
      way: "spilled", or "both", spilled and recomputed; "" for plans without host memory.
      host_bytes: XLA's total of host memory. copies: to and from it that the executable's thunks
        start on other streams, and that they do not.
    """

    max_overhead: float | None
    bytes: int
    step_seconds: float
    seconds: float
    planned: bool
    reason: str = ""
    trouble: bool = False
    beside: str = ""
    way: str = ""
    host_bytes: int = 0
    copies: tuple[int, int] = (0, 0)


@dataclasses.dataclass(frozen=True)
class SuiteRow:
    """A dump.

    Attributes:
      name: of the file. devices: that the module is for; 0 where that is not known.
      xla_bytes: XLA's total; None where it did not compile the module.
      step_seconds: predicted time in XLA's own order. seconds: of XLA's compile.
      plans: in the order asked for; fewer where the process ended before.
      error: why there is no more, or "".
    """

    name: str
    devices: int = 0
    xla_bytes: int | None = None
    step_seconds: float = 0.0
    seconds: float = 0.0
    plans: tuple[SuitePlan, ...] = ()
    error: str = ""

    @property
    def trouble(self) -> bool:
        """Whether we failed on a module that XLA compiled."""
        return self.xla_bytes is not None and (
            bool(self.error) or any(plan.trouble for plan in self.plans)
        )


def dumps(folder: Path, parts: Sequence[str] = ()) -> list[Path]:
    """The dumps in a folder, by name.

    Args:
      folder: where they are. parts: of names, one of which each must have; all if empty.

    Raises:
      InputError: there are none.
    """
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [
        path
        for path in files
        if path.name.removesuffix(".gz").endswith(_KINDS)
        and (not parts or any(part in path.name for part in parts))
    ]
    if not found:
        raise InputError(f"{folder} holds no dumps ({', '.join(_KINDS)}, each also with .gz)")
    return found


def suite_row(
    path: Path,
    target: str,
    overheads: Sequence[float],
    options: PlanOptions,
    progress: Callable[[str], None],
) -> SuiteRow:
    """Compiles and plans a dump, in a process of its own.

    Args:
      path: the dump. target: what to compile it for.
      overheads: of the plans beside the default one. options: of all plans.
      progress: called with one line at each stage.
    """
    about = {"path": str(path), **asked(target, overheads, options)}
    return filled(SuiteRow(path.name), __name__, about, progress)


def asked(target: str, overheads: Sequence[float], options: PlanOptions) -> dict[str, Any]:
    """The request for a process's plans. Args as for `suite_row`."""
    names = ("time_limit", "step_limit", "seed", "collectives")
    limits = {name: getattr(options, name) for name in names}
    return {"target": target, "overheads": list(overheads), "limits": limits}


def filled(
    row: SuiteRow, module: str, about: dict[str, Any], progress: Callable[[str], None]
) -> SuiteRow:
    """A row with what a process of its own finds.

    Args:
      row: its name. module: of the process, which prints what it finds by `say`.
      about: the argument of the process. progress: called with one line at each stage.
    """
    try:
        for line in worker_lines(module, about, "its process"):
            if "stage" in line:
                progress(f"{row.name}: {line['stage']}")
            elif "plan" in line:
                row = dataclasses.replace(row, plans=(*row.plans, SuitePlan(**line["plan"])))
            else:
                row = dataclasses.replace(row, **line)
    except OllaError as error:
        return dataclasses.replace(row, error=str(error))
    return row


def say(**found: Any) -> None:
    """Prints what a process found: a stage, a plan, or fields of its row."""
    print(json.dumps(found), flush=True)


def say_plans(about: dict[str, Any], planned: Callable[[dict[str, Any]], SuitePlan]) -> None:
    """Makes the plans that a process is asked for, and prints each.

    Args:
      about: `asked`; also "beside", an overhead by the name of what else takes that long.
      planned: what comes of options, by name.
    """
    loaded()
    asked = [("", overhead) for overhead in (None, *about["overheads"])]
    for beside, overhead in [*asked, *about.get("beside", {}).items()]:
        kind = "by default" if overhead is None else f"{overhead:.0%} overhead at most"
        say(stage=f"planned, {kind}")
        plan = planned({"max_overhead": overhead, **about["limits"]})
        say(plan=dataclasses.asdict(dataclasses.replace(plan, beside=beside)))


def _work(about: dict[str, Any]) -> None:
    """The work of one process; errors of XLA or of the reader are printed as results."""
    try:
        module = read_lowered(about["path"])
    except HloError as error:
        return say(error=str(error).removeprefix(f"{about['path']}: "))
    if module is None:
        return say(error=_SCHEDULED)
    say(devices=module.devices)
    try:
        targets.prepare_environment(about["target"], module.devices)
        target = targets.target(about["target"], module.devices)
        cost = CostModel(device(target.platform, target.kind), target.platform)
        say(stage="XLA's own schedule")
        stage = DumpedStage(module, target)
        started = time.monotonic()
        own = stage.captured()
        say(
            xla_bytes=own.assigned_bytes,
            seconds=time.monotonic() - started,
            step_seconds=run_seconds(module_from_bytes(own.final), cost),
        )
    except OllaError as error:
        return say(error=str(error))
    del stage, own  # executables, with their code
    say_plans(about, lambda options: _planned(module, target, PlanOptions(**options), cost))


def _planned(
    module: LoweredModule, target: Target, options: PlanOptions, cost: CostModel
) -> SuitePlan:
    stage = DumpedStage(module, target)
    started = time.monotonic()
    outcome = stage.planned(options)
    assert not isinstance(options.max_overhead, str)
    return SuitePlan(
        max_overhead=options.max_overhead,
        bytes=assigned_bytes(outcome.compiled),
        seconds=time.monotonic() - started,
        step_seconds=run_seconds(module_from_bytes(final_module(outcome.compiled)), cost),
        planned=outcome.planned,
        reason=outcome.reason,
        trouble=outcome.fell_back,
    )


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
