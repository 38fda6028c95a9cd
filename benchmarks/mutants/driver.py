"""Runs one worker for each step, restarts those that end early, and makes rows of their output."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.mutants.cases import CASES
from benchmarks.worker_lines import WorkerError, worker_lines

UNMUTATED = ("xla", "planned", "read back")
"""Kinds of the rows that have no fault: XLA's own module, the planned one, and that as text."""

_SECONDS = 30.0  # for one mutant, all of it
_START_SECONDS = 600.0  # for a step to be compiled and planned


@dataclasses.dataclass(frozen=True)
class Row:
    """One mutant, or an unmutated module.

    Attributes:
      case: the step. kind: of fault, or one of UNMUTATED. number: of the try.
      description: what was done.
      outcome: "same", "differs", "failed" (its run ends with an error), "crashed" (its run ends the
        process), "hung", "refused" by XLA, or "aborted" (XLA's compile ends the process).
      planned, executable: the referee's objection to the module before XLA gets it back, and to the
        executable; "" if there is none.
      error: XLA's error, or "". seconds: from making the mutant to the end of its run.
    """

    case: str
    kind: str
    number: int
    description: str
    outcome: str
    planned: str = ""
    executable: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def caught(self) -> bool:
        """Whether the referee objects."""
        return bool(self.planned or self.executable)

    @property
    def runs(self) -> bool:
        """Whether XLA made an executable of it."""
        return self.outcome not in ("refused", "aborted")

    @property
    def differs(self) -> bool:
        """Whether its outputs differ; a run that fails counts as different."""
        return self.runs and self.outcome != "same"

    @property
    def is_wrong(self) -> bool:
        """Whether a harmful mutant was missed, or the referee objects to an unmutated module."""
        if self.kind in UNMUTATED:
            return self.caught or self.differs
        return (self.differs or self.outcome == "aborted") and not self.caught


def run(
    cases: Sequence[str],
    kinds: Sequence[str],
    *,
    count: int,
    seed: int,
    workers: int = 1,
    audit: bool = False,
    row: Callable[[Row], None],
) -> list[Row]:
    """Judges `count` mutants, and each step without a fault.

    Args:
      cases, kinds: names. count: of mutants in all. seed: equal seeds give equal mutants.
      workers: processes at a time. audit: whether XLA's own executables get the faults, and the
        audit judges. row: called with each row as it is made.

    Returns:
      A row each; where a step cannot be compiled or planned, one that says so.
    """
    shares = _shares(cases, count)
    lock = threading.Lock()
    rows: list[Row] = []

    def add(found: Row) -> None:
        with lock:
            rows.append(found)
            row(found)

    with tempfile.TemporaryDirectory() as folder:
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            jobs = [
                pool.submit(_Watched(case, kinds, share, seed, Path(folder), audit, add).run)
                for case, share in zip(cases, shares, strict=True)
            ]
            for job in jobs:
                job.result()
    return rows


def _shares(cases: Sequence[str], count: int) -> list[int]:
    """How many mutants each step gets."""
    weights = [CASES[case].share for case in cases]
    ends = [round(count * sum(weights[:k]) / sum(weights)) for k in range(len(cases) + 1)]
    return [b - a for a, b in itertools.pairwise(ends)]


class _Watched:
    """The mutants of one step, by as many processes as it takes."""

    def __init__(
        self,
        case: str,
        kinds: Sequence[str],
        count: int,
        seed: int,
        folder: Path,
        audit: bool,
        add: Callable[[Row], None],
    ) -> None:
        self._case = case
        self._request: dict[str, Any] = {
            "case": case,
            "audit": audit,
            "kinds": list(kinds),
            "count": count,
            "seed": f"{seed}/{case}",
            "planned": str(folder / f"{case}.pb"),
            "skip": 0,
        }
        self._add = add

    def run(self) -> None:
        """Starts processes until all mutants are judged."""
        while not self._process():
            pass

    def _process(self) -> bool:
        """Runs one process; False if a mutant ended it, so that another process has to go on."""
        current: dict[str, Any] = {}
        ready, started, stage = False, time.monotonic(), ""
        said, hung = "its process ended", False
        module, limits = "benchmarks.mutants.worker", (_START_SECONDS, _SECONDS)
        try:
            for line in worker_lines(module, self._request, self._case, silent=limits):
                stage = line.pop("stage")
                if stage == "done":
                    return True
                if stage == "unmutated":
                    self._add(Row(self._case, number=0, description="", **line))
                elif stage == "begun":
                    current, started = line, time.monotonic()
                elif stage != "ready":
                    current |= line
                    if stage == "ran":
                        self._finish(current, started)
                        current = {}
                ready = True
        except WorkerError as error:
            said, hung = error.reason, error.hung
        if not ready or not current:
            self._add(Row(self._case, UNMUTATED[1], 0, "", "failed", error=said))
            return True
        ended = "hung" if hung else "aborted" if stage != "compiled" else "crashed"
        if ended == "aborted" and self._request["audit"]:
            ended = "refused"  # there is nothing to audit
        self._finish({**current, "outcome": ended}, started)
        return False

    def _finish(self, current: dict[str, Any], started: float) -> None:
        self._request["skip"] += 1
        self._add(Row(self._case, **current, seconds=round(time.monotonic() - started, 2)))
