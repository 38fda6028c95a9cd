"""Adds copies where a change of a scheduled module has made values of one buffer live together.

XLA inserts copies only before it schedules. A value that a change reads later than before may be
overwritten by then: by a loop that starts from it, or by an update in place. What overwrites it is
given a copy instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from hlo import xla_pb2
from hlo.gc_pause import without_collection
from hlo.graph import MutableComputation, MutableModule
from hlo.module import HloError, Module, module_from_proto
from hlo.rewrite.conflicts import CopySite, conflicts
from hlo.rewrite.placing import place_new
from hlo.shapes import TUPLE
from hlo.values import Value, analyse

_ROUNDS = 4
"""A copy may be in the way of another one."""

_Instruction = xla_pb2.HloInstructionProto


@without_collection()
def keep_apart(before: xla_pb2.HloModuleProto, proto: xla_pb2.HloModuleProto, target: str) -> None:
    """Adds copies where a change of a module made two values of one buffer live together.

    Values that were live together before the change are left to XLA, which knows more of branches.

    Args:
      before: the scheduled module without the change. proto: with it; copies are added in place.
      target: "cpu" or "cuda", whose in-place rules count.

    Raises:
      HloError: copies cannot keep the values apart.
    """
    known: set[Hashable] | None = None
    for _ in range(_ROUNDS):
        found = _conflicts(module_from_proto(proto), target)
        if found and known is None:
            known = {_key(s) for s in _conflicts(module_from_proto(before), target)}
        found = [s for s in found if _key(s) not in (known or ())]
        if not found:
            return
        _copy(proto, found)
    raise HloError(f"copies of {found[0].value.name} do not keep it from being overwritten")


def _conflicts(module: Module, target: str) -> list[CopySite]:
    return conflicts(analyse(module, target), target)


def _key(site: CopySite) -> Hashable:
    """A site by names that a change of a loop's state leaves as they are."""
    user = "" if site.user is None else site.user.name
    return site.computation.name, user, _named(site.value), _named(site.other)


def _named(value: Value) -> tuple[Hashable, ...]:
    # A loop's state is numbered anew.
    i = value.instruction
    return (i.name,) if i.opcode in ("parameter", "while") else (i.name, value.index)


def _copy(proto: xla_pb2.HloModuleProto, sites: Iterable[CopySite]) -> None:
    module = MutableModule(proto)
    for site in sites:
        _copy_at(module.body(site.computation.id), site)
    for body in module.bodies():
        place_new(body)
        body.reorder()
    module.finish()


def _copy_at(body: MutableComputation, site: CopySite) -> None:
    """Lets what takes a value at a site take a copy of it."""
    if len(site.index) > 1:
        raise HloError(f"{site.value.name} is overwritten, and is in a tuple of tuples")
    user = None if site.user is None else body.named(site.user.name)
    taken = body.root if user is None else body.operands(user)[site.operand]
    if not site.index:
        _give(body, user, site.operand, _copied(body, taken))
        return
    (k,) = site.index
    own = _own_tuple(body, user, site.operand, taken)
    own.operand_ids[k] = _copied(body, body.operands(own)[k]).id


def _give(
    body: MutableComputation, user: _Instruction | None, operand: int, new: _Instruction
) -> None:
    """Lets an instruction read a new operand; without one, makes that the root."""
    if user is None:
        body.computation.root_id = new.id
    else:
        user.operand_ids[operand] = new.id


def _own_tuple(
    body: MutableComputation, user: _Instruction | None, operand: int, old: _Instruction
) -> _Instruction:
    """The tuple that an instruction, or the result, takes, and nothing else from now on."""
    if old.opcode != "tuple":
        elements = [body.tuple_element(old, k) for k in range(len(old.shape.tuple_shapes))]
        new = body.make("tuple", f"{old.name}.tuple", old.shape, *elements)
    elif sum(list(r.operand_ids).count(old.id) for r in body.readers(old)) == (user is not None):
        return old
    else:
        new = _Instruction()
        new.CopyFrom(old)
        new.name = body.names.new(old.name)
        body.add(new)
    _give(body, user, operand, new)
    return new


def _copied(body: MutableComputation, value: _Instruction) -> _Instruction:
    """Adds a copy of an array."""
    if value.shape.element_type == TUPLE:
        raise HloError(f"{value.name} is a tuple, which is overwritten as a whole")
    return body.make("copy", f"{value.name}.apart", value.shape, value)
