"""CSV traces, the `place` command, recorded allocations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.profile_replay.profile import PlannedAllocator
from olla_xla.cli.commands import place as command
from olla_xla.errors import InputError
from olla_xla.place import PlacementProblem
from olla_xla.place.trace import read_trace, write_trace

GOOD = "id,lower,upper,size\na,0,2,8\nb,1,3,8\nc,2,4,8\n"


def run(*arguments):
    from absl import flags

    values = flags.FlagValues()
    command.define_flags(values)
    values(["place", *arguments])
    return command.run(values)


def test_command(tmp_path, capsys):
    (tmp_path / "in.csv").write_text(GOOD)
    out = tmp_path / "out.csv"
    assert run(f"--trace={tmp_path / 'in.csv'}", f"--out={out}") == 0
    assert "3 blocks are packed into 16 bytes" in capsys.readouterr().out
    assert out.read_text().splitlines()[0] == "id,lower,upper,size,offset"
    # What was written is a trace again, its blocks pinned to where they lie.
    again = read_trace(out)
    assert again.fixed.max() == 8
    assert run(f"--trace={out}") == 0
    assert run(f"--trace={tmp_path / 'in.csv'}", "--capacity=15") == 1
    assert "no packing of the 3 blocks exists within 15 bytes" in capsys.readouterr().out


def test_command_misuse(tmp_path):
    with pytest.raises(InputError, match="--trace"):
        run()
    with pytest.raises(InputError, match="cannot read"):
        run(f"--trace={tmp_path / 'none.csv'}")
    (tmp_path / "in.csv").write_text(GOOD)
    with pytest.raises(InputError, match="no such folder"):
        run(f"--trace={tmp_path / 'in.csv'}", f"--out={tmp_path / 'no' / 'out.csv'}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("id,lower,size\na,0,8\n", "row 1: column upper is missing"),
        ("id,lower,upper,size,gaps\n", "row 1, column 5: 'gaps' is no known column"),
        (
            "id,lower,start,upper,size\n",
            "row 1, column start: column lower means the same; keep one",
        ),
        ("id,lower,upper,size\na,0,2,8\nb,3,3,8\n", "row 3, column upper: .*lower >= upper"),
        ("id,lower,upper,size\na,0,2,-8\n", "row 2, column size: -8"),
        ("id,lower,upper,size\na,0,2,8\nb,0,2,8\na,0,2,8\n", "row 4, column id: id 'a' .* row 2"),
        ("id,lower,upper,size\na,0,2,8.5\n", "row 2, column size: '8.5' is not a whole number"),
        ("id,lower,upper,size\na,0,2\n", "row 2: 3 values for 4 columns"),
        ("id,lower,upper,size\na,0,2,99999999999999999999\n", "row 2, column size: .*larger than"),
        ("id,lower,upper,size,offset\na,0,2,8,-4\n", "row 2, column offset"),
    ],
)
def test_bad_traces(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_trace(path)


def test_minimalloc_columns(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text("size, buffer_id, start, end\n8,a,0,1\n4,b,1,2\n")
    problem = read_trace(path)
    assert problem.names == ("a", "b")
    assert problem.upper.tolist() == [2, 3]
    assert problem.size.tolist() == [8, 4]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 99)), min_size=1))
def test_round_trip(tmp_path_factory, rows):
    lower, life, size = np.array(rows).T
    problem = PlacementProblem.of(lower, lower + life, size, alignment=4)
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    write_trace(path, problem)
    again = read_trace(path)
    for name in ("lower", "upper", "size", "alignment", "fixed"):
        assert np.array_equal(getattr(again, name), getattr(problem, name))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 4)), min_size=1, max_size=12), st.data()
)
def test_live_requests_never_overlap(profile, data):
    """Whatever sizes and lifetimes come, those the arena serves lie apart."""
    lower = np.arange(len(profile))
    life = np.array([x for _, x in profile])
    allocator = PlannedAllocator(
        PlacementProblem.of(lower, lower + life, [s for s, _ in profile]), node_limit=200
    )
    for _ in range(2):
        allocator.begin()
        live = {}
        for _ in profile:
            size = data.draw(st.integers(1, 30))
            request, at = allocator.allocate(size)
            assert all(at >= o + s or at + size <= o for o, s in live.values())
            assert at + size <= allocator.arena_bytes
            live[request] = (at, size)
            for k in data.draw(st.sets(st.sampled_from(sorted(live)))):
                allocator.free(k)
                del live[k]
        for k in live:
            allocator.free(k)
