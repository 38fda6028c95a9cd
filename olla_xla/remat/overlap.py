"""Orders of loops' bodies in which transfers between devices start early enough to be hidden.

XLA's latency-hiding scheduler placed the starts of a body's transfers before recomputed
instructions were added. These may need the transfers' results sooner, or in another order. Here
each start moves, with what is made for it alone, so far ahead of its done that the work between
takes as long as the transfer. All transfers share one link, which takes them one after the other.
"""

import itertools
from collections.abc import Collection, Sequence

from hlo.exchange import is_asynchronous
from hlo.module import Computation, Instruction, Module
from hlo.rewrite.edit import Edit
from olla_xla.remat.cost.path import alone_seconds, path_seconds, transfers
from olla_xla.remat.cost.roofline import CostModel

_MOVING = frozenset(
    "bitcast broadcast concatenate constant convert copy dynamic-slice parameter reshape slice "
    "transpose tuple".split()
)


def hide_transfers(module: Module, bodies: Collection[str], cost: CostModel) -> Module:
    """Moves transfers' starts, in the computations named `bodies`, so early that other work hides
    them. Returns a new module, or `module` itself if the new orders are not predicted to be faster.
    """
    orders = dict(module.order)
    for computation in module.control_computations:
        if computation.name in bodies:
            order = _hiding(computation, cost)
            if order is not None:
                orders[computation.name] = tuple(i.name for i in order)
    if orders == module.order or path_seconds(module, cost, orders) >= path_seconds(module, cost):
        return module
    return Edit(module).schedule(orders).module()


def _hiding(computation: Computation, cost: CostModel) -> list[Instruction] | None:
    """An order of the computation in which transfers that grow start early enough to be hidden by
    work; None if there are none, or one cannot be moved.
    """
    sequence = sorted(computation.schedule or (), key=lambda i: not _is_there(i))  # stable
    dones = {start: done for done, start in transfers(sequence) if _grows(start, done)}
    if not dones:
        return None
    own = {start: _made_for(start) for start in dones}
    moved = set(itertools.chain.from_iterable(own.values()))
    rest = [i for i in sequence if i not in moved]
    at = {i: k for k, i in enumerate(rest)}
    if any(done not in at for done in dones.values()):
        return None  # one waits for another
    begins = [0.0, *itertools.accumulate(_main_seconds(i, cost, dones) for i in rest)]
    places: dict[int, list[list[Instruction]]] = {}
    link = begins[-1]
    for start in sorted(dones, key=lambda s: at[dones[s]], reverse=True):
        group = sorted(own[start], key=sequence.index)
        before = [o for i in group for o in (*i.operands, *i.control_predecessors) if o in at]
        first = max((at[o] + 1 for o in before), default=0)
        last = min(at[i] for i in (dones[start], *_waiting_for(group, rest)))
        link = min(begins[at[dones[start]]], link) - alone_seconds(start, cost)
        place = last
        while place > first and begins[place] > link:
            place -= 1
        if place < first:
            return None
        link = min(link, begins[place])
        places.setdefault(place, []).insert(0, group)
    order = []
    for k, i in enumerate((*rest, None)):
        order += itertools.chain.from_iterable(places.get(k, ()))
        order += [] if i is None else [i]
    return order if _is_possible(order) else None


def _is_there(i: Instruction) -> bool:
    """Whether an instruction is a parameter, a constant, or a bitcast or tuple element of one."""
    return i.behind("bitcast", "get-tuple-element").opcode in ("constant", "parameter")


def _grows(start: Instruction, done: Instruction) -> bool:
    """Whether a transfer's result has more bytes than its operands, as an all-gather's. Others,
    such as a reduce-scatter, best start as soon as their operands are ready.
    """
    return _array_bytes(done) > sum(map(_array_bytes, start.operands))


def _array_bytes(i: Instruction) -> int:
    return sum(shape.bytes for _, shape in i.shape.indices() if not shape.is_tuple)


def _made_for(start: Instruction) -> set[Instruction]:
    """A transfer's start and the conversions, slices and other moves that only it reads."""
    group = {start}
    waiting = list(start.operands)
    while waiting:
        i = waiting.pop()
        own = group.issuperset(i.users) and not _is_there(i) and not i.control_predecessors
        if i not in group and own and _only_moves(i):
            group.add(i)
            waiting += i.operands
    return group


def _only_moves(i: Instruction) -> bool:
    """Whether an instruction changes only the type and place of an array's elements; a fusion may
    compute scalars besides.
    """
    if i.opcode != "fusion":
        return i.opcode in _MOVING
    inside = i.called[0].instructions
    return all(k.opcode in _MOVING or not k.shape.dimensions for k in inside)


def _waiting_for(group: Sequence[Instruction], rest: Sequence[Instruction]) -> list[Instruction]:
    """The instructions in `rest` that must follow some of a group by control dependencies."""
    inside = set(group)
    return [i for i in rest if not inside.isdisjoint(i.control_predecessors)]


def _main_seconds(i: Instruction, cost: CostModel, dones: Collection[Instruction]) -> float:
    """Predicts the seconds of `i` on a GPU's main stream; 0 if it is asynchronous or in `dones`."""
    if i in dones or is_asynchronous(i):
        return 0.0
    return alone_seconds(i, cost)


def _is_possible(order: Sequence[Instruction]) -> bool:
    """Whether in this order all operands and control predecessors come before instructions."""
    seen: set[Instruction] = set()
    for i in order:
        if not seen.issuperset((*i.operands, *i.control_predecessors)):
            return False
        seen.add(i)
    return True
