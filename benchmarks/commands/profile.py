"""Records NumPy loops, plans their memory from the first iteration, and replays the others.

Prints the peak of live bytes, what a caching allocator reserves, the planned arena, how often it
was repacked, and the time of a request. With --trace a recording is replayed instead, as
--record writes it: a CSV of iteration,profile,request,bytes, with -1 bytes where a request is
released; or, where the name ends in .json, a trace that PyTorch's profiler wrote of a loop on a
CPU, which --record makes such a CSV of.
"""

from __future__ import annotations

from absl import flags

from benchmarks.driver import Column, Flags, count, fixed, table_of, write_json
from benchmarks.papers.profile_replay import profiles as bench
from benchmarks.papers.recordings.recording import Recording, read_recording, write_recording
from benchmarks.papers.recordings.torch_trace import read_torch_trace
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError

_MB = fixed(2, 2.0**-20)
_MICROSECONDS = fixed(2, 1e6)
_COLUMNS = (
    Column("loop:", "loop"),
    Column("iterations", "iterations"),
    Column("requests", "requests", count),
    Column("live", "live_bytes", _MB),
    Column("caching", "caching_bytes", _MB),
    Column("arena", "arena_bytes", _MB),
    Column("profiles", "profiles"),
    Column("replans", "replans"),
    Column("elsewhere", "elsewhere", count),
    Column("its MB", "elsewhere_bytes", _MB),
    Column("learned arena", lambda row: row.learned_bytes or None, _MB),
    Column("while learning", "learning_bytes", _MB),
    Column("learned", "learned"),
    Column("planned us", "planned_seconds", _MICROSECONDS),
    Column("of it serving", "serving_seconds", _MICROSECONDS),
    Column("learned us", "learned_seconds", _MICROSECONDS),
    Column("caching us", "caching_seconds", _MICROSECONDS),
    Column("malloc us", "malloc_seconds", fixed(3, 1e6)),
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.out()
    define.whole("seed", 0, "Of lengths and numbers.")
    define.names("trace", [], "Recordings (CSV) to replay.")
    define.text("record", None, "CSV file to write --loop to.")
    define.one_of("loop", "training, changing lengths", bench.LOOPS, "What --record records.")
    define.whole("iterations", 4, "Of what --record records.", least=1)


def run(values: flags.FlagValues) -> int:
    """Records, or measures and prints."""
    files.check_writable(values.out)  # better now than after the measurements
    if values.record is not None:
        if len(values.trace) > 1:
            raise InputError("--record takes one --trace")
        found = [_read(path) for path in values.trace] or [
            bench.record(values.loop, values.seed, values.iterations)
        ]
        write_recording(values.record, found[0])
        return 0
    rows = []
    with Progress() as progress:
        if values.trace:
            rows = [bench.replayed(_read(path)) for path in values.trace]
        for name in () if values.trace else bench.LOOPS:
            progress.stage(name)
            rows.append(bench.measure(name, values.seed))
    title = "MB of 2^20 bytes; planned and caching allocator run in Python, malloc does not"
    table_of(rows, _COLUMNS, title).print(shared.console())
    write_json(values.out, rows)
    return 0


def _read(path: str) -> Recording:
    """A recording, or a trace of PyTorch's; says what of that is left out."""
    if not path.endswith(".json"):
        return read_recording(path)
    trace = read_torch_trace(path)
    if trace.kept:
        shared.console().print(
            f"{path}: {trace.kept:,} requests, {trace.kept_bytes:,} bytes, were not released in "
            "their iteration and are left out",
            markup=False,
            soft_wrap=True,
        )
    return trace.recording
