"""Checks before a command's work that its output files can be written."""

import os
from pathlib import Path

from olla_xla.errors import InputError


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
        raise InputError(f"cannot write {path}: its folder is write-protected; choose another")
