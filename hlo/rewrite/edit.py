"""One module while it is changed: parsed once, written to by all in turn, serialized once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo.module import parse_module_proto
from hlo.rewrite.aliases import Alias, add_aliases
from hlo.rewrite.clones import Clone, add_clones
from hlo.rewrite.holds import add_holds
from hlo.rewrite.loops import LoopEdit, change_loops
from hlo.rewrite.schedule import set_schedule

__all__ = ["Edit"]


class Edit:
    """A module that is being changed; what a change raises leaves it half done.

    Args:
      data: serialized, scheduled HloModuleProto.

    Raises:
      HloError: it is none.
    """

    def __init__(self, data: bytes) -> None:
        self._proto = parse_module_proto(data)

    def clone(self, clones: Sequence[Clone]) -> Edit:
        """As `hlo.rewrite.clones.with_clones`."""
        add_clones(self._proto, clones)
        return self

    def change_loops(self, edits: Sequence[LoopEdit]) -> Edit:
        """As `hlo.rewrite.loops.with_loops_changed`."""
        change_loops(self._proto, edits)
        return self

    def alias(self, aliases: Mapping[str, Sequence[Alias]]) -> Edit:
        """As `hlo.rewrite.aliases.with_aliases`."""
        add_aliases(self._proto, aliases)
        return self

    def hold(self, holds: Mapping[str, Sequence[int]]) -> Edit:
        """As `hlo.rewrite.holds.add_holds`."""
        add_holds(self._proto, holds)
        return self

    def schedule(
        self,
        order: Mapping[str, Sequence[str]],
        attributes: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Edit:
        """As `hlo.rewrite.schedule.with_schedule`."""
        set_schedule(self._proto, order, attributes)
        return self

    def to_bytes(self) -> bytes:
        """The module, serialized."""
        return self._proto.SerializeToString(deterministic=True)
