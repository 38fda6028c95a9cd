"""Files that commands read and write: what cannot be written is said before the work is done."""

from __future__ import annotations

import os
from pathlib import Path

from olla_xla.errors import InputError
from olla_xla.problem.whole_file import written_whole

__all__ = ["GrowingFile", "check_writable", "read_text", "write_text"]


def read_text(path: str) -> str:
    """A file's text. Raises InputError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def check_writable(path: str | None) -> None:
    """Looks, before a command does its work, whether it can write its file; None: there is none.

    Raises:
      InputError: it cannot.
    """
    if path is None:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InputError(f"cannot write {path}: there is no such folder")
    if Path(path).is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give the name of a file")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {path}: the folder is not yours to write to")


def write_text(path: str, text: str) -> None:
    """Writes a file in one step. Raises InputError if that fails; what was there then stays."""
    try:
        with written_whole(path) as beside:
            beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


class GrowingFile:
    """A file of lines, each written as it comes: rows of minutes of work are kept.

    The first line takes the place of what was there before; until then that stays.

    Args:
      path: of the file; None: nothing is written. extend: go on where the file ends.

    Raises:
      InputError: it cannot be written.
    """

    def __init__(self, path: str | None, *, extend: bool = False) -> None:
        check_writable(path)
        self._path = path
        self._begun = extend

    def add(self, line: str) -> None:
        """Adds a line. Raises InputError if that fails."""
        if self._path is None:
            return
        if not self._begun:
            self._begun = True
            write_text(self._path, f"{line}\n")
            return
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            raise InputError(f"cannot write {self._path}: {error.strerror}") from error
