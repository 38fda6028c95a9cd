"""Slices of XLA's allocations, and how a thunk of an executable accesses them."""

import dataclasses


@dataclasses.dataclass(frozen=True, order=True)
class Slice:
    """A range of memory: bytes [offset, offset + size) of one allocation."""

    allocation: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the slice."""
        return self.offset + self.size


@dataclasses.dataclass(frozen=True)
class Access:
    """How a thunk uses a slice of memory: whether it reads it, writes it, or both.

    Attributes:
      shape: the serialized ShapeProto of the array in it; b"" where the executable does not say.
    """

    slice: Slice
    reads: bool
    writes: bool
    shape: bytes = dataclasses.field(default=b"", compare=False)
