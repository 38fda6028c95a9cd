"""Reads the groups of devices of a collective, which XLA spells in several ways, as one list."""

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
    """Returns a key of a serialized instruction, equal however its device groups are spelt; `data`
    itself if it has none, or `device_groups` does not know them. HloError if it is no message.
    """
    message = Message(data)
    if not message.numbers() & _WAYS:
        return data
    groups = device_groups(message)
    return data if groups is None else message.without(_WAYS).encode() + repr(groups).encode()


def participants(data: bytes) -> bytes:
    """Returns a key, equal only for serialized collectives of the same devices. Raises HloError."""
    message = Message(data)
    others = message.numbers() - {*_WAYS, _CHANNEL, _PAIRS, _GLOBAL}
    return groups_listed(message.without(others).encode())


def device_groups(instruction: Message) -> Groups | None:
    """Returns a collective's device groups, each a tuple of device numbers, as a sorted tuple.
    None if the instruction has none, or they are spelt twice or in a way that is not known here.
    """
    written = instruction.numbers() & _WAYS
    if len(written) != 1:
        return None
    (way,) = written
    if way == _GROUPS:
        groups = _listed(instruction.messages(_GROUPS))
    elif way == _LIST:
        whole = instruction.message(_LIST)
        groups = _listed(whole.messages(1)) if whole.numbers() <= {1} else None
    elif way == _IOTA:
        groups = _reshaped(instruction.message(_IOTA))
    else:
        groups = _along_axes(instruction.message(_MESH))
    return None if groups is None else tuple(sorted(groups))


def _listed(groups: list[Message]) -> list[tuple[int, ...]]:
    return [tuple(_numbers(group.blob(1))) for group in groups]


def _reshaped(iota: Message) -> list[tuple[int, ...]] | None:
    """Lists the groups of an IotaReplicaGroupListProto: 0, 1, ... reshaped, transposed and cut.
    None if its sizes do not fit together.
    """
    extents, order = list(_numbers(iota.blob(3))), list(_numbers(iota.blob(4)))
    size = iota.integer(2)
    if not extents or size < 1 or iota.integer(1) * size != math.prod(extents):
        return None
    return _cut(_transposed(extents, order or range(len(extents))), size)


def _along_axes(groups: Message) -> list[tuple[int, ...]] | None:
    """Lists the groups of a MeshAxesReplicaGroupListProto.
    None if it gives devices in another order, parts of axes, or an axis twice or not in the mesh.
    """
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
    """Transposes an array of these extents that holds 0, 1, 2, ... and returns it flattened."""
    strides = [math.prod(extents[k + 1 :]) for k in range(len(extents))]
    places = itertools.product(*(range(0, extents[k] * strides[k], strides[k]) for k in order))
    return [sum(place) for place in places]


def _cut(numbers: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(part) for part in itertools.batched(numbers, size)]


def _numbers(packed: bytes) -> Iterator[int]:
    """Yields the integers of a packed protobuf field. Raises HloError at a negative one."""
    for value in packed_integers(packed):
        if value < 0:
            raise HloError("a device has a negative number")
        yield value
