"""A copy of a module to which all changes of a plan are written one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Concatenate, ParamSpec

from hlo import xla_pb2
from hlo.graph import MutableModule
from hlo.module import Computation, HloError, Instruction, Module, module_from_proto
from hlo.rewrite import guards
from hlo.rewrite.aliases import Alias, add_aliases, add_holds
from hlo.values import Value

P = ParamSpec("P")


class Edit:
    """A copy of a scheduled module that is changed step by step; if a step raises, discard it."""

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
        """Calls `change(proto, *args, **kwargs)`, which changes the copy in place; returns self.
        The caller imports the function, so that other plans need not load its code.
        """
        change(self._proto, *args, **kwargs)
        self._reshaped = None
        return self

    def alias(self, aliases: Mapping[str, Sequence[Alias]]) -> Edit:
        """Lets results of fusions overwrite operands (`aliases.add_aliases`); returns self."""
        reshaped = add_aliases(self._proto, aliases)
        if self._reshaped is not None:
            self._reshaped |= reshaped
        return self

    def hold(self, holds: Mapping[str, Sequence[int]]) -> Edit:
        """Keeps operands live for one step after their instructions (`add_holds`); returns self."""
        add_holds(self._proto, holds)
        return self

    def schedule(
        self,
        order: Mapping[str, Sequence[str]],
        attributes: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Edit:
        """Sets execution orders, and adds frontend attributes; returns self.
        Raises HloError if a name is unknown, or an order is not a permutation of the computation.

        Args:
          order: computation name -> all its instruction names in execution order. Computations that
            are not named keep their schedule.
          attributes: as for `note`.
        """
        module = MutableModule(self._proto)
        scheduled = self._proto.schedule.sequences
        known = {c.name: c.id for c in self._proto.computations if c.id in scheduled}
        for name, names in order.items():
            if name not in known:
                raise HloError(f"the module has no scheduled computation {name}; plan it again")
            computation = module.body(known[name])
            ids = {i.name: i.id for i in computation.instructions()}
            new = [ids.get(n, -1) for n in names]
            if sorted(new) != sorted(computation.order):
                raise HloError(f"the order of {name} is not a permutation of it; plan it again")
            computation.place(new)
        module.finish()
        return self.note(attributes or {})

    def note(self, attributes: Mapping[str, Mapping[str, str]]) -> Edit:
        """Adds frontend attributes, instruction name -> key -> value; returns self.

        Transfers to and from the host get none: those of one channel, which XLA makes as it unrolls
        a loop, must have equal ones.
        """
        for computation in self._proto.computations if attributes else ():
            for instruction in computation.instructions:
                if instruction.opcode.startswith(("send", "recv")):
                    continue
                for key, value in attributes.get(instruction.name, {}).items():
                    instruction.frontend_attributes.map[key] = value
        return self

    def guard(
        self, buffers: Iterable[list[Value]], orders: Mapping[Computation, Sequence[Instruction]]
    ) -> Edit:
        """Adds control edges from readers of buffers to later writers (`guards`); returns self."""
        guards.add_guards(self._proto, buffers, orders)
        return self

    def to_bytes(self) -> bytes:
        """Serializes the changed module as an HloModuleProto."""
        return self._proto.SerializeToString(deterministic=True)

    def module(self) -> Module:
        """Returns the changed copy as a Module; no more changes may be made after this.

        Unchanged fused computations are the original's objects, unless `rewrite` was called.
        HloError if an id is unknown.
        """
        if self._reshaped is None:
            return module_from_proto(self._proto)
        return module_from_proto(self._proto, self._before, self._reshaped)
