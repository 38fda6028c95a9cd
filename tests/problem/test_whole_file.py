"""Files appear whole or not at all."""

import os

import pytest

from olla_xla.problem.whole_file import written_whole


def test_what_was_there_stays_until_the_block_ends(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("old")
    with written_whole(path) as beside:
        beside.write_text("new")
        assert path.read_text() == "old" and beside.suffix == ".csv"
    assert path.read_text() == "new"
    assert [found.name for found in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, ValueError])
def test_what_fails_leaves_the_old_one_and_nothing_beside_it(tmp_path, error):
    path = tmp_path / "rows.csv"
    path.write_text("old")
    with pytest.raises(error), written_whole(path) as beside:
        beside.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["rows.csv"]


def test_links_are_followed_and_devices_written_as_they_are(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with written_whole(tmp_path / "link") as beside:
        beside.write_text("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"
    with written_whole(os.devnull) as beside:
        beside.write_text("gone")
    assert not os.path.isfile(os.devnull)
