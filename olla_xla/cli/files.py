"""Checks before a command's work that its output files can be written."""

import os
from pathlib import Path

from olla_xla.errors import InputError


def check_writable(path: str | None) -> None:
    """Checks that the file `path` can be written, so that a command can fail before its work.
    Raises InputError if its folder is missing or not writable, or it is a folder. None is accepted.
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
