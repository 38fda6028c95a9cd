"""Starts and watches jobs of several processes, and judges the outcome of each case."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.together.cases import Case

_WORKER = "benchmarks.together.worker"
_START_SECONDS, _CASE_SECONDS = 120.0, 60.0
"""A job that takes longer than this, and as much for each case, hangs and is killed."""
_LOST = 3.0
"""Patiences that a case may take: one for each of those that wait one after the other."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One case of one job.

    Attributes:
      case: its name. processes: how many took part.
      planned: how many run the plan; all, or none.
      wrong: what is not as it has to be, or "".
      message: what they were told.
      xla_bytes, bytes: XLA's total for its own order and for the one that runs, per device; 0
        where it is not known.
      searches: how many processes searched.
      seconds: that the slowest took.
    """

    case: str
    processes: int
    planned: int
    wrong: str
    message: str
    xla_bytes: int
    bytes: int
    searches: int
    seconds: float


def run_cases(
    cases: Mapping[str, Case], processes: int, runs: int, patience: float, options: dict[str, Any]
) -> Iterator[Row]:
    """Runs each case some times, as many in one job as can be: a job ends with one that kills.

    Args:
      cases: by name. processes: of each job. runs: of each case.
      patience: seconds that processes wait for each other.
      options: of `olla_xla.plan`.
    """
    calm = [name for name, case in cases.items() if not case.kills] * runs
    deadly = [name for name, case in cases.items() if case.kills] * runs
    for names in [calm + deadly[:1], *([name] for name in deadly[1:])]:
        yield from _job(names, [cases[name] for name in names], processes, patience, options)


def _job(
    names: Sequence[str],
    cases: Sequence[Case],
    count: int,
    patience: float,
    options: dict[str, Any],
) -> Iterator[Row]:
    limit = _START_SECONDS + len(cases) * (_CASE_SECONDS + _LOST * patience)
    lines, errors, hung = _run(cases, count, patience, options, limit)
    for k, (name, case) in enumerate(zip(names, cases, strict=True)):
        found = [own[k] for own in lines if k < len(own)]
        yield _row(name, case, count, found, "it hung" if hung else "", errors)


def _run(
    cases: Sequence[Case], count: int, patience: float, options: dict[str, Any], limit: float
) -> tuple[list[list[dict[str, Any]]], str, bool]:
    """What each process printed, what they wrote to stderr, and whether they had to be killed."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        address = f"localhost:{found.getsockname()[1]}"
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment |= {"OLLA_XLA_PATIENCE": str(patience), "JAX_PLATFORMS": "cpu"}
    processes = []
    for me in range(count):
        troubles = [c.troubles.get(me, c.troubles.get(me - count, "")) for c in cases]
        own = [(k, t, c.kills) for k, (t, c) in enumerate(zip(troubles, cases, strict=True))]
        about = {"me": me, "count": count, "address": address, "cases": own, "options": options}
        command = [sys.executable, "-m", _WORKER, json.dumps(about)]
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe)
        )
    lines, errors, hung, end = [], [], False, time.monotonic() + limit
    for process in processes:
        try:
            out, error = process.communicate(timeout=max(end - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            hung = True
            for other in processes:
                other.kill()
            out, error = process.communicate()
        lines.append([json.loads(line) for line in out.splitlines() if line.startswith("{")])
        errors.append(error)
    return lines, "\n".join(errors), hung


def _row(
    name: str, case: Case, count: int, found: Sequence[dict[str, Any]], trouble: str, errors: str
) -> Row:
    planned = sum(f["planned"] for f in found)
    reasons = sorted({f["reason"] for f in found if f["reason"]})
    return Row(
        case=name,
        processes=count,
        planned=planned,
        wrong=trouble or _wrong(case, count, found, reasons, errors),
        message="; ".join(reasons),
        xla_bytes=max((f["xla_bytes"] or 0 for f in found), default=0),
        bytes=max((f["bytes"] or 0 for f in found), default=0),
        searches=sum(f["searches"] for f in found),
        seconds=max((f["seconds"] for f in found), default=0.0),
    )


def _wrong(
    case: Case, count: int, found: Sequence[dict[str, Any]], reasons: Sequence[str], errors: str
) -> str:
    """What differs from the outcome that the case must have, or ""."""
    leader_died = case.kills and 0 in case.troubles
    if len(found) < count - case.kills and not leader_died:  # JAX ends all with its first process
        return f"{count - len(found)} processes ended: {errors.strip()[:400]}"
    if any(f["planned"] != case.planned for f in found):
        return f"planned in {sum(f['planned'] for f in found)} of {len(found)}"
    if len({f["order"] for f in found}) > 1 and "program" not in case.troubles.values():
        return "they run different orders"
    if found and case.message not in "; ".join(reasons):
        return f"the message is {reasons}"
    if len(reasons) > 1:
        return f"they give different reasons: {reasons}"
    if not case.kills and not all(f["same"] for f in found):
        return "results differ from jit's"
    if any(f.get("again", f["planned"]) != f["planned"] for f in found):
        return "what was agreed did not last"
    if not all(f.get("given", True) for f in found):
        return "a plan that was given is not used"
    if case.planned and any(f["bytes"] >= f["xla_bytes"] for f in found):
        return "no bytes are saved"
    if case.planned and sum(f["searches"] for f in found) > 1:
        return "more than one process searched"
    return ""
