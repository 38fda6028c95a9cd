"""`olla_xla.report()`: a row for each signature, and one line of log for each plan."""

import dataclasses
import logging
import os
import re
import subprocess
import sys

import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla.compile import events as module
from olla_xla.compile.plan_event import PlanEvent
from olla_xla.tools.report import Report

EVENT = PlanEvent(
    function="train_step",
    planned=True,
    reason="",
    fell_back=False,
    bytes=10 * 2**20,
    xla_bytes=20 * 2**20,
    lower_bound_bytes=9 * 2**20,
    overhead=0.013,
    seconds=2.5,
    search_seconds=1.0,
    processes=1,
)
KEPT = dataclasses.replace(
    EVENT, function="f", planned=False, reason="no order found beats XLA's", bytes=20 * 2**20
)
FAILED = dataclasses.replace(KEPT, bytes=None, xla_bytes=None, overhead=None, reason="a fault")


def test_one_line_a_plan():
    assert str(EVENT) == (
        "train_step: 20.0 -> 10.0 MB (-50.0 %), +1.3 % predicted time; "
        "planned and compiled in 2.5 s"
    )
    assert str(KEPT) == (
        "f: 20.0 MB, XLA's own schedule: no order found beats XLA's; planned and compiled in 2.5 s"
    )
    assert str(FAILED) == "f: XLA's own schedule: a fault; planned and compiled in 2.5 s"


def test_refused_choices_are_told():
    event = dataclasses.replace(EVENT, proposed=5, refused=3)
    assert str(event).endswith("; 3 of 5 choices refused by the check")
    lines = repr(Report((EVENT, event, dataclasses.replace(KEPT, proposed=2)))).splitlines()
    assert "3 of 7 choices refused by the check" in lines
    assert "refused" not in repr(Report((EVENT, KEPT)))


def test_the_table():
    lines = repr(Report((FAILED, KEPT, EVENT))).splitlines()
    assert lines[0].split() == "function XLA, MB planned less % time +% seconds".split()
    assert lines[2].split() == ["train_step", "20.0", "10.0", "50.0", "1.3", "2.5"]
    assert lines[5].startswith("1 of 3 signatures of 2 functions use a plan; ")
    assert "not planned, 1: a fault" in lines


@pytest.mark.parametrize("count", [1, 40, 41, 500])
def test_it_fits_80_columns_and_a_screen(count):
    events = [dataclasses.replace(EVENT, function="long" * 30, bytes=k) for k in range(count)]
    lines = repr(Report(tuple(events))).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) <= 45
    assert ("and 1 more" in lines) == (count == 41)
    assert "<pre>" in Report(tuple(events))._repr_html_()


def test_what_is_planned_is_in_it(caplog):
    @olla_xla.plan(time_limit=1)
    def reported_step(w, x):
        return jnp.tanh(x @ w).sum()

    with caplog.at_level(logging.INFO, "olla_xla"):
        reported_step(jnp.ones((64, 64)), jnp.ones((8, 64)))
    assert olla_xla.report().events[-1].function == "reported_step"
    assert len([r for r in caplog.records if r.message.startswith("reported_step: ")]) == 1


def test_no_more_than_a_thousand_are_kept(monkeypatch):
    monkeypatch.setattr(module, "_events", type(module._events)(maxlen=module._KEPT))
    for _ in range(module._KEPT + 5):
        module.tell(EVENT)
    assert len(module.recent_events()) == module._KEPT


def test_at_the_end_of_a_program_once():
    code = (
        "import jax.numpy as jnp, olla_xla\n"
        "for _ in range(2):\n"
        "    olla_xla.plan(lambda x: jnp.sin(x).sum())(jnp.ones(4))\n"
        "print('done')\n"
    )
    environment = {**os.environ, "OLLA_XLA_REPORT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "done\n"
    assert len(re.findall("2 of 2|0 of 2 signatures", done.stderr)) == 1
