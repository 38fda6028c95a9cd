"""Reads files that other users may have made: never waits without end, and limits the bytes read.

What is run or believed as it stands, such as machine code, is read with `read_own`.
"""

import errno
import io
import os
import stat
import zlib
from gzip import BadGzipFile, GzipFile

LARGEST = 2**31
"""Bytes above which no file is read, packed or unpacked: protobuf's own limit."""

_PART = 2**20
_GZIP = b"\x1f\x8b"
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe does not wait for a writer


def read_regular(path: str | os.PathLike[str], largest: int = LARGEST) -> bytes:
    """Returns the bytes of a regular file.

    Args:
      path: of the file; links are followed. largest: bytes that are read at most.

    Raises:
      OSError: it cannot be read, is a folder, a pipe or a device, or is larger.
    """
    return _read(os.open(path, _READ), largest)


def read_own(path: str | os.PathLike[str], largest: int = 2**28) -> bytes:
    """Returns the bytes of a file that only this process's user and root can have written.

    Its folder and the file belong to one of them, neither group nor others may write to either, and
    the file is no link. Both are checked as they were opened, so neither can be exchanged. Raises
    OSError if it cannot be read, others may have written it, or it has over `largest` bytes.
    """
    above, name = os.path.split(path)
    folder = os.open(above or os.curdir, _READ | os.O_DIRECTORY)
    try:
        _check_own(os.fstat(folder))
        return _read(os.open(name, _READ | os.O_NOFOLLOW, dir_fd=folder), largest, own=True)
    finally:
        os.close(folder)


def own_folder(path: str | os.PathLike[str]) -> None:
    """Makes a folder, and those above it, if missing; only this process's effective user can write
    to it. Raises OSError if it cannot be made or written to, or others than root may write to it.
    """
    os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        _check_own(os.stat(path))
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))


def is_own(found: os.stat_result) -> bool:
    """Whether only this process's user and root may write to a file with this `stat` result."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def unpacked(data: bytes, largest: int = LARGEST) -> bytes:
    """Decompresses data in gzip's format; returns other data as it is.
    Raises OSError if the packed data is damaged, or what it holds is larger than `largest`.
    """
    if not data.startswith(_GZIP):
        return data
    parts, left = [], largest
    with GzipFile(fileobj=io.BytesIO(data)) as file:
        try:
            while part := file.read(_PART):
                parts.append(part)
                left -= len(part)
                if left < 0:
                    raise _too_large(largest)
        except (EOFError, zlib.error, BadGzipFile) as error:
            raise OSError(errno.EIO, f"damaged gzip data, {error}") from error
    return b"".join(parts)


def _read(file: int, largest: int, *, own: bool = False) -> bytes:
    """Reads and closes a regular file that is open. OSError if it has over `largest` bytes or, with
    `own`, others than this process's user and root may write to it.
    """
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if own:
            _check_own(status)
        with open(file, "rb", closefd=False) as opened:
            data = opened.read(largest + 1) if status.st_size <= largest else b""
        if status.st_size > largest or len(data) > largest:
            raise _too_large(largest)
        return data
    finally:
        os.close(file)


def _check_own(found: os.stat_result) -> None:
    if not is_own(found):
        raise PermissionError(errno.EPERM, "it is another user's, or others may write to it")


def _too_large(largest: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {largest:,} bytes")
