"""Writes into a module what its plan changes in loops and computes again."""

from hlo.module import Module
from hlo.rewrite.clones import Clone, add_clones
from hlo.rewrite.edit import Edit
from hlo.rewrite.join_arrays import join_arrays
from hlo.rewrite.loops import change_loops
from hlo.rewrite.restack import restack
from hlo.rewrite.sink import sink_moves
from hlo.rewrite.slice_offsets import drop_slice_offsets
from olla_xla.problem.plan import Plan
from olla_xla.remat.loops.joined import joins
from olla_xla.remat.loops.recipe import edits


def rewritten(module: Module, plan: Plan) -> Edit:
    """Writes into an Edit of a module what a plan changes: moves of data that loops need not do,
    pairs of a loop's arrays joined to one, loops that recompute residuals, and clones. Raises
    HloError or PlanMismatchError if the plan is of another module.
    """
    edit, before = Edit(module), module.proto
    if plan.sunk:
        module = edit.rewrite(sink_moves, plan.sunk, plan.target).module()
        edit = Edit(module)
    if again := [name for name, read, written in plan.joined if read == written]:
        module = edit.rewrite(restack, again, plan.target).module()
        edit = Edit(module)
    if joined := plan.joined[len(again) :]:
        located = joins(module, plan.target, joined)
        module = edit.rewrite(join_arrays, located, plan.target).module()
        edit = Edit(module)
    if plan.loops:
        edit.rewrite(change_loops, edits(module, plan.loops, plan.target))
    edit.rewrite(add_clones, [Clone(*record) for record in plan.clones])
    return edit.rewrite(drop_slice_offsets, before)
