"""Post-orders of graphs, and the post-order in which XLA walks a computation's instructions.

Values and buffers are numbered in it, and the number decides ties in buffer assignment. XLA walks a
module that it read as `HloComputation::MakeInstructionPostOrder` says; so what is written lists its
instructions that way, and a view of it (hlo.module) numbers them as XLA will.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from hlo import xla_pb2


def after_needs[K](
    numbers: Iterable[K],
    needs: Callable[[K], Iterable[K]],
    cycle: Callable[[K], Exception] | None = None,
) -> list[K]:
    """Returns all that is reached from `numbers`, in post-order: each after those that it needs.

    Args:
      numbers: where the walk begins. needs: what each needs, in the order in which it is visited.
      cycle: makes the error to raise where a number needs itself; None: such needs are ignored.
    """
    done: dict[K, None] = {}
    begun: set[K] = set()
    for first in numbers:
        path: list[tuple[K, Iterator[K]]] = [] if first in done else [(first, iter(needs(first)))]
        begun.add(first)
        while path:
            number, left = path[-1]
            missing = next((k for k in left if k not in done), None)
            if missing is None:
                done[number] = None
                path.pop()
            elif missing not in begun:
                begun.add(missing)
                path.append((missing, iter(needs(missing))))
            elif cycle is not None:
                raise cycle(missing)
    return list(done)


def post_order(
    instructions: Sequence[xla_pb2.HloInstructionProto],
) -> list[xla_pb2.HloInstructionProto]:
    """Sorts instructions into XLA's post-order, which decides ties between their buffers."""
    by_id = {i.id: i for i in instructions}
    read = {k for i in instructions for k in i.operand_ids}

    def needs(k: int) -> list[int]:
        return [*reversed(by_id[k].control_predecessor_ids), *by_id[k].operand_ids]

    return [by_id[k] for k in after_needs(sorted(by_id.keys() - read), needs)]
