"""Feature-map memory of deep ResNets and long LSTMs, and the step time of sublinear training.

Memory is counted on the unfused graph: every tensor its own, operators in place, memory shared,
both, what is cheap recomputed, and recomputing in segments. Step time is that of real runs, of
smaller networks. Exit code 1 if a figure misses what is expected: sharing at least 2 times under
none, on the LSTM sublinear at least 4 times under sharing, the ResNet of 1,000 layers as far under
sharing as the paper's, step time within 1.3 times.
"""

from __future__ import annotations

from absl import flags

from benchmarks.driver import (
    Column,
    Flags,
    count,
    fixed,
    known,
    table_of,
    whole_numbers,
    write_json,
)
from benchmarks.papers import sublinear_training as bench
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import megabytes


def _bytes(what: str, digits: int = 1) -> Column:
    """A column of MB whose heading names the field, as "in place" `in_place_bytes`."""
    field = f"{what.replace(' ', '_')}_bytes"
    return Column(what, lambda row: megabytes(getattr(row, field), digits))


_MEMORY = (
    Column("network:", "network"),
    Column("size", "size", count),
    *(_bytes(what, 0) for what in ("none", "in place", "sharing", "both")),
    Column("cheap dropped", lambda row: megabytes(row.cheap_bytes, 0)),
    _bytes("sublinear", 0),
    Column("exact budget", lambda row: megabytes(row.exact_bytes, 0)),
    _bytes("recursive", 0),
    Column("none / sharing", lambda row: row.none_bytes / row.sharing_bytes, fixed(2)),
    Column("sharing / least", lambda row: row.sharing_bytes / row.least_bytes, fixed(2)),
    Column("s", "seconds", fixed(0)),
)
_TIME = (
    Column("network:", "network"),
    Column("size", "size", count),
    Column("plain s", "plain_seconds", fixed(3)),
    Column("sublinear s", "sublinear_seconds", fixed(3)),
    Column("ratio", "ratio", fixed(3)),
    *(_bytes(f"{way} {what}") for what in ("temp", "total") for way in ("plain", "sublinear")),
    Column("largest difference", lambda row: f"{row.largest_difference:.1e}"),
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.out()
    define.names("depths", "128,256,512,1024", "Layers of the ResNets.")
    define.names("steps", "64,128,256,512,1024,2048", "Steps of the LSTMs.")
    define.switch("exact", True, "Whether to count every budget, three times as long.")
    define.switch("recursive", False, "Whether to count segments of segments too, O(log n).")
    define.names("timed", list(bench.TIMED), "Networks whose step is timed.")
    define.whole("turns", 7, "Runs of each timed network; 0: none is timed.", least=0)


def run(values: flags.FlagValues) -> int:
    """Measures, prints both tables and writes the file."""
    depths = whole_numbers("depths", values.depths)
    steps = whole_numbers("steps", values.steps)
    timed = known("timed", values.timed, bench.TIMED)
    files.check_writable(values.out)  # better now than after the measurements
    targets.prepare_environment("cpu")

    networks = [*map(bench.resnet, depths), *map(bench.lstm, steps)]
    memory, times = [], []
    with Progress() as progress:
        for network in networks:
            progress.stage(f"memory of {network.name} {network.size}")
            memory.append(
                bench.measure_memory(network, exact=values.exact, recursive=values.recursive)
            )
        for name in timed if values.turns else ():
            network = bench.TIMED[name]()
            progress.stage(f"time of {network.name} {network.size}")
            times.append(bench.measure_time(network, values.turns))
    console = shared.console()
    if memory:
        table_of(memory, _MEMORY, "feature maps on the unfused graph, MB of 2^20 bytes").print(
            console
        )
    if times:
        title = "gradient on this machine's CPU; temp: XLA's temporaries, MB of 2^20 bytes"
        table_of(times, _TIME, title).print(console)
    misses = bench.misses(memory, times)
    for line in misses:
        console.print(line, markup=False, soft_wrap=True)
    write_json(values.out, {"memory": memory, "time": times})
    return 1 if misses else 0
