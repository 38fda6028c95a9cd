"""Files that commands write: what cannot be written is said before the work is done."""

from __future__ import annotations

import os
from pathlib import Path

from olla_xla.errors import InputError
from olla_xla.problem.whole_file import written_whole

__all__ = ["check_writable", "write_text"]


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
