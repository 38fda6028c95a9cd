"""Modules that are imported when a name in them is first used: what few plans need.

    if TYPE_CHECKING:
        from hlo.rewrite import guards
    else:
        guards = late("hlo.rewrite.guards")

Readers, the type checker and the test of layers see an import at the top of a file; a process loads
the module, and all that this imports, when it comes to `guards.add_guards(...)`.
"""

from __future__ import annotations

import importlib
from typing import Any


class _Late:
    """Stands for a module, by its name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # What looks through a file's names, as `inspect` does, asks each for names of Python's own.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)

    def __repr__(self) -> str:
        return f"<late module {self._name}>"


def late(name: str) -> Any:
    """A stand-in for the module of this name, which imports it when an attribute is first read."""
    return _Late(name)
