"""Random functions cut by `olla_xla.fission`, values and gradients compared with jax.jit's.

Of --count each row is worked on by itself: all must be cut. Of --mixing something mixes the rows:
each is cut elsewhere with the same results, or refused by a line that names the operation. Exit
code 1 if a result is off by more than sums in another order may be, or a refusal is none of these.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import time

from absl import flags

from benchmarks.driver import Flags
from benchmarks.fission import programs as bench
from benchmarks.growing_file import GrowingFile
from olla_xla import targets
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress

_GOOD = ("cut", "refused")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.whole("count", 500, "Functions without what mixes rows.", least=0)
    define.whole("mixing", 200, "Functions with one operation that does.", least=0)
    define.whole("seed", 0, "Of the functions.")
    define.text("out", None, "File of rows (JSON lines) to write.")


def run(values: flags.FlagValues) -> int:
    """Runs all of them and prints what came of them."""
    targets.prepare_environment("cpu")
    file = GrowingFile(values.out)
    found: collections.Counter[tuple[bool, str]] = collections.Counter()
    started, bad = time.monotonic(), []
    with Progress() as progress:
        for program in bench.programs(values.count, values.mixing, values.seed):
            outcome, reason = bench.check(program)
            found[program.mixes, outcome] += 1
            row = {**dataclasses.asdict(program), "outcome": outcome, "reason": reason}
            file.add(json.dumps(row))
            if outcome not in _GOOD:
                bad.append(row)
                progress.stage(json.dumps(row))
            progress(f"{found.total():,} functions, {len(bad)} failed")
    console = shared.console()
    for mixes, what in ((False, "rows by themselves"), (True, "rows mixed")):
        outcomes = ", ".join(f"{n:,} {o}" for (m, o), n in sorted(found.items()) if m == mixes)
        console.print(f"{what}: {outcomes or 'none'}", markup=False)
    print(f"{found.total():,} functions in {time.monotonic() - started:.0f} s")
    return 1 if bad else 0
