"""Measures planning as the graph grows: operators against seconds, memory, peak and bound.

Synthetic train steps of any depth (`made_graphs`), and a real one: the unrolled LSTM of the
examples, as XLA schedules it or, where XLA's compile needs more memory than planning by far, as it
is lowered, in program order. Every case is made in one process and planned in another, so that
resident memory is that of planning alone.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.made_graphs import train_step
from benchmarks.worker_lines import worker_lines
from examples.zoo import common, lstm
from hlo.dumps.read import with_program_order
from hlo.text import from_stablehlo
from olla_xla.errors import InputError
from olla_xla.planner import plan_module
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import StopReason

CASES = (
    "synthetic/5",
    "synthetic/16",
    "synthetic/54",
    "synthetic/161",
    "synthetic/540",
    "lstm_xla/64",
    "lstm/80",
)
"""What to plan: synthetic/LAYERS (1k to 100k operators), or the LSTM as lstm_xla/TOKENS, in XLA's
schedule (4,000 operators), or lstm/TOKENS, as lowered (more than 20,000)."""

MOST_SECONDS, MOST_BYTES = 300.0, 8 * 2**30

_LSTM: dict[str, Any] = {
    "layers": 4,
    "width": 16,
    "vocabulary_size": 32,
}  # small: only the graph matters


@dataclasses.dataclass(frozen=True)
class Row:
    """One case as measured.

    Attributes:
      case: its name. operators: instructions of the entry computation.
      seconds: the whole planning time. cpu_seconds: processor time in that.
      resident_bytes: the largest resident memory of the process that planned.
      xla_peak_bytes: lifetime peak of the module's own order, for `lstm_xla` XLA's.
      peak_bytes: of ours. least_peak_bytes, bound_bytes: the least found, and the bound on it.
      xla_bytes, planned_bytes: predicted totals of the two orders.
      gap: of the lifetime peak, as a share of one. stopped_by: why the search ended.
    """

    case: str
    operators: int
    seconds: float
    cpu_seconds: float
    resident_bytes: int
    xla_peak_bytes: int
    peak_bytes: int
    least_peak_bytes: int
    bound_bytes: int
    xla_bytes: int
    planned_bytes: int
    gap: float
    stopped_by: StopReason


def measure(case: str, options: PlanOptions) -> Row:
    """Measures one case in processes of its own.

    Raises:
      InputError: no such case. OllaError: it failed; the message is its last line.
    """
    parse_case(case)
    limits = {name: getattr(options, name) for name in ("time_limit", "step_limit", "seed")}
    with tempfile.TemporaryDirectory() as folder:
        about = {"case": case, "path": str(Path(folder) / "module.pb")}
        list(worker_lines(__name__, about, case))
        *_, row = worker_lines(__name__, {**about, "limits": limits}, case)
    return msgspec.convert(row, Row)


def make_module(case: str) -> bytes:
    """The module of a case, with its own schedule."""
    kind, size = parse_case(case)
    return _KINDS[kind](size)


def plan_here(case: str, module: bytes, options: PlanOptions) -> Row:
    """Plans a case's module in this process."""
    wall, processor = time.monotonic(), time.process_time()
    plan = plan_module(module, options, target="cpu")
    return Row(
        case=case,
        operators=max(len(order) for order in plan.order.values()),
        seconds=time.monotonic() - wall,
        cpu_seconds=time.process_time() - processor,
        resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        xla_peak_bytes=plan.candidates["xla"][1],
        peak_bytes=plan.peak_bytes,
        least_peak_bytes=plan.least_peak_bytes,
        bound_bytes=plan.lower_bound_bytes,
        xla_bytes=plan.xla_predicted_bytes,
        planned_bytes=plan.predicted_bytes,
        gap=plan.gap,
        stopped_by=plan.stopped_by,
    )


def within_limits(row: Row) -> bool:
    """Whether a case took at most 5 minutes and 8 GiB, and no more memory than its own order."""
    quick = row.seconds <= MOST_SECONDS and row.resident_bytes <= MOST_BYTES
    return quick and row.peak_bytes <= row.xla_peak_bytes and row.planned_bytes <= row.xla_bytes


def parse_case(case: str) -> tuple[str, int]:
    """(kind, size) of a case. Raises InputError if there is no such case."""
    kind, _, size = case.partition("/")
    if kind not in _KINDS or not size.isdigit() or not int(size):
        raise InputError(
            f"case {case!r} must read synthetic/LAYERS, lstm/TOKENS or lstm_xla/TOKENS"
        )
    return kind, int(size)


def _synthetic(layers: int) -> bytes:
    return train_step(layers)


def _lstm(tokens: int) -> bytes:
    """The unrolled LSTM as it is lowered, scheduled in program order."""
    return with_program_order(from_stablehlo(_lowered_lstm(tokens, flat=True).as_text()))


def _lowered_lstm(tokens: int, *, flat: bool = False) -> Any:
    """The lowered train step; `flat`: the functions that it calls are inlined, as XLA would."""
    import jax

    model = common.Model(lambda: lstm.network(sequence_length=tokens, **_LSTM))
    step, arguments, jit_options = model(batch_size=4, optimizer="adam")

    def inlined(*args: Any) -> Any:
        with jax.disable_jit():
            return step(*args)

    return jax.jit(inlined if flat else step, **jit_options).lower(*arguments)


def _lstm_xla(tokens: int) -> bytes:
    """The unrolled LSTM as XLA has scheduled it for the CPU.

    Its compile is ended there: machine code for that many operators takes much longer.
    """
    import jax
    from jax.extend import xla

    lowered = _lowered_lstm(tokens)
    found: list[bytes] = []

    def take(module: bytes) -> None:
        found.append(module)
        raise _Taken

    stage = xla.PipelineStage.POST_SCHEDULER
    where: dict[str, Any] = {"stage": stage, "platforms": ("cpu",)}
    xla.register_hlo_module_transformation(take, name="olla_xla_bench_scale", **where)
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError:
        if not found:
            raise
    finally:
        xla.clear_hlo_module_transformation("olla_xla_bench_scale", **where)
    return max(found, key=len)


class _Taken(Exception):
    """Ends a compile whose module has been copied out."""


_KINDS: dict[str, Callable[[int], bytes]] = {
    "synthetic": _synthetic,
    "lstm": _lstm,
    "lstm_xla": _lstm_xla,
}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    name, file = given["case"], Path(given["path"])
    if "limits" not in given:
        file.write_bytes(make_module(name))
    else:
        chosen = PlanOptions(**given["limits"])
        print(json.dumps(dataclasses.asdict(plan_here(name, file.read_bytes(), chosen))))
