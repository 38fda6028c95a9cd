"""The user's cache folder: machine code of loops, rates of a machine, cases of objections."""

from __future__ import annotations

import os
from pathlib import Path

from hlo.files import own_folder
from olla_xla.problem.whole_file import written_whole


def user_cache() -> Path:
    """The path of olla_xla's cache folder, which may not exist. RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "olla_xla"


def keep(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes `data` to a file in a folder that only this user can write to; makes the folder.

    Raises:
      OSError: it cannot be written, or others may write to the folder.
    """
    own_folder(path.parent)
    with written_whole(path, mode, follow=False) as beside:
        beside.write_bytes(data)
