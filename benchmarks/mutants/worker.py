"""A process that judges the mutants of one step and says each stage on a line of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.mutants.audited import AuditedSubject
from benchmarks.mutants.cases import CASES
from benchmarks.mutants.subject import Subject


def main(request: str) -> None:
    """Judges what a request asks for; every line printed is a JSON object.

    Args:
      request: JSON of {"case", "audit": whether the audit is to judge, "seed", "kinds", "skip",
        "count", "planned": file to keep the planned module in}.
    """
    given = json.loads(request)
    kept = Path(given["planned"])
    kernels, known = kept.with_suffix(".json"), None
    if kernels.exists():
        known = kept.read_bytes(), kernels.read_text()
    subject = (AuditedSubject if given["audit"] else Subject)(CASES[given["case"]], known)
    kept.write_bytes(subject.planned)
    kernels.write_text(subject.kernels)
    say({"stage": "ready"})
    if given["skip"] == 0:
        for row in subject.unmutated():
            say({"stage": "unmutated", **row})
    taken = subject.take(given["seed"], tuple(given["kinds"]), given["skip"], given["count"])
    for kind, number, text, data in taken:
        say({"stage": "begun", "kind": kind, "number": number, "description": text})
        for stage in subject.judged((kind, number, text, data)):
            say(stage)
    say({"stage": "done"})


def say(row: dict[str, object]) -> None:
    """Prints a line and flushes it, so that it is known if the process ends."""
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
