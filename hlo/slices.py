"""Where a step of an executable reads and writes: slices of XLA's allocations."""

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
    """A slice of memory, and whether a thunk reads it, writes it, or both (sorts in place).

    Attributes:
      shape: the serialized ShapeProto of the array in it; b"" where the executable does not say.
    """

    slice: Slice
    reads: bool
    writes: bool
    shape: bytes = dataclasses.field(default=b"", compare=False)
