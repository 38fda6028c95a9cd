"""Tables of plain text: nothing is broken within a token, and nothing is wider than the screen."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.analysis.text_table import text_table, wrapped

pytestmark = pytest.mark.quick

HEADINGS = ("MB", "category:", "what:")
ROWS = [("0.18", "optimizer state", "state['opt_state'][0].mu['Dense_0']['kernel']")]


def test_as_wide_as_it_is():
    assert text_table(HEADINGS, ROWS).splitlines() == [
        "  MB  category         what",
        "----  ---------------  ---------------------------------------------",
        "0.18  optimizer state  state['opt_state'][0].mu['Dense_0']['kernel']",
    ]


def test_paths_are_broken_between_their_parts():
    assert text_table(HEADINGS, ROWS, 50).splitlines()[2:] == [
        "0.18  optimizer state  state['opt_state'][0].mu",
        "                       ['Dense_0']['kernel']",
    ]


def test_columns_that_do_not_fit_stand_below():
    rows = [("mlp, 4, adam", *["1,234.5"] * 6)]
    text = text_table(("step:", *(f"total {k}" for k in range(6))), rows, 40)
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("1,234.5") == 6 and text.count("step") == text.count("\n\n") + 1


def test_no_heading_no_line_below_it():
    assert text_table((":", ""), [("a", "1"), ("b", "22")]) == "a   1\nb  22"


def test_titles_are_broken_between_words():
    assert wrapped("15 largest of 46 tensors", 12) == "15 largest\nof 46\ntensors"
    assert wrapped("15 largest of 46 tensors", None) == "15 largest of 46 tensors"


WORDS = st.text("abc/.[],' ", max_size=30).map(str.strip)


@given(st.lists(st.tuples(WORDS, WORDS, st.integers(0, 10**9).map("{:,}".format)), max_size=5))
def test_every_character_is_there_once(rows):
    for width in (None, 24, 60):
        text = text_table(("what:", "why:", "bytes"), rows, width)
        for cell in (cell for row in rows for cell in row[1:]):
            assert all(c in text for c in cell)
        assert not re.search(" $", text, re.MULTILINE)
        if width is None:
            assert len(text.splitlines()) == len(rows) + 2


@given(st.lists(st.tuples(st.sampled_from(["a/b/c", "x['y']['z']"]), WORDS), min_size=1))
def test_nothing_is_wider_than_a_screen_that_holds_its_pieces(rows):
    short = [(path, why.replace("/", " ")[:20]) for path, why in rows]
    pieces = max(len(word) for _, why in short for word in [*why.split(), "what", "why"])
    width = max(pieces, 4) + 4 + 2 + 5
    text = text_table(("what:", "why:"), short, width)
    assert max(map(len, text.splitlines())) <= width
