"""Replaces files atomically: no reader sees half of one, and a failure leaves the old one.

And the user's cache folder: machine code of loops, rates of a machine, cases of objections.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from hlo.files import own_folder
from olla_xla.errors import InputError


@contextlib.contextmanager
def written_whole(
    path: str | os.PathLike[str], mode: int = 0o666, *, follow: bool = True
) -> Iterator[Path]:
    """Context manager that gives a temporary path; what is written there replaces the file `path`.

    The old file stays until the block ends, and also if it raises. The temporary path ends in the
    file's name, for writers that look at the suffix; nobody else can have made a file there. Raises
    OSError if the file cannot be put in its place.

    Args:
      path: of the file, in a folder that exists.
      mode: its permissions, less those that the process's umask takes away.
      follow: whether a symbolic link is followed, and a device or a pipe written directly; else the
        file takes their place.

    Examples:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with written_whole(Path(folder) / "a.txt") as beside:
      ...         _ = beside.write_text("all of it")
      ...     print(*(file.name for file in Path(folder).iterdir()))
      a.txt
    """
    place = Path(os.path.realpath(path) if follow else path)
    if follow and place.exists() and not place.is_file():
        yield place
        return
    # Not tempfile's: only their owner may read these.
    beside = place.with_name(f".{secrets.token_hex(8)}.{place.name}")
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield beside
        os.replace(beside, place)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


@contextlib.contextmanager
def written_for_user(path: str | os.PathLike[str]) -> Iterator[Path]:
    """`written_whole` for a file that the user named; raises InputError in place of OSError."""
    try:
        with written_whole(path) as beside:
            yield beside
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes or replaces a file that the user named, atomically. InputError if it cannot."""
    with written_for_user(path) as beside:
        beside.write_text(text, encoding="utf-8")


def user_cache() -> Path:
    """Returns the path of olla_xla's cache folder, which is not made here.

    RuntimeError if neither XDG_CACHE_HOME nor a home folder is known.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "olla_xla"


def keep(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes `data` to a file atomically; makes its folder, which only this user may write to.

    Raises OSError if the file cannot be written, or others may write to the folder.
    """
    own_folder(path.parent)
    with written_whole(path, mode, follow=False) as beside:
        beside.write_bytes(data)
