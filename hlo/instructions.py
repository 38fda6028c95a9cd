"""Makes and copies instructions as messages of XLA's proto, and chooses unused names for them."""

import itertools
from collections.abc import Iterable
from typing import Any

from hlo import xla_pb2
from hlo.module import HloError

_S32 = 4

_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto


class Names:
    """The set of names in use in a module, from which unused ones for new instructions are made."""

    def __init__(self, proto: xla_pb2.HloModuleProto) -> None:
        self._taken = {c.name for c in proto.computations}
        self._taken.update(i.name for c in proto.computations for i in c.instructions)

    def new(self, name: str) -> str:
        """Returns `name`, with a number added if it is in use, and marks the result as used."""
        unused = name
        for k in itertools.count(1):
            if unused not in self._taken:
                break
            unused = f"{name}.{k}"
        self._taken.add(unused)
        return unused

    def claim(self, name: str) -> str:
        """Returns `name` and marks it as used. Raises HloError if it is used already."""
        if self.new(name) != name:
            raise HloError(f"the module has {name} already; plan it again")
        return name


def instruction(
    opcode: str, name: str, shape: _Shape, operands: Iterable[_Instruction] = (), **fields: Any
) -> _Instruction:
    """Makes an HLO instruction, not yet in a computation; `fields`: further fields of its proto."""
    ids = [o.id for o in operands]
    return _Instruction(opcode=opcode, name=name, shape=shape, operand_ids=ids, **fields)


def copied(
    i: _Instruction, name: str, operands: Iterable[_Instruction] | None = None
) -> _Instruction:
    """Copies an instruction, without control edges, under a new name and maybe new `operands`."""
    copy = _Instruction()
    copy.CopyFrom(i)
    copy.name = name
    del copy.control_predecessor_ids[:]
    if operands is not None:
        copy.operand_ids[:] = [o.id for o in operands]
    return copy


def scalar_constant(name: str, value: int, shape: _Shape) -> _Instruction:
    """Makes a constant instruction: integer `value`, in the 32- or 64-bit type of `shape`."""
    literal = xla_pb2.LiteralProto(shape=shape)
    field = literal.s32s if shape.element_type == _S32 else literal.s64s
    field.append(value)
    return instruction("constant", name, shape, literal=literal.SerializeToString())


def relist(repeated: Any, items: Iterable[Any]) -> None:
    """Replaces a repeated proto field's content by copies of `items`, which may be its own."""
    kept = list(items)
    del repeated[:]
    repeated.extend(kept)
