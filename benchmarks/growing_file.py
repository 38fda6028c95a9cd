"""Reads the input files of benchmarks, and writes result files line by line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from olla_xla.cli.files import check_writable
from olla_xla.errors import InputError
from olla_xla.problem.whole_file import write_text


def read_text(path: str) -> str:
    """A file's text. Raises InputError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def stored[T](text: str, kind: type[T], command: str, part: str = "") -> T:
    """Reads what a command wrote to its --out.

    Args:
      text: of the file. kind: what it holds. command: its name, for the message.
      part: the key of the object in the file that holds it; "": all of the file.

    Raises:
      InputError: it is something else.
    """
    try:
        given = msgspec.json.decode(text, type=dict[str, msgspec.Raw])[part] if part else text
        return msgspec.json.decode(given, type=kind)
    except (KeyError, msgspec.MsgspecError) as error:
        said = f"this is not the JSON that benchmarks {command} --out writes"
        raise InputError(said) from error


def earlier_rows[Row](path: str | None, read: Callable[[str], list[Row]]) -> list[Row]:
    """The rows of an earlier run, which --resume continues; empty if the file is not there.

    Args:
      path: the file of --out. read: parses its text into rows; raises ValueError, TypeError or
        KeyError if it cannot.

    Raises:
      InputError: no file was named, or it cannot be parsed.
    """
    if path is None:
        raise InputError("--resume goes on with the file of --out; give that too")
    if not Path(path).exists():
        return []
    try:
        return read(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} holds no rows of this command: {error}") from error


class GrowingFile:
    """A file to which lines are written one at a time, so that an interrupted run keeps its rows.

    The first line replaces an earlier file; until it is written, the earlier file stays.

    Args:
      path: the file; None: nothing is written. extend: append to the earlier file instead.

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
