"""Shapes: dtype, dimensions, layout and memory space to bytes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

from hlo import xla_pb2

ShapeIndex = tuple[int, ...]
"""Path into a nested tuple shape; () is the shape itself."""

POINTER_BYTES = 8
"""Bytes of one entry of a tuple's index table."""

TUPLE, OPAQUE, TOKEN = 13, 14, 17

WIDER = frozenset({(10, 11), (16, 11), (10, 12), (16, 12), (11, 12)})
"""Element types f16, f32, f64 and bf16; from and to which converting keeps every value."""

HOST_MEMORY_SPACE = 5
"""XLA's memory space (layout colour) for buffers in host memory."""

# XLA PrimitiveType -> bits per element.
_BITS = {
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33), 8),
    **dict.fromkeys((3, 7, 10, 16), 16),
    **dict.fromkeys((4, 8, 11), 32),
    **dict.fromkeys((5, 9, 12, 15), 64),
    **dict.fromkeys((18,), 128),
    **dict.fromkeys((21, 22, 32), 4),
    **dict.fromkeys((26, 27), 2),
    **dict.fromkeys((30, 31), 1),
}

_NAMES = {
    **dict(enumerate("pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64".split(), 1)),
    **{13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128"},
    **dict(enumerate("f8e5m2 f8e4m3fn s4 u4 f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz".split(), 19)),
    **dict(enumerate("s2 u2 f8e4m3 f8e3m4 s1 u1 f4e2m1fn f8e8m0fnu".split(), 26)),
}
"""XLA PrimitiveType -> XLA's name of it."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array, tuple, token or opaque shape, as XLA lays it out.

    Attributes:
      element_type: XLA PrimitiveType number.
      dimensions: extents, dimension 0 first; empty for scalars and tuples.
      elements: shapes of a tuple's elements; empty otherwise.
      minor_to_major: layout of the dimensions.
      memory_space: XLA colour; 0 is device memory, 5 host memory.
      element_bits: bits per stored element (sub-byte types are stored packed only if XLA says so).
      key: serialized proto; two shapes are equal to XLA exactly when their keys are.
      tiles: of its layout (TPU only), outermost first, as extents of its minormost dimensions.
    """

    element_type: int
    dimensions: tuple[int, ...]
    elements: tuple[Shape, ...]
    minor_to_major: tuple[int, ...]
    memory_space: int
    element_bits: int
    key: bytes
    tiles: tuple[tuple[int, ...], ...] = ()

    @property
    def is_tuple(self) -> bool:
        """Whether it is a tuple, whose buffer is an index table: a pointer for each element."""
        return self.element_type == TUPLE

    @property
    def is_array(self) -> bool:
        """Whether it is an array or scalar: neither tuple, token nor opaque."""
        return self.element_type not in (TUPLE, OPAQUE, TOKEN)

    @property
    def is_host(self) -> bool:
        """Whether it is an array in host memory."""
        return self.is_array and self.memory_space == HOST_MEMORY_SPACE

    @property
    def dtype(self) -> str:
        """XLA's name of the element type, such as "bf16"."""
        return _NAMES.get(self.element_type, f"type {self.element_type}")

    @property
    def text(self) -> str:
        """The type and extents as XLA prints them, without a layout: "f32[8,128]"."""
        if self.is_tuple:
            return f"({', '.join(e.text for e in self.elements)})"
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"

    @functools.cached_property
    def num_elements(self) -> int:
        """Product of the dimensions: an array's number of elements, 1 for a scalar."""
        count = 1
        for extent in self.dimensions:
            count *= extent
        return count

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes of this buffer, padded to tiles; of a tuple only its table, without elements."""
        if self.is_tuple:
            return POINTER_BYTES * len(self.elements)
        if not self.is_array:
            return POINTER_BYTES if self.element_type == OPAQUE else 0
        if not self.tiles:
            return self.unpadded_bytes
        return (self._stored(self.minor_to_major[::-1]) * self.element_bits + 7) // 8

    @property
    def unpadded_bytes(self) -> int:
        """Bytes of an array's elements, without padding to tiles; of other shapes, `bytes`."""
        if not self.is_array:
            return self.bytes
        return (self.num_elements * self.element_bits + 7) // 8

    def least_padded(self) -> tuple[int, tuple[int, ...]]:
        """Returns the least bytes, with padding to tiles, of all orders of the dimensions, and that
        order, most major one first. It is its own if no other is better; none is tried without
        tiles, or with more than 6 dimensions.
        """
        own = tuple(reversed(self.minor_to_major))
        best, order = self.bytes, own
        if not self.tiles or len(own) > _MOST_ORDERED:
            return best, order
        for other in itertools.permutations(own):
            size = (self._stored(other) * self.element_bits + 7) // 8
            if size < best:
                best, order = size, other
        return best, order

    def _stored(self, order: Sequence[int]) -> int:
        """Counts elements and padding to whole tiles, if dimensions had this order, major first."""
        extents = [self.dimensions[d] for d in order]
        for tile in self.tiles:
            extents = _tiled(extents, tile)
        return math.prod(extents)

    @property
    def tiled_dimensions(self) -> tuple[int, ...]:
        """The dimensions that tiles cut, the minormost first; () if there are no tiles."""
        return self.minor_to_major[: len(self.tiles[0])] if self.tiles else ()

    def converted(self, other: Shape) -> Shape:
        """Returns this array's shape with the element type and layout of `other`, of equal rank."""
        proto = xla_pb2.ShapeProto.FromString(self.key)
        proto.element_type = other.element_type
        proto.layout.CopyFrom(xla_pb2.ShapeProto.FromString(other.key).layout)
        return shape_from_proto(proto)

    def at(self, index: ShapeIndex) -> Shape:
        """Returns the subshape of a tuple shape at `index`; the shape itself at ()."""
        shape = self
        for i in index:
            shape = shape.elements[i]
        return shape

    def has(self, index: ShapeIndex) -> bool:
        """Whether it has a subshape at `index`; any shape has one at ()."""
        shape = self
        for i in index:
            if not 0 <= i < len(shape.elements):
                return False
            shape = shape.elements[i]
        return True

    def indices(self) -> Sequence[tuple[ShapeIndex, Shape]]:
        """Returns all (index, subshape) pairs, parents first; one, at (), if it is no tuple."""
        return self._indices

    @functools.cached_property
    def _indices(self) -> Sequence[tuple[ShapeIndex, Shape]]:
        inner = [((k, *index), s) for k, e in enumerate(self.elements) for index, s in e.indices()]
        return ((), self), *inner


_MOST_ORDERED = 6
"""Dimensions of a shape of which all orders are tried."""

_COMBINED = -(2**63)
"""In place of a tile's extent: that dimension and the next more minor one are tiled as one."""


def _tiled(extents: Sequence[int], tile: Sequence[int]) -> list[int]:
    """Returns an array's extents, major to minor, after its minormost ones are cut into a tile.
    Each cut dimension becomes its number of tiles; the tile's own extents are appended.
    """
    rank = len(tile)
    extents = [1] * (rank - len(extents)) + list(extents)
    outer, inner = extents[: len(extents) - rank], extents[len(extents) - rank :]
    joined, sizes, factor = [], [], 1
    for extent, size in zip(inner, tile, strict=True):
        factor *= extent
        if size != _COMBINED:
            joined.append(factor)
            sizes.append(size)
            factor = 1
    return [*outer, *(-(-e // t) for e, t in zip(joined, sizes, strict=True)), *sizes]


_INTERNED: dict[bytes, Shape] = {}


def shape_from_proto(proto: xla_pb2.ShapeProto) -> Shape:
    """Converts XLA's ShapeProto to a Shape; equal protos give the same object."""
    key = proto.SerializeToString(deterministic=True)
    shape = _INTERNED.get(key)
    if shape is None:
        bits = _BITS.get(proto.element_type, 0)
        if bits < 8 and bits:
            bits = 8
        bits = proto.layout.element_size_in_bits or bits
        shape = Shape(
            element_type=proto.element_type,
            dimensions=tuple(proto.dimensions),
            elements=tuple(shape_from_proto(t) for t in proto.tuple_shapes),
            minor_to_major=tuple(proto.layout.minor_to_major),
            tiles=tuple(tuple(tile.dimensions) for tile in proto.layout.tiles),
            memory_space=proto.layout.memory_space,
            element_bits=bits,
            key=key,
        )
        _INTERNED[key] = shape
    return shape


def cut_dimensions(part: Sequence[int], whole: Sequence[int]) -> list[int]:
    """Lists the dimensions in which `part` differs from `whole`, both extents of one rank."""
    both = zip(part, whole, strict=True)
    return [k for k, (some, every) in enumerate(both) if some != every]
