"""Machine code of loops: what it is called with, and what is kept of it."""

import errno
import os
import subprocess
import sys
import threading
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from olla_xla.memory import code_store
from olla_xla.memory.arguments import flattened, spelled
from olla_xla.memory.jit import inner, jit, loop


class _Grid(NamedTuple):
    cells: np.ndarray
    wanted: np.ndarray
    scale: float
    first: int


@inner
def _weight(grid, row, column):
    return grid.cells[row, column] * (column + 1)


@loop
def _total(grid, negative, limit, rows):
    """Sums what is wanted: the sum, the cells taken, and whether the limit was passed."""
    total, taken = 0.0, 0
    for k in range(len(rows)):
        row = rows[k]
        for column in range(grid.first, grid.cells.shape[1]):
            if grid.wanted[row]:
                total += grid.scale * _weight(grid, row, column)
                taken += 1
    total = -total if negative else total
    return total, np.float64(taken), np.float64(total > limit)


@loop
def _put(values, at, value):
    values[at] = value


@loop
def _fails(values):
    return 1 // len(values)


@loop
def _count(values):
    return len(values)


@jit
def _tripled(number):
    return number * 3


@loop
def _given(values):
    return values


_LAYOUTS = {
    "contiguous": lambda a: a,
    "every second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "backward": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "Fortran": np.asfortranarray,
}


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(data=st.data())
def test_arrays_of_any_layout_and_numbers_reach_the_loop(data):
    height, width = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 5))
    numbers = np.random.default_rng(data.draw(st.integers(0, 99)))
    layout = st.sampled_from(sorted(_LAYOUTS))
    cells = _LAYOUTS[data.draw(layout)](numbers.integers(-9, 9, (height, width)))
    cells.setflags(write=data.draw(st.booleans()))
    wanted = _LAYOUTS[data.draw(layout)](numbers.integers(0, 2, height).astype(np.bool_))
    rows = _LAYOUTS[data.draw(layout)](np.arange(height))
    grid = _Grid(cells, wanted, data.draw(st.floats(-4, 4)), data.draw(st.integers(0, 2)))
    limit = data.draw(st.sampled_from([3, np.int64(-(2**40)), 2**62]))
    negative = data.draw(st.sampled_from([True, False, np.bool_(True)]))
    for _ in range(2):  # the second time its words are remembered
        assert _total(grid, negative, limit, rows) == _total.interpreted(
            grid, negative, limit, rows
        )


def test_what_is_written_is_seen_and_a_tuple_remembered_by_another_array_is_not_taken():
    values = np.zeros(4, np.int64)
    _put(values, 2, 7)
    assert values.tolist() == [0, 0, 7, 0]
    for length in range(200):  # new tuples, many at the address of an earlier one
        assert _count(np.zeros(length, np.int64)) == length
        grid = _Grid(np.full((1, 2), length), np.ones(1, np.bool_), 1.0, 0)
        assert _total(grid, False, 0, np.zeros(1, np.int64))[0] == 3 * length


def test_an_array_that_must_not_be_written_is_not():
    import numba

    values = np.zeros(4, np.int64)
    _put(values, 1, 1)
    values.setflags(write=False)
    with pytest.raises(numba.TypingError, match="readonly"):
        _put(values, 2, 1)
    assert values.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    "value", ["text", [1], np.zeros(2, "M8[s]"), np.zeros(2, ">i8"), np.float32(1)]
)
def test_what_no_loop_takes_is_refused(value):
    with pytest.raises(TypeError, match="compiled loop"):
        _count(value)


def test_a_loop_that_returns_an_array_is_refused():
    """Nobody would count its references."""
    with pytest.raises(TypeError, match=r"_given returns array.* which is not a number"):
        _given(np.zeros(3))


def test_an_error_within_a_loop_is_one():
    assert _fails(np.zeros(1)) == 1
    with pytest.raises(RuntimeError, match="_fails failed with code 1"):
        _fails(np.zeros(0))


def test_threads_that_call_a_loop_at_once_compile_it_once(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    ours = loop(_count.interpreted)
    found = []
    threads = [
        threading.Thread(target=lambda k=k: found.append(ours(np.zeros(k)))) for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(8))
    assert len(list(tmp_path.iterdir())) == 1


def _kept_once(monkeypatch, folder):
    """A loop's file in a folder that `NUMBA_CACHE_DIR` names."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    assert loop(_count.interpreted)(np.zeros(2)) == 2
    (file,) = folder.iterdir()
    return file


def _is_taken():
    """Whether what is kept is run."""
    again = loop(_count.interpreted)
    assert again(np.zeros(3)) == 3
    return vars(again).get("compiled") is None


def test_what_is_kept_is_this_users_alone(monkeypatch, tmp_path):
    folder = tmp_path / "new" / "kept"
    file = _kept_once(monkeypatch, folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not file.stat().st_mode & 0o022
    assert _is_taken()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_what_others_may_have_planted_is_not_run(monkeypatch, tmp_path, caplog, mode):
    """Also not where all of it is as it was written: nobody knows who wrote it."""
    code_store._say.cache_clear()
    file = _kept_once(monkeypatch, tmp_path)
    file.chmod(0o666)
    assert not _is_taken()  # and replaced
    assert _is_taken()
    tmp_path.chmod(mode)
    assert not _is_taken() and not _is_taken()
    assert caplog.text.count("each process compiles the planner's loops") == 1
    assert str(tmp_path) in caplog.text and "others may write" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_another_users_file_or_folder_is_not_run(monkeypatch, tmp_path):
    file = _kept_once(monkeypatch, tmp_path)
    os.chown(file, 12345, 12345)
    assert not _is_taken()  # and replaced by one of this user
    assert _is_taken()
    os.chown(tmp_path, 12345, 12345)  # as a HOME that sudo keeps
    assert not _is_taken() and not _is_taken()


def test_a_link_or_a_pipe_is_not_followed_and_is_replaced(monkeypatch, tmp_path):
    file = _kept_once(monkeypatch, tmp_path)
    elsewhere = file.rename(tmp_path / "elsewhere")
    good = elsewhere.read_bytes()
    for make in (lambda: file.symlink_to(elsewhere), lambda: os.mkfifo(file)):
        make()
        assert not _is_taken()
        assert _is_taken() and file.is_file() and not file.is_symlink()
        file.unlink()
    assert elsewhere.read_bytes() == good


def test_a_flip_of_any_part_is_seen(monkeypatch, tmp_path):
    """Of the seal, of what the code is, of its sizes, of the images; also another loop's file."""
    file = _kept_once(monkeypatch, tmp_path)
    good = file.read_bytes()
    name, kinds = _count._name, flattened((np.zeros(2),))[0]
    parts = [5, good.index(b"\n"), good.index(b"result"), good.index(b"sizes") + 10]
    for at in [*parts, *range(200, len(good), len(good) // 16), len(good) - 1]:
        for bit in (0, 7):
            flipped = bytearray(good)
            flipped[at] ^= 1 << bit
            file.write_bytes(flipped)
            assert code_store.load(name, kinds, _count._source) is None, at
    file.write_bytes(good)
    assert code_store.load(name, kinds, _count._source) is not None
    other = file.with_name(f"{code_store._stem('other', spelled(kinds))}{_count._source}.loop")
    file.rename(other)
    assert code_store.load("other", kinds, _count._source) is None


def test_what_cannot_be_linked_is_removed_and_compiled_anew(monkeypatch, tmp_path, caplog):
    file = _kept_once(monkeypatch, tmp_path)
    kinds = flattened((np.zeros(2),))[0]
    code = code_store.load(_count._name, kinds, _count._source)
    broken = code._replace(images=(code.images[1],))  # without the loop itself
    code_store.save(_count._name, kinds, _count._source, broken)
    assert not _is_taken() and "is compiled again" in caplog.text
    assert _is_taken() and file.exists()


def test_what_fails_to_be_written_leaves_nothing(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    assert loop(_count.interpreted)(np.zeros(2)) == 2
    assert not list(tmp_path.iterdir())


def test_numbas_own_code_is_kept_as_ours_is(monkeypatch, tmp_path):
    """It unpickles what it finds, so that anything there would be run."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def compiled():
        made = jit(_tripled.interpreted)
        assert made(4) == 12
        return sum(made.compiled.stats.cache_misses.values())

    assert [compiled(), compiled()] == [1, 0]
    (file,) = (p for p in tmp_path.iterdir() if p.suffix == ".loop")
    for spoil in (lambda: file.chmod(0o666), lambda: file.write_bytes(b"x" + file.read_bytes())):
        spoil()
        assert [compiled(), compiled()] == [1, 0]
    tmp_path.chmod(0o777)
    assert [compiled(), compiled()] == [1, 1]


def test_what_cannot_be_kept_is_compiled_in_every_process(monkeypatch, tmp_path):
    file = tmp_path / "no folder"
    file.write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(file))
    ours = loop(_count.interpreted)
    assert ours(np.zeros(5)) == 5
    assert not ours.is_kept


def test_without_a_folder_beside_the_package_the_users_cache_has_it(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    package, user = code_store.folders()
    assert package.name == "__pycache__" and user == tmp_path / "olla_xla"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError()))
    assert list(code_store.folders()) == [package]


_CALLER = """
import numpy as np
from {name} import count
print(count(np.zeros(3)), __import__("sys").modules.get("numba") is not None)
"""
_MODULE = """
import enum
from olla_xla.memory.jit import inner, loop
from {name}_parts import Kind, more

_EXTRA = {extra}


@loop
def count(values):
    total = 0
    for _ in values:
        total = more(total) + _EXTRA
    return total + Kind.FIRST
"""
_PARTS = """
import enum
from olla_xla.memory.jit import inner


class Kind(enum.IntEnum):
    FIRST = {first}


@inner
def more(number):
    return number + {step}
"""


def test_a_change_in_what_a_loop_calls_or_names_is_seen_in_the_next_process(tmp_path):
    """Also in another file, where numba's own cache would not see it."""

    def ran(**values):
        chosen = {"name": "steps", "extra": 0, "first": 0, "step": 1} | values
        (tmp_path / "steps.py").write_text(_MODULE.format(**chosen))
        (tmp_path / "steps_parts.py").write_text(_PARTS.format(**chosen))
        environment = {
            **os.environ,
            "NUMBA_CACHE_DIR": str(tmp_path / "kept"),
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        code = [sys.executable, "-c", _CALLER.format(**chosen)]
        done = subprocess.run(code, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert ran() == "3 True"
    assert ran() == "3 False"
    assert ran(step=2) == "6 True"
    assert ran(extra=1) == "6 True"
    assert ran(first=10) == "13 True"
    assert ran(first=10) == "13 False"
    assert len(list((tmp_path / "kept").iterdir())) == 1, "what was compiled before is gone"
