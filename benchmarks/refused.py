"""Choices that a referee refused while a benchmark planned, in this process and in its workers.

A benchmark's figures are those of plans that went on without them: it fails, whatever it measured.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "BENCHMARK_REFUSALS"
"""Environment variable: the file to which every process of a benchmark adds refusals."""

_LOGGER = logging.getLogger("olla_xla.refusals")


class _ToFile(logging.Handler):
    """Adds a line for each refusal; lines of several processes do not mix."""

    def emit(self, record: logging.LogRecord) -> None:
        if path := os.environ.get(VARIABLE):
            line = " ".join(record.getMessage().split())
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")


_handler = _ToFile()


def watch() -> None:
    """From now on, this process adds its refusals to the file that the environment names, if any.

    Workers of a benchmark inherit its environment, and call this when `benchmarks` is imported.
    """
    if os.environ.get(VARIABLE) and _handler not in _LOGGER.handlers:
        _LOGGER.setLevel(logging.INFO)
        _LOGGER.addHandler(_handler)


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Collects refusals until the end of the block, a line for each; the list is filled there."""
    found: list[str] = []
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "refused.txt"
        os.environ[VARIABLE] = str(path)
        watch()
        try:
            yield found
        finally:
            _LOGGER.removeHandler(_handler)
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before
                watch()
            if path.exists():
                found += path.read_text(encoding="utf-8").splitlines()


class _Collected(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """A context that collects what is refused while it lasts, in any thread, in a list."""
    handler, level = _Collected(), _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield handler.found
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
