"""Which arrays of a forward loop's state the backward loop can have again by undoing updates.

An iteration overwrites a part of such an array, as a row of a trajectory or of a cache, and leaves
the rest. Kept are the parts alone (`hlo.rewrite.loop_states`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hlo.module import Instruction
from hlo.shapes import cut_dimensions
from hlo.wire import INTEGERS
from olla_xla.remat.loops.body import LoopBody
from olla_xla.remat.loops.nodes import Node
from olla_xla.remat.loops.pairs import ScanPair
from olla_xla.remat.loops.recipes import Recipe

_SMALLER = 2
"""Times that an array is larger than the part of it that an iteration overwrites, at least."""


def overwritten(pair: ScanPair) -> dict[int, tuple[int, Node, bool]]:
    """Finds arrays that a loop overwrites in part, which the backward loop can undo as it goes back
    one iteration at a time: value number -> (state element, the dynamic-update-slice, whether it is
    the array after that, not before).
    """
    if not pair.goes_back:
        return {}
    body = pair.writer.body
    state = body.leaves(body.computation.parameters[0])
    slices = {residual.written for residual in pair.scan_residuals}
    arrays: dict[int, tuple[int, Node, bool]] = {}
    for index, end in body.root.items():
        update = end.behind
        if index[0] in slices or update.i.opcode != "dynamic-update-slice":
            continue
        if _is_undone(body, update, state[index]):
            arrays[body.number(state[index])] = index[0], update, False
            arrays[body.number(update)] = index[0], update, True
    return arrays


def moving(update: Node) -> list[int]:
    """The dimensions along which a dynamic-update-slice replaces a part, not all."""
    return cut_dimensions(update.operands[1].shape.dimensions, update.shape.dimensions)


def _is_undone(body: LoopBody, update: Node, array: Node) -> bool:
    """Whether the backward loop can undo an update: of a small part, at indices it can compute."""
    whole, part, *indices = update.operands
    small = _SMALLER * part.shape.bytes <= whole.shape.bytes
    here = whole.shape.element_bits >= 8 and not whole.shape.is_host
    if whole.behind is not array or not small or not here:
        return False
    return all(_can_be_had(update.owner, k) for k in indices)


def _can_be_had(owner: Instruction, index: Node) -> bool:
    """Whether the backward loop can compute an index of an update in `owner`: it comes from outside
    that instruction, or is made in it by steps that each give one integer.
    """
    if index.owner is not owner or index.i.opcode == "parameter":
        return True
    shape = index.shape
    is_one = shape.num_elements == 1 and shape.element_type in INTEGERS
    is_here = owner.opcode == "fusion" and index.i.computation is owner.called[0]
    return is_one and is_here and all(_can_be_had(owner, k) for k in index.operands)


def restoring(
    body: LoopBody,
    element: int,
    update: Node,
    is_after: bool,
    made_of: Callable[[int], Iterable[int] | None],
) -> Recipe:
    """Makes the recipe of an array that the backward loop restores by undoing an update. It reads
    those indices of the update that are computed without arrays of the state; the others are
    stored.

    Args:
      body: of the forward loop. element, update, is_after: as of `overwritten`.
      made_of: value number -> numbers that it is made of; None if in the state or not made.
    """
    indices = [body.number(update.operands[2 + k].behind) for k in moving(update)]
    needs = tuple(n for n in indices if _is_apart(n, made_of))
    return Recipe(update, update.owner, None, needs, restored=element, is_after=is_after)


def _is_apart(number: int, made_of: Callable[[int], Iterable[int] | None]) -> bool:
    """Whether value `number` is made of no array of the state: `made_of` gives numbers, or None."""
    waiting, seen = [number], set[int]()
    while waiting:
        if (n := waiting.pop()) in seen:
            continue
        seen.add(n)
        if (needs := made_of(n)) is None:
            return False
        waiting += needs
    return True
