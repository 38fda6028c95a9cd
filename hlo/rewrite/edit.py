"""One module while it is changed: copied once, written to by all in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from hlo import xla_pb2
from hlo.late import late
from hlo.module import Computation, Instruction, Module, module_from_proto
from hlo.rewrite.aliases import Alias, add_aliases
from hlo.rewrite.holds import add_holds
from hlo.rewrite.schedule import add_notes, set_schedule
from hlo.values import Value

if TYPE_CHECKING:
    from hlo.rewrite import guards
else:
    guards = late("hlo.rewrite.guards")

P = ParamSpec("P")


class Edit:
    """A module that is being changed; if a change raises, it is left half done.

    Args:
      module: a scheduled one, which stays as it is.
    """

    def __init__(self, module: Module) -> None:
        self._before = module
        self._proto = xla_pb2.HloModuleProto()
        self._proto.CopyFrom(module.proto)
        self._reshaped: set[int] | None = set()
        """Ids of bodies of fusions that were changed; None: any may be."""

    def rewrite(
        self,
        change: Callable[Concatenate[xla_pb2.HloModuleProto, P], None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Edit:
        """Calls `change(proto, *args, **kwargs)`: clones, changed loops, sunk moves.

        Few plans have any of these, so that those that do import them, and not this file.
        """
        change(self._proto, *args, **kwargs)
        self._reshaped = None
        return self

    def alias(self, aliases: Mapping[str, Sequence[Alias]]) -> Edit:
        """As `hlo.rewrite.aliases.add_aliases`."""
        reshaped = add_aliases(self._proto, aliases)
        if self._reshaped is not None:
            self._reshaped |= reshaped
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
        """As `hlo.rewrite.schedule.set_schedule`."""
        set_schedule(self._proto, order, attributes)
        return self

    def note(self, attributes: Mapping[str, Mapping[str, str]]) -> Edit:
        """As `hlo.rewrite.schedule.add_notes`."""
        add_notes(self._proto, attributes)
        return self

    def guard(
        self,
        buffers: Iterable[list[Value]],
        orders: Mapping[Computation, Sequence[Instruction]],
    ) -> Edit:
        """As `hlo.rewrite.guards.add_guards`."""
        guards.add_guards(self._proto, buffers, orders)
        return self

    def to_bytes(self) -> bytes:
        """The changed module as a serialized HloModuleProto."""
        return self._proto.SerializeToString(deterministic=True)

    def module(self) -> Module:
        """The changed module; nothing is to be changed any more.

        What was not changed of the module as it came is not read again.

        Raises:
          HloError: a change left an id that nothing has.
        """
        if self._reshaped is None:
            return module_from_proto(self._proto)
        return module_from_proto(self._proto, self._before, self._reshaped)
