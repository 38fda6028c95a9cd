"""Reads XLA's buffer assignment from a serialized TPU executable."""

from hlo.module import HloError
from hlo.riegeli import Decompress, read_message
from hlo.wire import Message, read_varint

_EXECUTABLE, _PROGRAM, _DUMP, _ASSIGNMENT = 1, 2, 6, 3
"""Fields on the way to it: TpuExecutableProto is not public, the HloProto inside it is."""


def read_tpu_assignment(data: bytes, decompress: Decompress) -> bytes:
    """Returns the serialized BufferAssignmentProto in a TPU executable written by `serialize`.

    Args:
      data: the bytes. decompress: see `read_message`.

    Raises:
      HloError: it is no such executable, or is written in a format that is not known here.
    """
    try:
        length, start = read_varint(data, 0)  # IFRT's own metadata come first
        parts = read_message(data[start + length :], "xla.TpuExecutableProto", decompress)
        # Each record that was merged has a part of it.
        executables = Message(parts.get((), b"")).messages(_EXECUTABLE)
        programs = [p for e in executables for p in e.messages(_PROGRAM)]
        assignment = b"".join(d.blob(_ASSIGNMENT) for p in programs for d in p.messages(_DUMP))
    except (IndexError, ValueError, RecursionError) as error:  # of bytes that are no message
        if isinstance(error, HloError):
            raise
        raise HloError("not a TPU's executable") from error
    if not assignment:
        raise HloError("the executable has no buffer assignment")
    return assignment
