"""A plan without its recomputation, to measure what that costs: the same order less the clones."""

from __future__ import annotations

import dataclasses

from hlo.aliasing import with_aliases
from hlo.module import Instruction, module_from_bytes
from olla_xla.problem import Plan
from olla_xla.remat.purity import FORWARDING

__all__ = ["without_clones"]


def without_clones(module: bytes, plan: Plan) -> Plan:
    """The plan's order with each value computed once, where it is computed first.

    What comes first among an instruction and its clones has its operands by then, and comes before
    all that reads any of them, so the order stays valid. A result that is bound to overwrite a
    value that was computed again later is bound no more: now that value is still needed.

    Args:
      module: serialized, as XLA scheduled it. plan: made for it.

    Returns:
      A plan to be applied; its totals, peak and offsets are unknown.
    """
    again = {original for _, original, *_ in plan.clones}
    by_name = {i.name: i for c in module_from_bytes(module).computations for i in c.instructions}
    aliases = {}
    for name, bound in plan.aliases.items():
        operands = by_name[name].operands
        kept = tuple(alias for alias in bound if not _chain(operands[alias[1]]) & again)
        if kept:
            aliases[name] = kept
    bound_module = module_from_bytes(with_aliases(module, aliases))
    known = {i.name for c in bound_module.computations for i in c.instructions}
    original = {name: source for name, source, *_ in plan.clones}
    order = {
        computation: tuple(
            name for name in dict.fromkeys(original.get(n, n) for n in names) if name in known
        )
        for computation, names in plan.order.items()
    }
    return dataclasses.replace(
        plan, order=order, aliases=aliases, clones=(), offsets={}, added_seconds=0.0
    )


def _chain(i: Instruction) -> set[str]:
    """An instruction and those whose value it only hands on."""
    names = {i.name}
    while i.opcode in FORWARDING:
        i = i.operands[0]
        names.add(i.name)
    return names
