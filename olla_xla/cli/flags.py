"""Flags of commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from absl import flags


class Flags:
    """Adds flags to `values`, a command's flags, each with name, default and help (`about`)."""

    def __init__(self, values: flags.FlagValues) -> None:
        self._values = values

    def text(self, name: str, default: str | None, about: str) -> None:
        """Defines a flag whose value is a string, with a name, a default and help."""
        flags.DEFINE_string(name, default, about, flag_values=self._values)

    def names(self, name: str, default: Sequence[str] | str | None, about: str) -> None:
        """Defines a flag whose value is a list of strings, given with commas between them."""
        given = default if default is None or isinstance(default, str) else list(default)
        flags.DEFINE_list(name, given, about, flag_values=self._values)

    def whole(self, name: str, default: int | None, about: str, least: int | None = None) -> None:
        """Defines a flag whose value is an integer, at least `least` if that is given."""
        flags.DEFINE_integer(name, default, about, least, flag_values=self._values)

    def real(
        self, name: str, default: float | None, about: str, least: float | None = None
    ) -> None:
        """Defines a flag whose value is a float, at least `least` if that is given."""
        flags.DEFINE_float(name, default, about, least, flag_values=self._values)

    def switch(self, name: str, default: bool, about: str) -> None:
        """Defines a flag that is True or False: --name or --noname."""
        flags.DEFINE_bool(name, default, about, flag_values=self._values)

    def one_of(self, name: str, default: str, known: Iterable[str], about: str) -> None:
        """Defines a flag whose value must be one of the strings `known`."""
        flags.DEFINE_enum(name, default, list(known), about, flag_values=self._values)
