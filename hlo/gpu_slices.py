"""The slices of arrays that a GPU's dynamic_slice_fusion thunks work on, as XLA computes addresses.

Such a thunk has a piece of an operand or of a result in each iteration of a loop. The host computes
where it begins, from the number of the iteration, and does not read the module's index. Messages:
DynamicSliceFusionThunkProto (xla/backends/gpu/runtime/thunk.proto), DynamicSliceConfig
(xla/service/gpu/backend_configs.proto).
"""

from __future__ import annotations

from typing import NamedTuple

from hlo.wire import Message, packed_integers

THUNK = 60
"""Number of the field of a ThunkProto that such a thunk is in."""

_PARAMETERS, _RESULTS, _PARTS, _EMBEDDED = 1, 2, 5, 6
_NUMBER, _SHAPE, _DIMENSIONS = {_PARAMETERS: 1, _RESULTS: 2}, {_PARAMETERS: 3, _RESULTS: 4}, 3
_CONFIG = {_PARAMETERS: 4, _RESULTS: 5}
_LOOP, _OFFSET, _STRIDE, _TABLE, _LINEAR = 1, 2, 3, 4, 5


class MovingSlice(NamedTuple):
    """One operand or result of a GPU thunk that takes another slice of memory in each iteration.

    Attributes:
      is_result: which of the two. number: of the fusion's operand, or of its result.
      size: bytes of the part. dimensions: of the part.
      is_cut: whether it is a part of that array, and not the whole.
      loop: which enclosing loop's iterations count, 0 the innermost; None where none does.
      start, stride: in bytes; the part begins at start + stride * iteration.
      table: where it begins by iteration instead, or ().
    """

    is_result: bool
    number: int
    size: int
    dimensions: tuple[int, ...]
    is_cut: bool = False
    loop: int | None = None
    start: int = 0
    stride: int = 0
    table: tuple[int, ...] = ()

    def offset(self, iterations: tuple[int, ...]) -> int:
        """Where the part begins, in bytes, in an iteration of each enclosing loop, outermost first.

        XLA counts 0 where there is no such loop, and a table's last entry is used from then on.
        """
        k = 0
        if self.loop is not None and self.loop < len(iterations):
            k = iterations[len(iterations) - 1 - self.loop]
        if self.table:
            return self.table[min(k, len(self.table) - 1)]
        return self.start + self.stride * k


def moving_slices(body: Message) -> tuple[MovingSlice, ...]:
    """Reads the operands, then the results, of a serialized dynamic-slice fusion thunk."""
    sizes = {part.integer(1): part.integer(2) for part in body.messages(_PARTS)}
    found: list[MovingSlice] = []
    for kind in (_PARAMETERS, _RESULTS):
        for entry in body.messages(kind):
            plain = MovingSlice(
                kind == _RESULTS,
                entry.integer(_NUMBER[kind]),
                sizes.get(len(found), 0),
                packed_integers(Message(entry.blob(_SHAPE[kind])).blob(_DIMENSIONS)),
            )
            config = entry.messages(_CONFIG[kind])
            found.append(_configured(plain, config[0]) if config else plain)
    return tuple(found)


def embedded_thunks(body: Message) -> list[Message]:
    """The thunks that a dynamic-slice fusion thunk runs; their allocations are its slices."""
    return [thunk for sequence in body.messages(_EMBEDDED) for thunk in sequence.messages(1)]


def _configured(plain: MovingSlice, config: Message) -> MovingSlice:
    linear = config.messages(_LINEAR)
    where, first, second = (linear[0], 1, 2) if linear else (config, _OFFSET, _STRIDE)
    table = config.messages(_TABLE)
    return plain._replace(
        is_cut=True,
        loop=config.integer(_LOOP) if _LOOP in config.numbers() else None,
        start=where.signed(first),
        stride=where.signed(second),
        table=packed_integers(table[0].blob(1)) if table else (),
    )
