"""A plan without its recomputation, to measure what that costs: the same order less the clones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hlo.module import Computation, Instruction, Module
from hlo.rewrite.barriers import without_barriers
from hlo.rewrite.clones import Clone, add_clones
from hlo.rewrite.edit import Edit
from olla_xla.problem.plan import Plan
from olla_xla.remat.purity import FORWARDING

__all__ = ["without_clones"]


def without_clones(module: bytes, plan: Plan) -> Plan:
    """The plan's order with each value computed once, where it is computed first.

    What comes first among an instruction and its clones has its operands by then, and comes before
    all that reads any of them, so the order stays valid. Two things are not in the order. What a
    fusion needed for outputs that its clones compute comes before it, where it comes later in the
    plan; and what takes out an output that was read without it comes right after the fusion.

    A result that is bound to overwrite a value is bound no more where that value is still needed
    now, as it was computed again later; nor are results of a fusion that has more outputs now.

    Args:
      module: serialized, as XLA scheduled it. plan: made for it.

    Returns:
      A plan to be applied; its totals, peak and offsets are unknown.
    """
    own = without_barriers(module)
    again = {original for _, original, *_ in plan.clones}
    again_too = Edit(own).rewrite(add_clones, [Clone(*record) for record in plan.clones])
    cloned = _instructions(again_too.module())
    by_name = _instructions(own)
    order = _order(own, plan)
    step = {name: k for names in order.values() for k, name in enumerate(names)}
    aliases = {}
    for name, bound in plan.aliases.items():
        if name not in by_name or by_name[name].shape != cloned[name].shape:
            continue
        kept = tuple(
            alias
            for alias in bound
            if not _chain(by_name[name].operands[alias[1]]) & again
            and _dies(by_name[name], alias[1], step)
        )
        if kept:
            aliases[name] = kept
    return dataclasses.replace(
        plan,
        order=_order(Edit(own).alias(aliases).module(), plan),
        aliases=aliases,
        holds={},
        clones=(),
        loops=(),
        sunk=(),
        offsets={},
        added_seconds=plan.exposed_seconds,
    )


def _order(module: Module, plan: Plan) -> dict[str, tuple[str, ...]]:
    """The plan's order for a module without its clones."""
    computations = {c.name: c for c in module.computations}
    original = {name: source for name, source, *_ in plan.clones}
    return {
        name: _completed(computations[name], [original.get(n, n) for n in names])
        for name, names in plan.order.items()
    }


def _instructions(module: Module) -> dict[str, Instruction]:
    """By name."""
    return {i.name: i for c in module.computations for i in c.instructions}


def _completed(computation: Computation, names: Sequence[str]) -> tuple[str, ...]:
    """All of a computation's instructions, operands first, else in the order of `names`.

    Args:
      computation: the computation. names: of some of its instructions, and of others.
    """
    by_name = {i.name: i for i in computation.instructions}
    present = set(names)
    missing = [i.name for i in computation.instructions if i.name not in present]
    done: dict[str, None] = {}
    for name in (*names, *missing):
        stack = [by_name[name]] if name in by_name else []
        while stack:
            i = stack[-1]
            before = [o for o in (*i.operands, *i.control_predecessors) if o.name not in done]
            if before:
                stack += before
                continue
            stack.pop()
            if i.name in done:
                continue
            done[i.name] = None
            taken_out = [k for k in i.users if k.opcode == "get-tuple-element"]
            stack += [k for k in reversed(taken_out) if k.name not in present]
    return tuple(done)


def _chain(i: Instruction) -> set[str]:
    """An instruction and those whose value it only hands on."""
    names = {i.name}
    while i.opcode in FORWARDING:
        i = i.operands[0]
        names.add(i.name)
    return names


def _dies(reader: Instruction, number: int, step: Mapping[str, int]) -> bool:
    """Whether nothing reads an operand's value after a reader of it."""
    i = reader.operands[number]
    while i.opcode == "bitcast":
        i = i.operands[0]
    users = list(i.users)
    if i.opcode == "get-tuple-element":
        users = [
            k
            for k in i.operands[0].users
            if k.opcode != "get-tuple-element" or k.tuple_index == i.tuple_index
        ]
    while users:
        user = users.pop()
        if user.opcode in FORWARDING:
            users += user.users
        elif user is not reader and step[user.name] > step[reader.name]:
            return False
    return True
