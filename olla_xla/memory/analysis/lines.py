"""Source lines as short text."""

from __future__ import annotations

import functools
import os
from pathlib import Path


def short_line(line: str) -> str:
    """A "file:line" relative to the working directory, or its last three path components."""
    return _short_line(line, os.getcwd())


@functools.lru_cache(maxsize=4096)  # a step's tensors come from few lines
def _short_line(line: str, directory: str) -> str:
    name, colon, number = line.rpartition(":")
    if not colon:
        return line
    path = Path(name)
    if path.parent.name.startswith("ipykernel_"):
        return f"notebook cell:{number}"  # its file is a temporary one, named by a hash
    if path.is_relative_to(directory):
        path = path.relative_to(directory)
    elif len(path.parts) > 3:
        path = Path(*path.parts[-3:])
    return f"{path}:{number}"


def short_call(call: str) -> str:
    """A "file:line function" with its "file:line" shortened by `short_line`."""
    line, _, function = call.partition(" ")
    return f"{short_line(line)} {function}".strip()
