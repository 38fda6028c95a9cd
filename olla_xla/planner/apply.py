"""Reads a scheduled module's graphs and orders, and writes a plan into it."""

from __future__ import annotations

import dataclasses

from hlo import invariant_loads
from hlo.backend import platform
from hlo.module import HloError, Module, module_from_bytes
from hlo.rewrite.aliases import ask_about_others, unasked
from hlo.rewrite.edit import Edit
from hlo.values import analyse
from olla_xla.errors import PlanMismatchError
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.memory.sources import source_line
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.plan import Plan
from olla_xla.remat import rewritten


def graphs(module: bytes, target: str) -> list[TensorGraph]:
    """Returns a tensor graph for each computation of a serialized module, callees before callers,
    operators in XLA's order. These have source lines and JAX's names, unlike in graphs of plans.
    """
    planned = PlannedModule(scheduled_module(module), target)
    lowered_graphs = []
    for lowered in map(planned.charge, planned.module.control_computations):
        operators = tuple(
            dataclasses.replace(operator, location=source_line(i), op_name=i.op_name)
            for operator, i in zip(lowered.graph.operators, lowered.instructions, strict=True)
        )
        lowered_graphs.append(dataclasses.replace(lowered.graph, operators=operators))
    return lowered_graphs


def module_order(module: bytes) -> dict[str, tuple[str, ...]]:
    """Returns the module's schedule: computation name -> instruction names in order."""
    return module_from_bytes(module).order


def apply_plan(module: bytes, plan: Plan, mark: str = "") -> bytes:
    """Writes a plan into the serialized module it was made for; returns the new module, serialized.

    Written are the order, results that overwrite operands, instructions that are computed again
    (clones), and changed loops. Each instruction gets as frontend attributes its step, the bytes it
    defines, and, where it defines any, the planned offsets of its values in order, separated by
    commas; the first and the last of each computation also `mark`, if it is not "". On a GPU or TPU
    fusions get the marks of `hlo.invariant_loads`, so that no order has XLA load as invariant what
    is not. On a CPU no fusion writes over what another of its operands still reads. Raises
    PlanMismatchError if the plan was made for another module, or cannot be written into it.
    """
    view = scheduled_module(module)
    if view.fingerprint != plan.fingerprint:
        raise PlanMismatchError(
            f"the plan was made for module {plan.module}, not for {view.name}; plan again"
        )
    sizes: dict[str, int] = {}
    offsets: dict[str, list[str]] = {}
    for name, (offset, size) in plan.offsets.items():
        instruction = name.split("{")[0]
        sizes[instruction] = sizes.get(instruction, 0) + size
        offsets.setdefault(instruction, []).append(str(offset))
    attributes = {
        name: {"olla_xla.step": str(step), "olla_xla.bytes": str(sizes.get(name, 0))}
        for order in plan.order.values()
        for step, name in enumerate(order)
    }
    for names in plan.order.values():
        for name in (*names[:1], *names[-1:]) if mark else ():
            attributes[name]["olla_xla.plan"] = mark
    for name, own_offsets in offsets.items():
        if name in attributes:
            attributes[name]["olla_xla.offset"] = ",".join(own_offsets)
    try:
        edit = _edited(view, plan).hold(plan.holds).alias(plan.aliases)
        edit.schedule(plan.order, attributes)
        if platform(plan.target).is_host:
            written = edit.module() if plan.is_rewritten else view
            if places := unasked(written):
                edit.rewrite(ask_about_others, places)
        if platform(plan.target).computes_again:
            planned = edit.module()
            orders = {c: c.schedule or () for c in planned.control_computations}
            edit = Edit(planned).guard(analyse(planned, plan.target).buffers, orders)
            marks = invariant_loads.shared_marks(planned)
            edit.note({name: {invariant_loads.MARK: mark} for name, mark in marks.items()})
        return edit.to_bytes()
    except HloError as error:
        raise PlanMismatchError(str(error)) from error


def _edited(module: Module, plan: Plan) -> Edit:
    """Starts an Edit of the module, with the plan's changed loops and cloned instructions."""
    if not plan.is_rewritten:
        return Edit(module)
    return rewritten.rewritten(module, plan)
