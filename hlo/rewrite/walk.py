"""The order in which XLA walks a computation's instructions.

Values and buffers are numbered in it, and the number decides ties in buffer assignment. XLA walks a
module that it read as `HloComputation::MakeInstructionPostOrder` says; so what is written lists its
instructions that way, and a view of it (hlo.module) numbers them as XLA will.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo import xla_pb2

__all__ = ["post_order", "put_in_post_order"]


def put_in_post_order(computation: xla_pb2.HloComputationProto) -> None:
    """Lists the instructions of a computation in the order in which XLA will walk them."""
    listed = [i.id for i in computation.instructions]
    walked = post_order(computation.instructions)
    if [i.id for i in walked] != listed:
        place = {i.id: k for k, i in enumerate(walked)}
        computation.instructions.sort(key=lambda i: place[i.id])


def post_order(
    instructions: Sequence[xla_pb2.HloInstructionProto],
) -> list[xla_pb2.HloInstructionProto]:
    """The order in which XLA will walk the instructions; it decides ties between their buffers."""
    by_id = {i.id: i for i in instructions}
    read = {k for i in instructions for k in i.operand_ids}
    begun: set[int] = set()
    done: dict[int, None] = {}
    for last in sorted(by_id.keys() - read):
        stack = [last]
        while stack:
            k = stack[-1]
            if k in begun:
                done[stack.pop()] = None
                continue
            begun.add(k)
            stack += reversed(by_id[k].operand_ids)
            stack += by_id[k].control_predecessor_ids
    return [by_id[k] for k in done]
