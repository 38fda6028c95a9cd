"""Writes the output files of commands, and checks beforehand that they can be written."""

import os
from pathlib import Path

from olla_xla.errors import InputError
from olla_xla.problem.whole_file import written_whole


def check_writable(path: str | None) -> None:
    """Checks that a file can be written, so that a command can fail before its work.

    Args:
      path: of the file; None if there is none to write.

    Raises:
      InputError: the file's folder is missing or not writable, or the path is a folder.
    """
    if path is None:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InputError(f"cannot write {path}: there is no such folder; create it first")
    if Path(path).is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give the name of a file")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {path}: its folder is write-protected")


def write_text(path: str, text: str) -> None:
    """Writes a file in one step: on failure an earlier file of that name stays as it was.

    Raises:
      InputError: the file cannot be written.
    """
    try:
        with written_whole(path) as beside:
            beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
