"""Parts of the HTML report: which steps are drawn, and the data that the script reads."""

import base64
import gzip
import json
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.analysis import html_page as page
from olla_xla.analysis.category import Category

pytestmark = pytest.mark.quick


def view(*lines):
    """The memory of a schedule: bytes at each step, by category."""
    steps = len(lines[0]) if lines else 4
    timeline = {c: np.array(line, np.int64) for c, line in zip(Category, lines, strict=False)}
    return types.SimpleNamespace(steps=steps, timeline=timeline)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 20))
def test_of_each_run_of_steps_the_largest_is_drawn(sizes, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_SAMPLES", most)
        found = page.sampled(view(sizes, sizes[::-1])).tolist()
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
