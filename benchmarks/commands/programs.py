"""Plans random train steps in random ways and compares each with jax.jit, bit for bit.

For a --target that is not a CPU they are compiled and checked, and not run. What fails is shrunk;
with --failures the smallest programs are kept, and --again runs one again.
Exit code 1 if a result is wrong, a check rejects what the planner made, a total is larger than
jit's, or a plan fails without a reason that names a limit.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.driver import Flags
from benchmarks.growing_file import GrowingFile, earlier_rows
from benchmarks.random_programs.check import FAILURES, check_case
from benchmarks.random_programs.processes import run as run_shares
from benchmarks.random_programs.processes import shares
from benchmarks.random_programs.sharded import with_devices
from benchmarks.random_programs.spec import Case
from benchmarks.random_programs.text import from_text
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, percent
from olla_xla.errors import InputError
from olla_xla.problem.whole_file import write_text


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.whole("count", 3000, "Programs.", least=1)
    about = "Plans of each program; 0: every choice of scan residuals is checked, none is planned."
    define.whole("plans", 2, about, least=0)
    define.whole("seed", 0, "Of the programs and their plans.")
    define.text("target", "cpu", "Device; for another than a CPU programs are compiled, not run.")
    define.switch("scans", False, "Only programs that loop over layers or time.")
    define.whole("workers", 2, "Processes at a time.", least=1)
    define.real("shrink_seconds", 120.0, "To shrink one failure.", least=0.0)
    define.text("out", None, "File of rows (JSON lines) to write.")
    define.switch("resume", False, "Go on where the rows in --out end.")
    define.text("failures", None, "Folder for what failed.")
    define.text("again", None, "File of a failure to run again.")


def run(values: flags.FlagValues) -> int:
    """Runs all programs, or one again, and prints what came of them."""
    if values.again is not None:
        return _again(values.again)
    if importlib.util.find_spec("hypothesis") is None:
        raise InputError("random programs are drawn by hypothesis; pip install hypothesis")
    files.check_writable(values.out)
    folder = values.failures
    if folder is not None and not Path(folder).absolute().parent.is_dir():
        raise InputError(f"cannot write {folder}: there is no such folder")
    return _many(values)


def _many(values: flags.FlagValues) -> int:
    tallies: dict[str, Tally] = {}
    lost, started = 0, time.monotonic()
    known = earlier_rows(values.out, _rows) if values.resume else []
    for row in known:
        tallies.setdefault(row["kind"], Tally()).add(row)
    file = GrowingFile(values.out, extend=bool(known))
    counted = collections.Counter(row["share"] for row in known)
    work = shares(values.count, values.plans, values.seed, values.shrink_seconds)
    also = {"scans": values.scans, "target": values.target}
    work = [dataclasses.replace(s, skip=counted[s.number], **also) for s in work]
    work = [share for share in work if share.skip < share.count]
    done = len(known)
    with Progress() as progress:
        for event in run_shares(work, values.workers):
            if "row" in event:
                row = event["row"]
                tallies.setdefault(row["kind"], Tally()).add(row)
                done += 1
                file.add(json.dumps(row))
                wrong = sum(tally.failures for tally in tallies.values())
                progress(f"{done:,} of {values.count:,} programs, {wrong:,} plans failed")
            elif "failure" in event:
                progress.stage(_kept(values.failures, event["failure"]))
            elif "lost" in event:
                lost += 1
                progress.stage(event["lost"])
    tally_table(tallies).print(shared.console())
    seconds = time.monotonic() - started
    now = done - len(known)
    print(
        f"{now:,} programs in {seconds:.0f} s, {60 * now / seconds:.1f} a minute; {done:,} in all"
    )
    return 1 if lost or any(tally.failures for tally in tallies.values()) else 0


def _rows(text: str) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in text.splitlines()]


def _kept(folder: str | None, failure: dict[str, Any]) -> str:
    """Writes a failure down; returns a line about it."""
    line = f"{failure['kind']}: {failure['program']}: {' '.join(failure['reason'].split())}"
    if folder is None:
        return f"{line}\n{failure['case']}"
    Path(folder).mkdir(exist_ok=True)
    name = f"{failure['kind']}-{failure['share']}"
    number = sum(path.name.startswith(f"{name}-") for path in Path(folder).iterdir())
    path = Path(folder) / f"{name}-{number}.txt"
    write_text(str(path), f"# {line}\n{failure['case']}\n")
    return f"{line}; python -m benchmarks programs --again={path}"


def _again(path: str) -> int:
    try:
        case = from_text(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if not isinstance(case, Case):
        raise InputError(f"{path} holds no program with its plans (`Case`)")
    os.environ.update(with_devices(os.environ))
    outcomes = check_case(case)
    for settings, outcome in zip(case.plans or ("every choice",), outcomes, strict=True):
        print(f"{outcome.kind}: {outcome.reason or 'planned'}; {settings}")
    return 1 if any(outcome.kind in FAILURES for outcome in outcomes) else 0


@dataclasses.dataclass
class Tally:
    """Counts of one kind of programs.

    Attributes:
      programs: how many. outcomes: plans by kind of outcome. planned: plans whose order was
        another than XLA's. unstacked: plans that recompute scan residuals. savings: parts of jit's
        total that plans saved, one each.
    """

    programs: int = 0
    planned: int = 0
    unstacked: int = 0
    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    savings: list[float] = dataclasses.field(default_factory=list)

    @property
    def plans(self) -> int:
        """How many plans."""
        return self.outcomes.total()

    @property
    def failures(self) -> int:
        """How many plans had an outcome that is a fault."""
        return sum(self.outcomes[kind] for kind in FAILURES)

    def add(self, row: dict[str, Any]) -> None:
        """Counts one program's row (`search.run_share`)."""
        self.programs += 1
        for outcome in row["outcomes"]:
            self.outcomes[outcome["kind"]] += 1
            self.planned += outcome["planned"]
            self.unstacked += outcome.get("stacks", 0) > 0
            if outcome["kind"] in ("identical", "compiled") and outcome["xla_bytes"]:
                self.savings.append(1 - outcome["bytes"] / outcome["xla_bytes"])


_COLUMNS = (
    *("identical", "compiled", "wrong", "refused", "larger", "failed", "crashed"),
    *("budget", "unsteady", "invalid"),
)


def tally_table(tallies: dict[str, Tally]) -> Table:
    """A line for each kind, and one for all."""
    total = Tally()
    for tally in tallies.values():
        total.programs += tally.programs
        total.planned += tally.planned
        total.unstacked += tally.unstacked
        total.outcomes += tally.outcomes
        total.savings += tally.savings
    lines = [*sorted(tallies.items()), ("all", total)]
    return Table(
        headings=("kind:", "programs", "plans", "planned", "loops", *_COLUMNS, "saved %"),
        rows=[
            (
                kind,
                *(f"{n:,}" for n in (tally.programs, tally.plans, tally.planned, tally.unstacked)),
                *(f"{tally.outcomes[column]:,}" for column in _COLUMNS),
                percent(sum(tally.savings) / len(tally.savings) if tally.savings else None, 1),
            )
            for kind, tally in lines
        ],
        title="plans of random programs, two steps each against jax.jit; planned: in another "
        "order; loops: recompute residuals",
    )
