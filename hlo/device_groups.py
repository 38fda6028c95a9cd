"""The groups of devices of a collective, which XLA writes in several ways, as one list."""

import itertools
import math
from collections.abc import Iterator, Sequence

from hlo.module import HloError
from hlo.wire import Message, packed_integers

Groups = tuple[tuple[int, ...], ...]

_GROUPS, _LIST, _IOTA, _MESH = 49, 87, 92, 93
"""Fields of an instruction: replica_groups, collective_device_list, iota_collective_device_list,
mesh_axes_replica_group_list."""

_WAYS = frozenset({_GROUPS, _LIST, _IOTA, _MESH})

_CHANNEL, _PAIRS, _GLOBAL = 26, 52, 71
"""channel_id, source_target_pairs, use_global_device_ids: who else is meant by the groups."""


def groups_listed(data: bytes) -> bytes:
    """A key of a serialized HLO instruction that does not depend on how device groups are spelt.

    Raises:
      HloError: `data` is no instruction.
    """
    message = Message(data)
    if not message.numbers() & _WAYS:
        return data
    found = device_groups(message)
    return data if found is None else message.without(_WAYS).encode() + repr(found).encode()


def participants(data: bytes) -> bytes:
    """A key of which devices exchange data with each other in a serialized collective instruction.

    Raises:
      HloError: `data` is no instruction.
    """
    message = Message(data)
    others = message.numbers() - {*_WAYS, _CHANNEL, _PAIRS, _GLOBAL}
    return groups_listed(message.without(others).encode())


def device_groups(instruction: Message) -> Groups | None:
    """The groups of devices that exchange data in a collective: sorted groups of device numbers.

    None where there are none, or they are written in a way that is not known here.
    """
    written = instruction.numbers() & _WAYS
    if len(written) != 1:
        return None
    (way,) = written
    if way == _GROUPS:
        found = _listed(instruction.messages(_GROUPS))
    elif way == _LIST:
        whole = instruction.message(_LIST)
        found = _listed(whole.messages(1)) if whole.numbers() <= {1} else None
    elif way == _IOTA:
        found = _reshaped(instruction.message(_IOTA))
    else:
        found = _along_axes(instruction.message(_MESH))
    return None if found is None else tuple(sorted(found))


def _listed(groups: list[Message]) -> list[tuple[int, ...]]:
    return [tuple(_numbers(group.blob(1))) for group in groups]


def _reshaped(iota: Message) -> list[tuple[int, ...]] | None:
    """The groups of an iota tile assignment: 0, 1, 2, ... reshaped, transposed, cut into groups.

    None where its numbers contradict each other.
    """
    extents, order = list(_numbers(iota.blob(3))), list(_numbers(iota.blob(4)))
    size = iota.integer(2)
    if not extents or size < 1 or iota.integer(1) * size != math.prod(extents):
        return None
    return _cut(_transposed(extents, order or range(len(extents))), size)


def _along_axes(groups: Message) -> list[tuple[int, ...]] | None:
    """Groups of devices that differ only along some axes of a mesh of all devices, in order."""
    mesh = groups.message(1)
    axes = groups.messages(2)
    if mesh.numbers() != {1} or any(axis.numbers() - {1} for axis in axes):
        return None  # devices in another order, or parts of axes
    extents = [axis.integer(2) for axis in mesh.messages(1)]
    grouped = [axis.integer(1) for axis in axes]
    if len(set(grouped)) != len(grouped) or not set(grouped) <= set(range(len(extents))):
        return None
    others = [k for k in range(len(extents)) if k not in grouped]
    return _cut(_transposed(extents, [*others, *grouped]), math.prod(extents[k] for k in grouped))


def _transposed(extents: Sequence[int], order: Sequence[int]) -> list[int]:
    """The numbers from 0, as an array of these extents, in the order of its dimensions."""
    strides = [math.prod(extents[k + 1 :]) for k in range(len(extents))]
    places = itertools.product(*(range(0, extents[k] * strides[k], strides[k]) for k in order))
    return [sum(place) for place in places]


def _cut(numbers: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(part) for part in itertools.batched(numbers, size)]


def _numbers(packed: bytes) -> Iterator[int]:
    """Packed integers of at least 0. Raises HloError."""
    for value in packed_integers(packed):
        if value < 0:
            raise HloError("a device has a negative number")
        yield value
