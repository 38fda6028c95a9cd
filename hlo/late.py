"""Stand-ins for modules that few plans need: each is imported when a name in it is first used.

A package lists them in its `__init__.py`:

    __getattr__ = late_modules(__name__, "guards")

Readers, the type checker and the test of layers see an import at the top of a file, `from
hlo.rewrite import guards`; a process loads the module, and all that this imports, when it comes to
`guards.add_guards(...)`. Where a package imports its own modules, or a file must not import the
package, the file names the module itself:

    if TYPE_CHECKING:
        import olla_xla.place.programs as programs
    else:
        programs = late("olla_xla.place.programs")
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


class _Late:
    """Stands for a module that it imports when an attribute is first read or set."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> Any:
        # What looks through a file's names, as `inspect` does, asks each for names of Python's own.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(importlib.import_module(self._name), name, value)

    def __repr__(self) -> str:
        return f"<late module {self._name}>"


def late(name: str) -> Any:
    """Returns a stand-in for the module of this name; reading an attribute of it imports it."""
    return _Late(name)


def late_modules(package: str, names: str) -> Callable[[str], Any]:
    """Makes a package's `__getattr__`, which returns stand-ins (`late`) for its listed modules."""

    def found(name: str) -> Any:
        if name in names.split():
            return late(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return found
