"""Places MiniMalloc's instances, the plans of real train steps, and many random blocks.

Prints seconds, heights and gaps to the bound; for plans also XLA's own fragmentation. Exit code 1
if an instance has no packing within its capacity, or a case fails. With --stored nothing is
measured: a line is printed for each plan in the part programs of files that --out wrote, with a
column for each way to place it; where a row is there twice, the last counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from absl import flags

from benchmarks import place as bench
from benchmarks.driver import Column, Flags, count, fixed, known, measured, table_of, write_json
from benchmarks.growing_file import read_text
from benchmarks.place import ProgramRow, RandomRow
from benchmarks.schedule import Case, parse_cases
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes, percent
from olla_xla.solvers.linear import Status

_PARTS = ("instances", "plans", "programs", "random")


def _percent(part: float) -> str:
    return percent(part, 3)


def _above(field: str) -> Callable[[ProgramRow], float | None]:
    """By which part a height lies above the largest live sum."""

    def value(row: ProgramRow) -> float | None:
        height = getattr(row, field)
        return None if height is None else height / row.load_bytes - 1

    return value


INSTANCES = (
    Column("instance:", "name"),
    Column("blocks", "blocks"),
    Column("capacity", "capacity", count),
    Column("height", "height", count),
    Column("seconds", "seconds", fixed(2)),
    Column("nodes", "nodes", count),
    Column("load", "load", count),
    Column("least", "least", count),
    Column("ratio", "ratio", fixed(4)),
    Column("bound", "bound", count),
    Column("seconds", "least_seconds", fixed(2)),
)
"""MiniMalloc's instances, in their own units."""

PLANS = (
    Column("case:", "case"),
    Column("blocks", "blocks", count),
    Column("plan live", lambda row: row.planned_bytes or row.live_bytes, megabytes),
    Column("live", "live_bytes", megabytes),
    Column("arena", "arena_bytes", megabytes),
    Column("frag %", "fragmentation", _percent),
    Column("to plan %", "change", _percent),
    Column("seconds", "seconds", fixed(2)),
    Column("status:", "status"),
    Column("moved", "moved", count),
    Column("XLA live", "xla_live_bytes", megabytes),
    Column("XLA heap", "xla_heap_bytes", megabytes),
    Column("XLA frag %", "xla_fragmentation", _percent),
)
"""Plans of train steps; sizes in MB."""

PROGRAMS = (
    Column("case:", "case"),
    Column("blocks", "blocks", count),
    Column("backend:", "backend"),
    Column("form:", lambda row: row.form if row.start else f"{row.form}, no start"),
    Column("live", "load_bytes", count),
    Column("above %", _above("height"), _percent),
    Column("bound %", _above("bound"), _percent),
    Column("status:", lambda row: row.status.split(" (")[0]),
    Column("by:", lambda row: row.by or None),
    Column("seconds", "seconds", fixed(2)),
    Column("CPU s", "cpu_seconds", fixed(2)),
    Column("search %", _above("search_height"), _percent),
    Column("status:", "search_status"),
    Column("seconds", "search_seconds", fixed(2)),
    Column("CPU s", "search_cpu_seconds", fixed(2)),
)
"""Plans placed by the integer program, beside the exact search; the live sum in bytes."""

_TITLES = {
    "instances": "within the capacity, then the least height reached",
    "plans": "offsets of plans; XLA's heap holds temporaries only; MB of 2^20 bytes",
    "programs": "places under the planned order by the integer program, then by the exact search "
    "alone; heights and bounds above the largest live sum (bytes)",
}


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.out()
    define.names(
        "parts",
        "instances,plans,random",
        "What to measure, of these and programs: plans placed by the paper's integer program.",
    )
    define.names("stored", None, "JSON files that --out wrote, to be printed.")
    shared.define_format(values)
    define.cases("32 by default")
    define.names("backends", "highs,cpsat", "Solvers of the part programs.")
    define.real("program_limit", 60.0, "Seconds for each integer program.", least=0.0)
    define.real("least_limit", 10.0, "Seconds to look for an instance's least height.", least=0.0)
    define.whole("blocks", 20_000, "Random blocks.", least=1)
    shared.define_limits(values)
    values.set_default("time_limit", 5.0)


def run(values: flags.FlagValues) -> int:
    """Measures and prints."""
    if values.stored is not None:
        texts = [read_text(path) for path in values.stored]
        rows = [row for text in texts for row in bench.programs_from_json(text)]
        last = {(row.case, row.backend, row.form, row.start): row for row in rows}
        shared.print_table(values, compared_table(list(last.values())))
        return 0
    options = shared.options(values)
    cases = parse_cases(values.cases) if values.cases else list(bench.PLANS)
    files.check_writable(values.out)
    parts = known("parts", values.parts, _PARTS)
    solved, plans, programs, random, failed = [], [], [], [], 0

    def placed(case: Case, progress: Progress) -> None:
        step = bench.planned_step(case, dataclasses.replace(options, time_limit=values.time_limit))
        if "plans" in parts:
            plans.append(bench.measure_plan(step, time_limit=values.time_limit))
        if "programs" in parts:
            limit = values.program_limit
            programs.extend(
                bench.measure_programs(case.name, step.problem, values.backends, time_limit=limit)
            )
        write_json(values.out, bench.as_json(solved, plans, random, programs))

    bench.warm_up()
    with Progress() as progress:
        for name, capacity, problem in bench.instances() if "instances" in parts else ():
            progress.stage(f"instance {name}")
            least = values.least_limit
            solved.append(
                bench.measure_instance(name, capacity, problem, time_limit=60, least_limit=least)
            )
    if {"plans", "programs"} & set(parts):
        targets.prepare_environment("h100")  # both targets, in one process
        _, failed = measured(cases, placed, name=lambda case: case.name)
    if "random" in parts:
        random.append(bench.measure_random(values.blocks, options.seed))
    console = shared.console()
    tables = ((solved, INSTANCES), (plans, PLANS), (programs, PROGRAMS))
    for title, (rows, columns) in zip(_TITLES.values(), tables, strict=True):
        if rows:
            table_of(rows, columns, title).print(console)
    for row in random:
        console.print(random_line(row), markup=False)
    result = bench.as_json(solved, plans, random, programs)
    console.print(summary_line(result["summary"]), markup=False)
    write_json(values.out, result)
    return 1 if failed or any(row.height is None for row in solved) else 0


def compared_table(rows: Sequence[ProgramRow]) -> Table:
    """A line for each plan, of rows stored; a column for each way to place it.

    A cell says what met the bound, and seconds (of the CPU), or how far above it the packing ended.
    """
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        found = cells.setdefault(row.case, {})
        found["blocks"] = f"{row.blocks:,}"
        best = max(r.bound or 0 for r in rows if r.case == row.case)
        found["bound above live %"] = percent(best / row.load_bytes - 1, 3)
        proven = row.status == Status.OPTIMAL
        above = None if row.height is None else percent(row.height / max(best, 1) - 1, 3)
        what = row.by if proven else f"{above} % above" if above else row.status.split(" (")[0]
        way = f"{row.backend}, {row.form}" + ("" if row.start else ", no start")
        found[way] = f"{what}; {row.seconds:.1f} ({row.cpu_seconds:.1f})"
        over = None if row.search_height is None else row.search_height / max(best, 1) - 1
        said = "met" if row.search_status == Status.OPTIMAL else f"{percent(over, 3)} % above"
        found["exact search alone"] = (
            f"{said}; {row.search_seconds:.1f} ({row.search_cpu_seconds:.1f})"
        )
    ways = list(dict.fromkeys(way for found in cells.values() for way in found))
    ways.sort(key=lambda way: way == "exact search alone")
    numbers = ("blocks", "bound above live %")
    return Table(
        headings=("case:", *(way if way in numbers else f"{way}:" for way in ways)),
        rows=[(case, *(found.get(way, "") for way in ways)) for case, found in cells.items()],
        title="what met the bound, seconds (of them CPU)",
    )


def random_line(row: RandomRow) -> str:
    """The random blocks in one line."""
    return (
        f"{row.blocks:,} random blocks: {row.height:,} bytes by {row.source}, bound {row.bound:,}, "
        f"gap {percent(row.gap)} %, {row.seconds:.1f} s"
    )


def summary_line(summary: Mapping[str, float]) -> str:
    """The summary of a benchmark, figure by figure."""
    return "; ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in summary.items())
