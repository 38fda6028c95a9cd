"""What a command found, as one JSON object: `--json` to standard output, `--json=FILE` to a file.

A command adds figures by name, in bytes and seconds. Every table that it prints is added too, with
its cells as printed. Without `--json`, `add` and `add_table` do nothing.
"""

import contextlib
import contextvars
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class Document:
    """The machine-readable results (`--json`) of one command: named figures, and tables."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._tables: list[dict[str, Any]] = []

    def add(self, fields: Mapping[str, Any]) -> None:
        """Adds figures by name; a later figure replaces an earlier one of the same name."""
        self._fields.update(fields)

    def add_table(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Adds a table, rows of text under headings, to the document."""
        columns = [heading.strip(": ") for heading in headings]
        self._tables.append({"title": title, "columns": columns, "rows": [list(r) for r in rows]})

    def text(self) -> str:
        """Returns the document as text of a JSON object, with a newline at the end."""
        tables = {"tables": self._tables} if self._tables else {}
        return json.dumps({**self._fields, **tables}, indent=1, default=str) + "\n"


_current: contextvars.ContextVar[Document | None] = contextvars.ContextVar("document", default=None)


@contextlib.contextmanager
def collecting() -> Iterator[Document]:
    """Context manager that yields a new Document, to which `add` and `add_table` add inside."""
    document = Document()
    token = _current.set(document)
    try:
        yield document
    finally:
        _current.reset(token)


def add(**fields: Any) -> None:
    """Adds figures to the document of the enclosing `collecting` block, if there is one."""
    if (document := _current.get()) is not None:
        document.add(fields)


def add_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Adds a table to the document of the enclosing `collecting` block, if there is one."""
    if (document := _current.get()) is not None:
        document.add_table(title, headings, rows)
