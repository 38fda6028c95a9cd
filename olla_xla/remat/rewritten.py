"""Writes what a plan computes again into its module."""

from __future__ import annotations

from hlo.module import Module
from hlo.rewrite.clones import Clone, add_clones
from hlo.rewrite.edit import Edit
from hlo.rewrite.loops import change_loops
from hlo.rewrite.sink import sink_moves
from olla_xla.problem.plan import Plan
from olla_xla.remat.loops.recipe import edits


def rewritten(module: Module, plan: Plan) -> Edit:
    """An edit that writes a plan's removed moves, changed loops and clones into a module.

    Raises:
      HloError, PlanMismatchError: the plan is of another module.
    """
    edit = Edit(module)
    if plan.sunk:
        edit.rewrite(sink_moves, plan.sunk, plan.target)
    if plan.loops:
        if plan.sunk:
            module = edit.module()
            edit = Edit(module)
        edit.rewrite(change_loops, edits(module, plan.loops, plan.target))
    return edit.rewrite(add_clones, [Clone(*record) for record in plan.clones])
