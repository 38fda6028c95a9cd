"""Progress: the phase that runs, with seconds that pass; and the first plan after installation."""

import io
import logging
import re
import time

import pytest
from rich.console import Console

from olla_xla.cli.report.progress import Progress
from olla_xla.compile import loading
from olla_xla.compile.waiting import waiting
from olla_xla.memory.lifetimes import live_spans

pytestmark = pytest.mark.quick


def test_the_spinner_names_the_phase_and_its_seconds_move():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with Progress(console) as progress:
        progress.stage("tracing")
        progress.stage("planning")
        progress("round 1: 1.0 MB")
        assert "round 1: 1.0 MB" in progress.running()
        deadline = time.monotonic() + 20
        while len(seconds(screen)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert len(seconds(screen)) >= 3


def seconds(screen):
    """The different times that were drawn beside the phase."""
    return set(re.findall(r"([\d.]+) s  round 1: 1.0 MB \(\d s\)", screen.getvalue()))


def test_the_first_plan_says_that_loops_are_compiled_once(monkeypatch, caplog):
    monkeypatch.setattr(type(live_spans), "is_kept", False)
    assert loading.what() == "compiling olla_xla's inner loops (once after installation)"
    monkeypatch.setattr("olla_xla.compile.waiting._PATIENCE", 0.05)
    with caplog.at_level(logging.INFO, "olla_xla"), waiting("step", loading.what()):
        time.sleep(0.2)
    assert "compiling olla_xla's inner loops (once after installation)" in caplog.text
    monkeypatch.setattr(type(live_spans), "is_kept", True)
    assert loading.what() == "loading"
