"""Plans on disk: whole or refused, whoever writes, cuts off, changes or fills up the disk."""

import dataclasses
import errno
import multiprocessing
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olla_xla.cli.main import main
from olla_xla.compile import plan_store
from olla_xla.compile.plan_store import PlanStore
from olla_xla.errors import PlanFileError
from olla_xla.problem.plan import Plan
from tests.support.plans import made_plan

pytestmark = pytest.mark.quick

KEY = "0123456789abcdef" * 2
PLAN = made_plan(offsets={"a": (0, 8)})


def stored(folder, key=KEY, plan=PLAN):
    path = folder / f"{key}{plan_store.SUFFIX}"
    plan_store.write(path, plan)
    return path


def test_a_plan_comes_back(tmp_path):
    path = stored(tmp_path)
    assert plan_store.read(path).plan == PLAN
    assert [e.name for e in tmp_path.iterdir()] == [path.name]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_cut_off_or_changed_is_refused(tmp_path_factory, data):
    path = stored(tmp_path_factory.mktemp("plans"))
    text = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        del text[at:]
    else:
        text[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(text)
    try:
        found = plan_store.read(path).plan
    except PlanFileError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        assert found == PLAN, "white space"


@pytest.mark.parametrize("text", [b"", b"[]\n", b"{}", b"[" * 100_000, b"\xff\n{}", b"null\nnull"])
def test_what_is_no_stored_plan_is_refused(tmp_path, text):
    path = tmp_path / f"{KEY}.plan"
    path.write_bytes(text)
    with pytest.raises(PlanFileError, match="remove it"):
        plan_store.read(path)


def test_another_keys_file_is_refused(tmp_path):
    path = stored(tmp_path)
    other = path.with_name(f"{KEY[::-1]}.plan")
    path.rename(other)
    with pytest.raises(PlanFileError, match="is damaged"):
        plan_store.read(other)


def test_what_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_store, "_LARGEST", 10)
    with pytest.raises(PlanFileError, match="larger than 10 bytes"):
        plan_store.read(stored(tmp_path))


def test_a_full_disk_costs_reuse_and_one_line(tmp_path, monkeypatch, caplog):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = PlanStore(tmp_path)
    store.save(KEY, PLAN)
    monkeypatch.setattr(os, "fsync", full)
    changed = dataclasses.replace(PLAN, predicted_bytes=9)
    for key in (KEY, KEY[::-1]):
        store.save(key, changed)
        assert store.load(key) is changed
    assert caplog.text.count("cannot be stored for reuse") == 1 and "No space left" in caplog.text
    assert PlanStore(tmp_path).load(KEY) == PLAN, "what was there stays"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_may_not_be_read_is_survived(tmp_path, monkeypatch, caplog):
    stored(tmp_path)

    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(plan_store, "read_regular", forbidden)
    monkeypatch.setattr(plan_store, "written_whole", forbidden)
    store = PlanStore(tmp_path)
    assert store.load(KEY) is None and "Permission denied" in caplog.text
    store.save(KEY, PLAN)
    assert store.load(KEY) is PLAN


def _write_many(folder, number):
    path = folder / f"{KEY}.plan"
    for k in range(40):
        plan_store.write(path, dataclasses.replace(PLAN, seed=100 * number + k))
        assert plan_store.read(path).plan.module == "jit_step"


def test_processes_write_and_read_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_many, args=(tmp_path, k)) for k in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.plan"]


def test_listing_and_pruning(tmp_path):
    paths = [stored(tmp_path, f"{k:032x}") for k in range(4)]
    now = time.time()
    for age, path in enumerate(paths):
        os.utime(path, (now, now - 1000 * age))
    spoilt = tmp_path / f"{'e' * 32}.plan"
    spoilt.write_text("spoilt")
    at_work, left = (tmp_path / f".{'a' * 15}{k}.{KEY}.plan" for k in (1, 2))
    for path in (at_work, left):  # by another process; by one that was killed
        path.write_text("half")
    os.utime(left, (now - 9000, now - 9000))
    others = ["thesis.py", "x.plan", f"{KEY}.txt", ".a.tmp", f"{KEY}.plan~"]
    for name in others:
        (tmp_path / name).write_text("not ours")
    (tmp_path / f"{'f' * 32}.plan").mkdir()
    found = {entry.path.name: entry for entry in plan_store.entries(tmp_path)}
    assert len(found) == 6 and [e.plan for e in found.values()].count(PLAN) == 4
    assert "not a stored plan" in found[spoilt.name].trouble
    assert abs(found[paths[3].name].used - (now - 3000)) < 1, "listing is no use"
    removed = plan_store.prune(tmp_path, 2500.0, most_bytes=2 * found[paths[0].name].bytes)
    assert {e.path.name for e in removed} == {
        spoilt.name, left.name, paths[3].name, paths[2].name,
    }  # fmt: skip
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} == {
        paths[0].name, paths[1].name, at_work.name, *others,
    }  # fmt: skip
    assert not list(plan_store.entries(tmp_path / "none"))


def test_a_folder_of_other_files_is_not_pruned(tmp_path, capsys):
    thesis = tmp_path / "thesis.py"
    assert main(["olla_xla", "cache", "--prune", f"--directory={tmp_path}"]) == 0
    thesis.write_text("x")
    assert main(["olla_xla", "cache", "--prune", f"--directory={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert "no stored plans" in error and error.count("\n") == 1
    assert thesis.read_text() == "x"


def test_what_is_no_regular_file_is_not_waited_for(tmp_path, caplog):
    path = tmp_path / f"{KEY}.plan"
    for make in (os.mkfifo, os.mkdir, lambda p: p.symlink_to("/dev/zero")):
        make(path)
        with pytest.raises(PlanFileError, match="not a regular file"):
            plan_store.read(path)
        with pytest.raises(PlanFileError, match="not a regular file"):
            Plan.load(path)
        assert PlanStore(tmp_path).load(KEY) is None
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_link_in_a_plans_place_is_replaced_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_text("mine")
    path = tmp_path / f"{KEY}.plan"
    path.symlink_to(other)
    stored(tmp_path)
    assert (
        not path.is_symlink() and other.read_text() == "mine" and plan_store.read(path).plan == PLAN
    )
