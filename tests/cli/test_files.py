"""Files of commands: what was there is lost only to something better."""

import pathlib
import re

import pytest

import benchmarks.commands
import olla_xla.cli.commands
from benchmarks.growing_file import GrowingFile
from olla_xla.cli import files
from olla_xla.errors import InputError


def test_a_growing_file_replaces_the_old_one_with_its_first_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("old\n")
    file = GrowingFile(str(path))
    assert path.read_text() == "old\n"
    file.add("one")
    assert path.read_text() == "one\n"
    file.add("two")
    assert path.read_text() == "one\ntwo\n"


def test_a_growing_file_goes_on_where_it_is_told_to(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("one\n")
    GrowingFile(str(path), extend=True).add("two")
    assert path.read_text() == "one\ntwo\n"


def test_no_file_is_no_file():
    file = GrowingFile(None)
    file.add("nowhere")


@pytest.mark.parametrize("make", [files.check_writable, GrowingFile])
def test_what_cannot_be_written_is_said_first(tmp_path, make):
    with pytest.raises(InputError, match="there is no such folder"):
        make(str(tmp_path / "none" / "rows"))
    with pytest.raises(InputError, match="it is a folder"):
        make(str(tmp_path))


def test_no_command_opens_its_file_to_write_it():
    """All go through `files` or `written_whole`, so none empties what it has no rows for yet."""
    folders = [
        pathlib.Path(p) for c in (olla_xla.cli.commands, benchmarks.commands) for p in c.__path__
    ]
    found = [path for folder in folders for path in folder.glob("*.py")]
    assert len(found) > 40
    for path in found:
        text = path.read_text()
        assert not re.search(r"""open\([^)]*["'][wax]b?["']|(?<!files)\.write_text\(""", text), path
