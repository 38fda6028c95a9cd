"""How arguments are passed to machine code: as 8-byte words in memory, one after the other.

A number is one word. An array is five words, and two for each dimension: two that only reference
counting needs, number of items, bytes of an item, address; then shape and strides. A tuple is its
items.
"""

import ctypes
import dataclasses
import functools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Kinds = tuple[Any, ...]
"""The types of arguments, as far as machine code depends on them."""

_REMEMBERED, _REMEMBERED_BYTES = 16, 2**20
"""Tuples whose words are cached, at least, and the most bytes of arrays that each may have."""


def flattened(arguments: tuple[Any, ...]) -> tuple[Kinds, bytes]:
    """Converts a compiled loop's arguments to what its machine code takes: (their types, the 8-byte
    words that stand for them). TypeError if one is no number, array of a type that loops take, or
    tuple of these.
    """
    kinds: list[Any] = []
    words: list[bytes] = []
    _flatten(arguments, kinds, words)
    return tuple(kinds), b"".join(words)


_HEADER = object.__basicsize__
"""Where an array object holds its address, the first field of NumPy's PyArrayObject_fields."""

_ORDERED, _OTHER = 0x501, 0x502
"""Array flags that machine code depends on, as NumPy numbers them: C-contiguous, aligned,
writeable; for arrays that are not C-contiguous: Fortran-contiguous, aligned, writeable."""

_DTYPES = tuple(np.dtype(t) for t in ("?", "i1", "u1", "i4", "u4", "i8", "u8", "f8"))
_ITEMSIZES = tuple(dtype.itemsize for dtype in _DTYPES)
_DTYPE_BY_ID = {id(dtype): k for k, dtype in enumerate(_DTYPES)}

_address = ctypes.c_size_t.from_address


def _dtype(dtype: np.dtype) -> int:
    """The number of a NumPy type in `_DTYPES`, those that loops take; TypeError if it has none."""
    if dtype not in _DTYPES:
        raise TypeError(f"olla_xla's compiled loops cannot take arrays of type {dtype}")
    return _DTYPES.index(dtype)


_SCALARS = (np.int64, np.bool_, np.float64)
_PACK = {
    int: struct.Struct("q").pack,
    bool: struct.Struct("q").pack,
    float: struct.Struct("d").pack,
}
_PACK_ARRAY = tuple(struct.Struct(f"{5 + 2 * ndim}q").pack for ndim in range(4))
_pack_plain, _PLAIN = _PACK_ARRAY[1], 1 << 8 | _ORDERED << 16


def _flatten(values: tuple[Any, ...], kinds: list[Any], words: list[bytes]) -> int:
    """Appends each value's type to `kinds`, its 8-byte words to `words`; returns arrays' bytes."""
    taken = 0
    for value in values:
        kind = type(value)
        if kind is np.ndarray:
            number = _DTYPE_BY_ID.get(id(value.dtype))
            number = _dtype(value.dtype) if number is None else number
            flags = value.flags.num
            address = _address(id(value) + _HEADER).value
            itemsize = _ITEMSIZES[number]
            if value.ndim == 1 and flags & _ORDERED == _ORDERED:  # as below; nearly all are so
                size = len(value)
                kinds.append(number | _PLAIN)
                words.append(_pack_plain(0, 0, size, itemsize, address, size, itemsize))
            else:
                ndim, size = value.ndim, value.size
                flags &= _ORDERED if flags & 1 else _OTHER
                kinds.append(number | ndim << 8 | flags << 16)
                pack = _PACK_ARRAY[ndim]
                words.append(pack(0, 0, size, itemsize, address, *value.shape, *value.strides))
            taken += size * itemsize
        elif kind is int or kind is bool or kind is float:
            kinds.append(kind)
            words.append(_PACK[kind](value))
        elif isinstance(value, tuple):
            nested = _tuple(value)
            kinds.append(nested.kind)
            words.append(nested.words)
            taken += nested.bytes
        elif kind in _SCALARS:
            item = value.item()
            kinds.append(type(item))
            words.append(_PACK[type(item)](item))
        else:
            raise TypeError(f"a compiled loop accepts arrays and numbers, but no {kind.__name__}")
    return taken


@dataclasses.dataclass(frozen=True, eq=False)
class _TupleKind:
    """The type of a tuple argument: its class and its elements' types, one object for all alike."""

    type: type
    kinds: Kinds


class _Tuple(NamedTuple):
    """A tuple argument as machine code takes it: its type, the 8-byte words that stand for it, and
    the bytes of its arrays, which `value` keeps from being moved or freed.
    """

    value: tuple[Any, ...]
    kind: _TupleKind
    words: bytes
    bytes: int


_tuple_kind = functools.cache(_TupleKind)


_young: dict[int, _Tuple] = {}
_old: dict[int, _Tuple] = {}


def _tuple(value: tuple[Any, ...]) -> _Tuple:
    """Converts a tuple argument to its type and words; cached, as searches pass the same often."""
    global _young, _old
    packed = _young.get(id(value)) or _old.get(id(value))
    if packed is not None and packed.value is value:
        return packed
    kinds: list[Any] = []
    words: list[bytes] = []
    taken = _flatten(value, kinds, words)
    packed = _Tuple(value, _tuple_kind(type(value), tuple(kinds)), b"".join(words), taken)
    if taken <= _REMEMBERED_BYTES:
        if len(_young) >= _REMEMBERED:
            _old, _young = _young, {}
        _young[id(value)] = packed
    return packed


def parameters(kinds: Kinds) -> Iterator[str]:
    """Yields LLVM types of a loop's parameters: one for each 8-byte word of its arguments."""
    for kind in kinds:
        if isinstance(kind, _TupleKind):
            yield from parameters(kind.kinds)
        elif isinstance(kind, int):
            yield from ("ptr", "ptr", "i64", "i64", "ptr", *["i64"] * (2 * (kind >> 8 & 0xFF)))
        else:
            yield {int: "i64", bool: "i8", float: "double"}[kind]


def spelled(kinds: Kinds) -> list[Any]:
    """Argument types as nested lists of numbers and names, with the same `repr` in every process;
    `kinds` are those that `flattened` returns.
    """
    parts: list[Any] = []
    for kind in kinds:
        if isinstance(kind, _TupleKind):
            fields = getattr(kind.type, "_fields", ())
            name = f"{kind.type.__module__}.{kind.type.__qualname__}"
            parts.append((name, fields, spelled(kind.kinds)))
        else:
            parts.append(kind if isinstance(kind, int) else kind.__name__)
    return parts
