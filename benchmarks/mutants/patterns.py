"""Faults: kernels that share memory otherwise than the plan says, with nothing else wrong.

No value is overwritten before its last reader, so only the rounding of the kernel can change.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks.mutants import order
from benchmarks.mutants.aliases import bind, bindings, is_needed
from benchmarks.mutants.draft import Draft
from hlo.module import module_from_bytes
from hlo.rewrite.aliases import add_holds
from hlo.rounding import may_depend_on_memory
from olla_xla.memory.kernels import overwritten
from olla_xla.memory.module_state import PlannedModule, scheduled_module


def _kernels(draft: Draft) -> set[str]:
    """Names of the kernels whose rounding may depend on memory."""
    module = module_from_bytes(draft.finish())
    listed = (i for c in module.control_computations for i in c.instructions)
    return {i.name for i in listed if may_depend_on_memory(i, "cpu")}


def bound(draft: Draft, rng: random.Random) -> str | None:
    """Binds a kernel's result to an operand that nothing reads later."""
    kernels = _kernels(draft)
    found = [b for b in bindings(draft) if b[1].name in kernels and not is_needed(draft, b)]
    return bind(draft, found, rng)


def held(draft: Draft, rng: random.Random) -> str | None:
    """Keeps an operand alive one step longer that a kernel's result should overwrite."""
    planned = PlannedModule(scheduled_module(draft.finish()), "cpu")
    kernels = planned.facts.kernels
    found = []
    for computation in planned.computations.values():
        for i in computation.instructions:
            bound = {k for _, k, _ in i.aliasing}
            for source, index in overwritten(i, kernels):
                number = i.operands.index(source)
                if not index and number not in bound:
                    found.append((i.name, number))
    if not found:
        return None
    name, operand = rng.choice(found)
    changed = Draft(draft.finish())
    add_holds(changed.proto, {name: [operand]})
    draft.load(changed.finish())
    return f"operand {operand} of {name} is held"


def freed(draft: Draft, rng: random.Random) -> str | None:
    """Removes what fixes the memory of a kernel's results: a held operand, or a binding."""
    kernels = _kernels(draft)
    found: list[tuple[Any, Any]] = []
    for body in draft.scheduled():
        for i in body.instructions:
            if ".holds_" in i.name or (i.name in kernels and i.output_operand_aliasing):
                found.append((body, i))
    if not found:
        return None
    body, i = rng.choice(found)
    name = i.name
    if i.opcode == "fusion":
        del i.output_operand_aliasing[:]
        return f"{name} is bound no more"
    draft.set_order_without(body, i)
    return f"{name} is gone"


def read_late(draft: Draft, rng: random.Random) -> str | None:
    """Moves another reader of a kernel's operand behind the kernel."""
    kernels, found = _kernels(draft), []
    for body in draft.scheduled():
        for i in body.instructions:
            if i.name in kernels and not i.output_operand_aliasing:
                for k in i.operand_ids:
                    source = draft.sources(body)[k]
                    found += [(body, r, i) for r in draft.readers(body, source) if r.id != i.id]
    rng.shuffle(found)
    for body, reader, kernel in found:
        if order.delay(draft, body, reader, kernel):
            return f"{reader.name} runs after {kernel.name}, which reads the same"
    return None
