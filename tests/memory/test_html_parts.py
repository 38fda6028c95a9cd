"""Parts of the HTML report: which steps are drawn, and the data that the script reads."""

import base64
import gzip
import json
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.html import page, plots

pytestmark = pytest.mark.quick


def view(*lines):
    """The memory of a schedule: bytes at each step, by category."""
    steps = len(lines[0]) if lines else 4
    timeline = {c: np.array(line, np.int64) for c, line in zip(Category, lines, strict=False)}
    return types.SimpleNamespace(steps=steps, timeline=timeline)


def test_short_schedules_are_drawn_whole():
    assert plots.sampled(view([5, 1, 9])).tolist() == [0, 1, 2]
    assert plots.sampled(view()).tolist() == [0, 1, 2, 3], "a step may take nothing at all"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 20))
def test_of_each_run_of_steps_the_largest_is_drawn(sizes, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_SAMPLES", most)
        found = plots.sampled(view(sizes, sizes[::-1])).tolist()
    total = [a + b for a, b in zip(sizes, sizes[::-1], strict=True)]
    run = next(r for r in range(1, 61) if r * most >= len(sizes))
    runs = [range(k, min(k + run, len(sizes))) for k in range(0, len(sizes), run)]
    assert len(found) == len(runs) <= most
    for step, steps in zip(found, runs, strict=True):
        assert step in steps and total[step] == max(total[k] for k in steps)
    assert max(total[k] for k in found) == max(total), "the peak is among them"


def test_data_comes_back_as_it_was():
    data = {"views": [1, 2.5, "</script>"], "texts": {"a": [None, True]}}
    text = page._packed(data)
    assert json.loads(gzip.decompress(base64.b64decode(text))) == data
    assert "<" not in text
    assert base64.b64decode(text)[4:8] == bytes(4), "no time: the same data gives the same page"


def test_rows_of_the_donation_audit():
    row = types.SimpleNamespace(path="x", type="f32[2]", bytes=8, outcome="lost", why="too small")
    audit = types.SimpleNamespace(trouble=[row])
    found = page._donation(types.SimpleNamespace(donation=audit))
    assert found == [["x", "f32[2]", 8, "lost", "too small"]]


@pytest.mark.parametrize("name", ["report.html", "report.css", "report.js"])
def test_files_are_there(name):
    assert page._file(name)


def test_every_part_of_the_page_is_filled_in():
    parts = set("TITLE CERTIFICATE CATEGORIES STYLE BOKEH ITEM DATA SCRIPT".split())
    text = page._file("report.html")
    assert all(f"@{name}@" in text for name in parts)
