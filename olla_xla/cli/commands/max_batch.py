"""The largest batch of a model that fits a device: XLA alone, planned, and with recomputation.

Two batch sizes are compiled for --target as far as XLA's schedule. For each way, a straight line
through the two predicted totals gives the batch that should just fit, which is compiled in full.
The compiles that are left of --compiles make the answers more exact. Every answer is a batch that
fits; if it is not known that the next larger one does not fit, a line says between which sizes the
largest lies.
With --devices the batch is divided among that many devices, each of which holds all else.

By default a step may use what JAX's allocator takes by default: three quarters of a GPU's memory,
and of a TPU all that a program may have. --memory_fraction sets another fraction, as
XLA_PYTHON_CLIENT_MEM_FRACTION does for JAX; --memory sets the bytes for each device, which
--target=cpu needs.
"""

from __future__ import annotations

import dataclasses
import json

from absl import flags

import olla_xla.targets as targets
from hlo.backend import platform
from olla_xla.cli import document, files
from olla_xla.cli.commands import shared
from olla_xla.cli.flags import Flags
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes, percent
from olla_xla.errors import InputError, LimitError
from olla_xla.planner.warm_up import loaded
from olla_xla.problem.options import parse_bytes
from olla_xla.problem.whole_file import write_text
from olla_xla.tools.max_batch import LargestBatch, MaxBatch, max_batch
from olla_xla.tools.models import steps


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla max_batch` in `values`."""
    define = Flags(values)
    shared.define_step(values)
    shared.define_target(values, "Device into whose memory the step must fit.", "h100")
    define.whole("devices", 1, "Number of devices among which each batch is split.", least=1)
    define.text("memory", None, 'Memory of each device for the step, such as "30GiB".')
    define.real(
        "memory_fraction",
        None,
        "Fraction of a device's memory that the step may use (default: GPU 0.75, TPU 1).",
    )
    shared.define_overhead(
        values, 0.05, "Most predicted time that recomputation may add; 0: recompute nothing."
    )
    about = "Also allow scan residuals in host memory, up to this size, such as 64GiB."
    define.text("host_budget", None, about)
    shared.define_limits(values)
    shared.define_placement(values)
    define.whole("start", 8, "First batch size per device that is compiled.", least=1)
    define.whole("compiles", 6, "Largest number of compiles in the whole search.", least=5)
    shared.define_topology(values)
    define.text("out", None, "JSON file to write all results to.")
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Searches for the largest batch by XLA alone, planned, ...; prints a table. Returns 0.
    Raises InputError if a flag is missing or wrong, LimitError if a limit is out of range.
    """
    files.check_writable(values.out)
    # Whether time may be added is decided batch by batch; here its range is checked.
    options = dataclasses.replace(shared.options(values), max_overhead=None)
    if values.model is None:
        raise InputError("give --model=NAME; see olla_xla max_batch --help")
    targets.prepare_environment(values.target)
    memory, what = _memory(values)
    with Progress() as progress:
        progress.stage("loading JAX, the model and the planner")
        target = targets.target(values.target, values.devices, values.topology)
        make = steps(values.model, values.optimizer, target)
        loaded()
        largest = max_batch(
            make,
            memory,
            max_overhead=values.max_overhead,
            multiple_of=values.devices,
            start=values.start * values.devices,
            compiles=values.compiles,
            options=options,
            progress=progress.stage,
            host_budget=values.host_budget,
        )
    devices = f" x {values.devices}" if values.devices > 1 else ""
    title = f"{values.model}, {values.optimizer}, {values.target}{devices}: {what}"
    document.add(**dataclasses.asdict(largest))
    shared.print_table(values, batch_table(largest, title))
    print(batch_verdict(largest, values.compiles, values.devices))
    if values.out is not None:
        write_text(values.out, json.dumps(dataclasses.asdict(largest)) + "\n")
    return 0


def _memory(values: flags.FlagValues) -> tuple[int, str]:
    """Returns (bytes that a step may use on each device, the same in words for a table's title).
    Raises InputError if a CPU's are not given, LimitError for a fraction out of range.
    """
    if values.memory is not None:
        size = parse_bytes(values.memory, "--memory")
        return size, f"the step may use {size / 2**20:,.1f} MB"
    backend = platform(targets.TARGETS[values.target])
    if backend.is_host:
        raise InputError("for target=cpu, give the memory that a step may use: --memory=4GiB")
    fraction = backend.memory_part if values.memory_fraction is None else values.memory_fraction
    if not 0 < fraction <= 1:
        raise LimitError(f"--memory_fraction={fraction} must be above 0 and at most 1")
    card = targets.card(values.target)
    size = int(fraction * card.memory_bytes)
    return size, f"the step may use {size / 2**20:,.1f} MB, {fraction:.0%} of the device's memory"


_NAMES = {"xla": "XLA alone", "planned": "planned", "recomputed": "with recomputation"}
_NAMES["spilled"] = "with host memory"


def batch_table(found: MaxBatch, title: str) -> Table:
    """Returns a table of the largest batches by XLA alone, planned, ..., and their totals in MB."""
    host = ["host MB"] if found.spilled else []
    rows = [
        (
            _NAMES[way.way],
            f"{way.batch:,}",
            f"{way.batch / found.xla.batch:.2f} x" if found.xla.batch else "-",
            megabytes(way.bytes) if way.batch else "-",
            *[megabytes(way.host_bytes)] * len(host),
            f"{percent(way.overhead, 1)} %" if way.batch else "-",
            f"{way.next_batch:,}" if way.next_batch else "-",
            _beside(way.next_bytes, found.memory_bytes) if way.next_batch else "-",
            _how(way),
        )
        for way in _ways(found)
    ]
    headings = ("way:", "batch", "of XLA's", "MB", *host, "added time")
    return Table((*headings, "next", "MB ", "of the next:"), rows, title)


def _beside(size: int, memory: int) -> str:
    """A size as text in MB, with enough decimals (1 to 6) to differ from the text of `memory`."""
    digits = next((d for d in range(1, 6) if megabytes(size, d) != megabytes(memory, d)), 6)
    return megabytes(size, digits)


def _how(way: LargestBatch) -> str:
    if way.reason:
        return "the same as in the row above"
    if not way.next_batch:
        return "not compiled"
    return "predicted, the least found" if way.next_is_predicted else "assigned"


def batch_verdict(found: MaxBatch, compiles: int = 6, devices: int = 1) -> str:
    """Returns lines to print below the table of largest batches.
    They say which ways to compile failed and why, between which sizes an answer lies, and how many
    compiles and seconds the search took. `compiles`: how many it was allowed. `devices`: how many
    share the batch.
    """
    lines = [f"{_NAMES[way.way]}: {way.reason}." for way in _ways(found) if way.reason]
    open_ways = [way for way in _ways(found) if not way.is_largest]
    lines += [f"{_NAMES[way.way]}: {_between(way, devices)}." for way in open_ways]
    if open_ways:
        start = max(open_ways[0].batch // devices, 1)
        lines.append(f"More compiles narrow the range: --start={start} --compiles={2 * compiles}.")
    refusals = f", {found.refusals} more that XLA refused," if found.refusals else ""
    lines.append(
        "XLA's buffer assignment says how much memory each batch takes; nothing was run. "
        f"The search took {found.compiles} compiles{refusals} and {found.seconds:,.0f} s."
    )
    return "\n".join(lines)


def _between(way: LargestBatch, devices: int) -> str:
    if not way.next_batch:
        if way.expected <= way.batch:
            return f"{way.batch:,} fits; a linear fit of the totals predicts no larger batch"
        return f"at least {way.batch:,}; a linear fit of the totals predicts {way.expected:,}"
    most = f"between {way.batch:,} and {way.next_batch - devices:,}"
    return most if way.reason else f"{most}; a linear fit of the totals predicts {way.expected:,}"


def _ways(found: MaxBatch) -> list[LargestBatch]:
    return list(filter(None, (found.xla, found.planned, found.recomputed, found.spilled)))
