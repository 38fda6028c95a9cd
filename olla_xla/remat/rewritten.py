"""Writes what a plan computes again into its module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hlo.late import late
from hlo.module import Module
from hlo.rewrite.clones import Clone, add_clones
from hlo.rewrite.edit import Edit
from hlo.rewrite.join_arrays import join_arrays
from hlo.rewrite.loops import change_loops
from hlo.rewrite.sink import sink_moves
from olla_xla.problem.plan import Plan
from olla_xla.remat.loops.joined import joins
from olla_xla.remat.loops.recipe import edits

if TYPE_CHECKING:
    from hlo.rewrite import restack
else:
    restack = late("hlo.rewrite.restack")


def rewritten(module: Module, plan: Plan) -> Edit:
    """An edit that writes a plan's removed moves, joined arrays, loops and clones into a module.

    Raises:
      HloError, PlanMismatchError: the plan is of another module.
    """
    edit = Edit(module)
    if plan.sunk:
        module = edit.rewrite(sink_moves, plan.sunk, plan.target).module()
        edit = Edit(module)
    stacks = [name for name, read, written in plan.joined if read == written]
    if stacks:
        module = edit.rewrite(restack.restack, stacks, plan.target).module()
        edit = Edit(module)
    if len(plan.joined) > len(stacks):
        found = joins(module, plan.target, plan.joined[len(stacks) :])
        module = edit.rewrite(join_arrays, found, plan.target).module()
        edit = Edit(module)
    if plan.loops:
        edit.rewrite(change_loops, edits(module, plan.loops, plan.target))
    return edit.rewrite(add_clones, [Clone(*record) for record in plan.clones])
