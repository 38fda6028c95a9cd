"""Rewrites of serialized modules, one at a time (hlo.rewrite.edit)."""

import contextlib

from hlo.module import module_from_bytes
from hlo.rewrite.clones import add_clones
from hlo.rewrite.edit import Edit
from hlo.rewrite.loops import change_loops
from hlo.values import analyse
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.compile.compiles import Compiles
from olla_xla.problem.plan_parts import LoopRecord
from tests.support.compiles import QUICK


def edit(module):
    """What changes a serialized module."""
    return Edit(module_from_bytes(module))


def check_cloned(before, after, target):
    """What the planner asks of a module with clones. Raises CheckError."""
    check_rewrite(before, after, target)
    check_executable(after, target)


def compiled_quickly(lowered, module):
    """A serialized module in place of what XLA scheduled, without LLVM's optimization."""
    with contextlib.closing(Compiles(lowered, QUICK, {})) as compiles:
        return compiles.handed_over("", lambda *_: module)


def with_aliases(module, aliases):
    """With results of fusions bound to operands."""
    return edit(module).alias(aliases).to_bytes()


def with_clones(module, clones):
    """With clones."""
    return edit(module).rewrite(add_clones, clones).to_bytes()


def with_guards(module, target):
    """With control edges from who reads memory to who writes it next."""
    view = module_from_bytes(module)
    orders = {c: c.schedule for c in view.control_computations if c.schedule is not None}
    return Edit(view).guard(analyse(view, target).buffers, orders).to_bytes()


def with_loops_changed(module, edits):
    """With loops changed."""
    return edit(module).rewrite(change_loops, edits).to_bytes()


def with_schedule(module, order, attributes=None):
    """With execution orders, and notes on instructions."""
    return edit(module).schedule(order, attributes).to_bytes()


def record(pair, *gone, every=0, kept=()):
    """A pair of loops without some elements of its writer's state."""
    return LoopRecord(pair.writer.i.name, pair.reader.i.name, tuple(sorted(gone)), every, kept)
