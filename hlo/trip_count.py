"""The number of iterations of a while loop."""

import json

from hlo.module import Instruction

_COPIES = ("copy", "bitcast")


def trip_count(loop: Instruction) -> int | None:
    """Returns a while loop's number of iterations, by XLA's annotation or else by its condition.
    None if it is not known. XLA:TPU writes no annotation; its conditions compare a counter.
    """
    try:
        return int(json.loads(loop.backend_config)["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError):
        return _counted(loop)


def _counted(loop: Instruction) -> int | None:
    """Counts iterations of a while whose counter goes from 0 by 1 to a constant; else None."""
    body, condition = loop.called
    test, result, start = condition.root, body.root, loop.operands[0]
    if test is None or result is None or test.opcode != "compare" or test.direction != "LT":
        return None
    counter, limit = (o.behind(*_COPIES) for o in test.operands)
    if counter.opcode != "get-tuple-element" or limit.integer is None:
        return None
    number = counter.tuple_index
    if result.opcode != "tuple" or start.opcode != "tuple":
        return None
    following, first = (
        result.operands[number].behind(*_COPIES),
        start.operands[number].behind(*_COPIES),
    )
    if following.opcode != "add" or first.integer != 0:
        return None
    old, step = (o.behind(*_COPIES) for o in following.operands)
    is_same = old.opcode == "get-tuple-element" and old.tuple_index == number
    return max(limit.integer, 0) if is_same and step.integer == 1 else None
