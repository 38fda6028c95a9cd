"""Loops with a known trip count: a while whose counter goes from 0 in steps of 1."""

import dataclasses
import json
from collections.abc import Sequence

import numpy as np

from hlo.module import Computation, Instruction, Module
from olla_xla.remat.cost.work import trips
from olla_xla.remat.loops.body import Affine, LoopBody
from olla_xla.remat.loops.indices import MOST_ITERATIONS, typed


@dataclasses.dataclass(eq=False)
class CountedLoop:
    """A while loop with a known number of iterations, counted from 0 by 1.

    Attributes:
      i: the while. body: the nodes of its body. site: the instruction that runs it among other
        loops: the while, or a call of nothing else, as XLA:CPU makes of small loops.
      counter: the element that counts from 0 in steps of 1. iterations: how many.
      start: the instruction that gives the initial value of each element of the state.
      fixed: elements that no iteration changes.
    """

    i: Instruction
    site: Instruction
    body: LoopBody
    counter: int
    iterations: int
    start: Sequence[Instruction]
    fixed: frozenset[int]


def counted_loop(
    i: Instruction, site: Instruction, target: str, *, together: bool
) -> CountedLoop | None:
    """Describes a while; None if its trip count is unknown or too large, or its form is unusual.
    `site`: the while, or a call of it alone. `together`: whether a CPU compiles it as one function.
    """
    body, condition = i.called
    (start,) = site.operands
    if body.root is None or start.opcode != "tuple" or body.root.opcode != "tuple":
        return None
    if any(s.is_tuple for s in i.shape.elements) or start.users != [site]:
        return None
    for computation in (body, condition):
        (parameter,) = computation.parameters
        if any(u.opcode != "get-tuple-element" for u in parameter.users):
            return None
    if any(u.opcode != "get-tuple-element" for u in site.users) or site.is_root:
        return None
    if i.side_effect or site.side_effect or any(map(_has_state, (body, condition))):
        return None
    nodes = LoopBody(body, target, together=together)
    state = nodes.leaves(body.parameters[0])
    fixed = frozenset(
        k for k in range(len(start.operands)) if nodes.root[(k,)].behind is state[(k,)]
    )
    constants = {k: start.operands[k].behind("copy", "bitcast").integer for k in fixed}
    types = [s.shape.element_type for s in start.operands]
    known = {(k,): typed(value, types[k]) for k, value in constants.items() if value is not None}
    counted = _count(nodes, LoopBody(condition, target, known), start.operands)
    if counted is None or counted[1] > MOST_ITERATIONS or not _says(i, *counted):
        return None
    counter, iterations = counted
    nodes.count({**known, (counter,): typed(np.arange(iterations), types[counter])})
    return CountedLoop(i, site, nodes, counter, iterations, start.operands, fixed)


def instructions_run(module: Module) -> int:
    """Counts the instructions that one run of a module executes, in fusions, in all branches and in
    all iterations; in one if their number is unknown.
    """
    counts: dict[Computation, int] = {}
    for computation in module.computations:  # callees come first
        counts[computation] = sum(
            1 + trips(i) * sum(counts[c] for c in i.called) for i in computation.instructions
        )
    return counts[module.entry]


def _has_state(computation: Computation) -> bool:
    """Whether results depend on how often something ran before, as a host callback's do. The check
    of changed modules takes such a loop as a whole, so that nothing in it may change.
    """
    return any(
        k.opcode in ("infeed", "recv", "rng", "rng-get-and-update-state")
        or (k.side_effect and any(s.is_array for _, s in k.shape.indices()))
        or any(map(_has_state, k.called))
        for k in computation.instructions
    )


def _count(
    body: LoopBody, tested: LoopBody, start: Sequence[Instruction]
) -> tuple[int, int] | None:
    """Finds (the state element that counts from 0 by 1, the number of iterations), or None, from
    the nodes of a loop's body, those of its condition (`tested`) and its initial state.
    """
    test = tested.root[()].behind
    if test.i.opcode != "compare" or test.i.direction != "LT":
        return None
    left, right = (tested.affine(o, whole=True) for o in test.operands)
    if left is None or left.element is None or right is None or right.element is not None:
        return None
    (counter,), iterations = left.element, right.offset
    begins_at_zero = start[counter].behind("copy", "bitcast").integer == 0
    is_counter = left == Affine((counter,), 1, 0)
    steps = body.affine(body.root[(counter,)]) == Affine((counter,), 1, 1)
    if iterations < 1 or not is_counter or not begins_at_zero or not steps:
        return None
    return counter, iterations


def _says(i: Instruction, counter: int, iterations: int) -> bool:
    """Whether XLA's notes on a loop (backend_config) agree with this counter and count, and stay
    true when state elements come and go. XLA:GPU takes offsets of slices from them
    (WhileLoopBackendConfig, `dynamic_slice_analysis.cc`): `known_init_step` has the counter's first
    value and step, `dynamic_variables` those of elements by their index. Only the counter may be
    among these: its index does not change.
    """
    if not i.backend_config:
        return True
    try:
        notes = json.loads(i.backend_config)
        known = int(notes.get("known_trip_count", {}).get("n", iterations))
        index = int(notes.get("known_induction_variable", {}).get("tuple_index", counter))
        steps = notes.get("known_init_step", {"step": 1})
        first, step = int(steps.get("init", 0)), int(steps.get("step", 0))
        others = {
            (int(v.get("tuple_index", 0)), int(v.get("init", first)), int(v.get("step", step)))
            for v in notes.get("dynamic_variables", ())
        }
    except (ValueError, AttributeError, TypeError):
        return False
    is_right = (known, index, first, step) == (iterations, counter, 0, 1)
    return is_right and others <= {(counter, 0, 1)}
