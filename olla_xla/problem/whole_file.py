"""Files written in one step: nobody ever reads half of one, and what fails leaves the old one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

__all__ = ["written_whole"]


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside a file, to be written within the block; it then takes the file's place.

    What was there stays until the block has ended, and where it raises. The path ends as the file's
    does, so that writers that go by a suffix see it. Links are followed; a device or a pipe has
    nothing to be kept and is written as it is.

    Args:
      path: of the file, in a folder that exists.

    Raises:
      OSError: it cannot be put in its place.

    Examples:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with written_whole(Path(folder) / "a.txt") as beside:
      ...         _ = beside.write_text("all of it")
      ...     print(*(found.name for found in Path(folder).iterdir()))
      a.txt
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        yield place
        return
    # Not tempfile's: its files are for their owner only, these are there to be shared.
    beside = place.with_name(f".{secrets.token_hex(8)}.{place.name}")
    try:
        yield beside
        os.replace(beside, place)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
