"""Checks planned steps on a real GPU: `python -m examples.gpu_check`.

Runs MLP, ResNet-50 and GPT planned and unplanned, each in a fresh process, and compares every
output bit for bit, the order of the executable with the plan's, the peak bytes in use that the
device's allocator reports, and the median step time. Prints a table and then one line of JSON.
Exit code 1 if a check fails; without a GPU it says so and exits with 0.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags
from rich.console import Console

from olla_xla.bench.measure.processes import measure
from olla_xla.bench.measure.records import Comparison, Request
from olla_xla.cli.report.measured import measured_verdict
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent
from olla_xla.errors import InputError, OllaError

FLAGS = flags.FlagValues()
flags.DEFINE_list(
    "cases",
    "mlp/256/adam,resnet50/32/momentum,gpt/4/adam",
    "model/batch_size/optimizer, several.",
    flag_values=FLAGS,
)
flags.DEFINE_integer("steps", 10, "Steps to run.", lower_bound=2, flag_values=FLAGS)
flags.DEFINE_float(
    "time_limit", 60.0, "Seconds of search, at most.", lower_bound=0.1, flag_values=FLAGS
)

_PROBE = (
    "import jax; print(next((d.device_kind for d in jax.devices() if d.platform == 'gpu'), ''))"
)


def gpu() -> str:
    """The kind of the first GPU that JAX finds in a process of its own, or ""."""
    quiet = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    run = subprocess.run(
        [sys.executable, "-c", _PROBE], env=quiet, capture_output=True, text=True, check=False
    )
    lines = run.stdout.splitlines()
    return lines[-1].strip() if run.returncode == 0 and lines else ""


def request(case: str) -> Request:
    """What to run for one of `--cases`. Raises InputError if it is none."""
    model, _, rest = case.partition("/")
    size, _, optimizer = rest.partition("/")
    if not (model and optimizer and size.isdecimal() and int(size)):
        raise InputError(f"--cases: {case!r} is not model/batch_size/optimizer")
    return Request(
        model=model,
        batch_size=int(size),
        optimizer=optimizer,
        steps=FLAGS.steps,
        planned=True,
        platform="gpu",
        time_limit=FLAGS.time_limit,
    )


def row(case: str, comparison: Comparison) -> dict[str, Any]:
    """One case as JSON: sizes in bytes, times in seconds."""
    ours, theirs = comparison.planned, comparison.unplanned
    return {
        "case": case,
        "device": ours.device,
        "identical": not comparison.difference,
        "difference": comparison.difference,
        "planned": ours.planned,
        "reason": ours.reason,
        "assigned_bytes": [theirs.assigned_bytes, ours.assigned_bytes],
        "device_peak_bytes": [theirs.device_peak_bytes, ours.device_peak_bytes],
        "step_seconds": [statistics.median(m.step_seconds) for m in (theirs, ours)],
        "time_ratio": comparison.time_ratio,
    }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Every case, XLA's order beside the planned one."""
    headings = (
        "case:", "assigned MB", "planned", "change %", "measured peak MB", "planned", "change %",
        "step ms", "planned", "ratio", "outputs:",
    )  # fmt: skip
    lines = []
    for one in rows:
        sizes = []
        for theirs, ours in (one["assigned_bytes"], one["device_peak_bytes"]):
            known = theirs is not None and ours is not None
            change = percent(ours / theirs - 1, 1) if known and theirs else ""
            sizes += [megabytes(theirs), megabytes(ours), change]
        times = [f"{1e3 * s:.2f}" for s in one["step_seconds"]]
        outputs = "identical" if one["identical"] else "DIFFERENT"
        lines.append((one["case"], *sizes, *times, f"{one['time_ratio']:.3f}", outputs))
    return Table(headings, lines, f"Planned on {rows[0]['device']}" if rows else "")


def main(argv: Sequence[str]) -> int:
    """Runs every case; returns the exit code."""
    try:
        if len(left := FLAGS(list(argv))) > 1:
            raise InputError(f"unexpected argument {left[1]!r}; flags are --name=value")
        requests = {case: request(case) for case in FLAGS.cases}
    except (flags.Error, InputError) as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    device = gpu()
    if not device:
        print("no GPU")
        return 0
    rows, failed = [], 0
    for case, one in requests.items():
        try:
            comparison = measure(one, lambda line, case=case: print(f"{case}: {line}", flush=True))
        except OllaError as error:
            failed += 1
            print(f"{case}: {error}", file=sys.stderr)
            continue
        print(f"{case}: {measured_verdict(comparison)}", flush=True)
        failed += bool(comparison.difference)
        rows.append(row(case, comparison))
    table(rows).print(Console(highlight=False, width=160))
    print(json.dumps({"device": device, "steps": FLAGS.steps, "rows": rows}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
