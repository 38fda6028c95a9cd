"""Random functions with an axis that can be cut, and with one that mixes."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.fission import programs as bench

ROW_BY_ROW = st.sampled_from(sorted(bench.ROW_BY_ROW))
HOW = st.integers(2, bench.ROWS), st.booleans(), st.booleans(), st.integers(0, 9)


@settings(max_examples=8, deadline=None)
@given(st.lists(ROW_BY_ROW, min_size=1, max_size=4), *HOW)
def test_rows_are_cut(names, pieces, is_given, inside, seed):
    program = bench.Program(tuple(names), pieces, is_given, inside, seed)
    assert bench.check(program) == ("cut", "")


@settings(max_examples=8, deadline=None)
@given(
    st.lists(ROW_BY_ROW, max_size=2),
    st.sampled_from(sorted(bench.MIXING)),
    st.lists(ROW_BY_ROW, max_size=2),
    *HOW,
)
def test_what_mixes_rows_is_never_cut(before, mixing, after, pieces, is_given, inside, seed):
    names = (*before, f"mixing {mixing}", *after)
    outcome, reason = bench.check(bench.Program(names, pieces, is_given, inside, seed))
    assert outcome in ("cut", "refused"), reason


def test_a_wrong_cut_would_be_seen(monkeypatch):
    """The comparison itself: rows that are mixed behind fission's back."""
    program = bench.Program(("tanh",), 2, True, False, 0)
    calls = []

    def tanh(x, w):
        calls.append(x.shape)
        return x + len(calls)

    monkeypatch.setitem(bench.ROW_BY_ROW, "tanh", tanh)
    assert bench.check(program)[0] == "wrong"


def test_the_command_counts_what_came_of_them(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    code = main(["", "fission_programs", "--count=1", "--mixing=1", "--seed=3", f"--out={out}"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["outcome"] in ("cut", "refused") for row in rows] == [True, True]
    assert code == 0
    assert "rows by themselves: 1 cut" in capsys.readouterr().out
