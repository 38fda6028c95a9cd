"""Draws and checks a share of many random programs, and shrinks those that fail.

A program depends only on the seed, the share and its place in the share. So another process can go
on where one was killed, and a program that failed can be drawn again to shrink it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis.errors import Flaky

from benchmarks.random_programs import check, strategies
from benchmarks.random_programs.spec import Case
from benchmarks.random_programs.text import to_text

_FORGET_EVERY = 30  # programs; executables pile up, but what JAX has traced of its own serves again


_CHECKS: Any = tuple(hypothesis.HealthCheck)


@dataclasses.dataclass(frozen=True)
class Share:
    """Some of the programs of a run.

    Attributes:
      seed: of the run. number: of the share. count: of programs. plans: of each program.
      skip: how many of its programs another process has done.
      shrink_seconds: most time to shrink one failure. shrinks: how many failures are shrunk.
      timed: some plans are limited by time; without, all are the same every time.
      scans: only programs that loop over layers, time or rows. target: as for `Case`.
    """

    seed: int
    number: int
    count: int
    plans: int = 2
    skip: int = 0
    shrink_seconds: float = 120.0
    shrinks: int = 2
    timed: bool = True
    scans: bool = False
    target: str = "cpu"


def run_share(share: Share, say: Callable[[dict[str, Any]], None]) -> None:
    """Checks all programs of a share.

    Args:
      share: which.
      say: is told of each program before (`start`) and after it ran (`row`), and of each failure
        that was shrunk (`failure`).
    """
    shrunk = 0
    for place in range(share.skip, share.count):
        case = drawn(share, place)
        head = {"share": share.number, "place": place}
        head |= {"kind": case.program.kind, "case": to_text(case)}
        say({"start": head})
        outcomes = check.check_case(case)
        say({"row": {**head, "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes]}})
        failed = [k for k, outcome in enumerate(outcomes) if outcome.kind in check.FAILURES]
        if failed and shrunk < share.shrinks:
            shrunk += 1
            small, last = smallest(share, place, failed[0], outcomes[failed[0]])
            text = {"case": to_text(small), "program": small.program.kind}
            say(
                {
                    "failure": {"kind": last.kind, "reason": last.reason, "share": share.number}
                    | text
                }
            )
        if place % _FORGET_EVERY == 0:
            check.forget()


def drawn(share: Share, place: int) -> Case:
    """A program of a share, by its place in it."""
    found: list[Case] = []
    _draw(share, place, found.append)
    return found[-1]


def smallest(
    share: Share, place: int, number: int, outcome: check.Outcome
) -> tuple[Case, check.Outcome]:
    """The smallest program found that fails alike.

    Args:
      share: that drew the program. place: of the program in it.
      number: of the plan that failed. outcome: of that plan.
    """
    until = time.monotonic() + share.shrink_seconds
    case = drawn(share, place)
    found = (_with_plan(case, number), outcome)
    known: dict[str, check.Outcome] = {to_text(found[0]): outcome}
    armed = False

    def visit(candidate: Case) -> None:
        nonlocal armed, found
        armed = armed or candidate == case
        if not armed:
            return
        one = _with_plan(candidate, number)
        text = to_text(one)
        if text not in known:
            if time.monotonic() > until:
                return
            known[text] = check.check_case(one)[0]
        if known[text].kind == outcome.kind:
            if len(text) < len(to_text(found[0])):
                found = (one, known[text])
            raise _Found

    # What depends on the clock may fail once and not again, which hypothesis calls flaky.
    with contextlib.suppress(_Found, Flaky):
        _draw(share, place, visit, hypothesis.Phase.shrink)
    return found


def _with_plan(case: Case, number: int) -> Case:
    return dataclasses.replace(case, plans=case.plans[number : number + 1])


class _Found(Exception):
    """Raised when a smaller program fails in the same way as the one that is shrunk."""


def _draw(
    share: Share, place: int, visit: Callable[[Case], None], *phases: hypothesis.Phase
) -> None:
    """Shows `visit` the simplest program and then the one of this place, the same every time."""

    @hypothesis.seed((share.seed * 100_003 + share.number) * 100_003 + place)
    @hypothesis.settings(
        max_examples=2,
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=_CHECKS,
        phases=(hypothesis.Phase.generate, *phases),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(strategies.cases(share.plans, share.timed, share.scans))
    def each(case: Case) -> None:
        visit(dataclasses.replace(case, target=share.target))

    run: Callable[[], None] = each
    run()


def main(request: str) -> None:
    """Runs the share of a request; prints a line of JSON for each event, and one at the end."""
    faulthandler.enable()
    out = sys.stdout
    sys.stdout = sys.stderr  # What else prints must not stand between the lines.

    def say(event: dict[str, Any]) -> None:
        print(json.dumps(event), file=out, flush=True)

    gc.freeze()  # What is imported stays; it need not be looked through again and again.
    run_share(Share(**json.loads(request)), say)
    say({"end": True})


if __name__ == "__main__":
    main(sys.argv[1])
