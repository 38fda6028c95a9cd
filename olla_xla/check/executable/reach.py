"""Which elements of a computation's parameters each element of its result may depend on."""

from __future__ import annotations

from collections.abc import Iterable

from hlo.shapes import ShapeIndex
from olla_xla.check.executable.program import Body, Op, acts, leaves, may_repeat

Reach = dict[ShapeIndex, int]
"""Leaf index -> set of parameter elements, as bits."""


def reach(body: Body, given: list[Reach], effects: list[int]) -> Reach:
    """The parameter elements that each leaf of a computation's result depends on, as bit sets.

    Args:
      body: the computation. given: for each parameter, the bits of its leaves.
      effects: the bits of each effect are appended, except for collectives.
    """
    at: dict[Op, Reach] = dict(zip(body.parameters, given, strict=True))
    for op in body.ops:
        if op.opcode == "parameter":
            continue
        operands = [at[o] for o in op.operands]
        if acts(op) and not may_repeat(op):
            effects.append(_either(found for operand in operands for found in operand.values()))
        inner = _CALLING.get(op.opcode)
        if inner is not None:
            at[op] = inner(op, operands, effects)
        else:
            at[op] = _HANDLERS.get(op.opcode, _plain)(op, operands)
    return at[body.result]


def _either(sets: Iterable[int]) -> int:
    result = 0
    for found in sets:
        result |= found
    return result


def _plain(op: Op, operands: list[Reach]) -> Reach:
    """Each leaf of the result depends on all operands."""
    whole = _either(found for operand in operands for found in operand.values())
    return {i: whole for i, _ in leaves(op.shape)}


def _same(op: Op, operands: list[Reach]) -> Reach:
    return operands[0] if len(operands) == 1 else _pack(op, operands)


def _pack(op: Op, operands: list[Reach]) -> Reach:
    return {(k, *i): found for k, operand in enumerate(operands) for i, found in operand.items()}


def _element(op: Op, operands: list[Reach]) -> Reach:
    k = op.proto.tuple_index
    if not op.shape.is_tuple:
        return {(): operands[0][(k,)]}
    return {i[1:]: found for i, found in operands[0].items() if i[0] == k}


def _call(op: Op, operands: list[Reach], effects: list[int]) -> Reach:
    return reach(op.called[0], operands, effects)


def _begin(op: Op, operands: list[Reach], effects: list[int]) -> Reach:
    """async-start: (operands, result, context)."""
    result = _plain(op, operands)
    result |= {(0, k, *i): found for k, given in enumerate(operands) for i, found in given.items()}
    return result | {(1, *i): found for i, found in _call(op, operands, effects).items()}


def _done(op: Op, operands: list[Reach]) -> Reach:
    result = _plain(op, operands)
    return result | {i[1:]: found for i, found in operands[0].items() if i and i[0] == 1}


def _choose(op: Op, operands: list[Reach], effects: list[int]) -> Reach:
    index, inner = _either(operands[0].values()), []
    branches = [
        reach(body, [given], inner) for body, given in zip(op.called, operands[1:], strict=True)
    ]
    effects += [index | found for found in inner]
    return {i: index | _either(b[i] for b in branches) for i, _ in leaves(op.shape)}


def _loop(op: Op, operands: list[Reach], effects: list[int]) -> Reach:
    body, condition = op.called
    state = operands[0]
    while True:
        inner: list[int] = []
        again = reach(body, [state], inner)
        iterations = _either(reach(condition, [state], inner).values())
        more = {i: found | again[i] | iterations for i, found in state.items()}
        if more == state:
            effects += [iterations | found for found in inner]
            return state
        state = more


_HANDLERS = {
    "bitcast": _same,
    "copy": _same,
    "domain": _same,
    "add-dependency": lambda op, operands: operands[0],
    "async-update": _same,
    "opt-barrier": _same,
    "optimization-barrier": _same,
    "tuple": _pack,
    "get-tuple-element": _element,
    "async-done": _done,
}

_CALLING = {
    "fusion": _call,
    "call": _call,
    "async-start": _begin,
    "conditional": _choose,
    "while": _loop,
}
