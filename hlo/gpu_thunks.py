"""The kinds of thunks of XLA's GPU executables: which of their fields are slices, and what for.

Numbers are those of openxla/xla, xla/backends/gpu/runtime/thunk.proto. A field that XLA adds to a
kind is not seen; kinds that it adds are not known.
"""

import enum
from typing import NamedTuple


class Flow(enum.Enum):
    """How a thunk runs the thunks nested in it, if any.

    Once (SEQUENCE), in a LOOP, as a BRANCH, or on another stream (START), which DONE waits for.
    """

    NONE = enum.auto()
    SEQUENCE = enum.auto()  # runs them once
    START = enum.auto()  # begins them on another stream
    DONE = enum.auto()  # waits for those that another thunk began
    LOOP = enum.auto()
    BRANCH = enum.auto()


class Role(enum.Enum):
    """Whether a GPU thunk reads a slice, writes it or both; FLAGGED: as another field says."""

    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = enum.auto()  # it is not known which, or it does both
    FLAGGED = enum.auto()  # written where another field says so, else read


Path = tuple[int, ...]
Fields = dict[int, tuple[tuple[Path, Role], ...]]


class ThunkKind(NamedTuple):
    """One kind of GPU thunk: which fields of its proto are slices of memory, and how it uses them.

    Attributes:
      name: as in the proto.
      fields: field number -> for each slice in a message of it, the path of fields to the slice,
        and whether it is read or written.
      written: number of the field with flags, one for each flagged slice; or 0.
      kernel: path of fields to the name of the function that it launches; or ().
    """

    name: str
    fields: Fields = {}
    written: int = 0
    kernel: Path = ()


_PLAIN: Path = ()  # a BufferAllocationSliceProto
_SHAPED: Path = (1,)  # a ShapedSliceProto
_MAYBE: Path = (1, 1)  # a NullableShapedSliceProto


def _all(path: Path, **roles: tuple[int, ...]) -> Fields:
    """Makes `ThunkKind.fields` for fields that all have their slices of memory at one path.

    Args:
      path: of fields, to the slice. roles: numbers of the fields, as `reads`, `writes` and `both`.
    """
    of = {"reads": Role.READ, "writes": Role.WRITE, "both": Role.BOTH}
    return {k: ((path, of[role]),) for role, numbers in roles.items() for k in numbers}


def _exchanged(number: int) -> Fields:
    """Makes a collective's `ThunkKind.fields`: field `number` has slices it reads and writes."""
    return {number: (((2, 1), Role.READ), ((3, 1), Role.WRITE))}


_COPY = _all(_SHAPED, reads=(1,), writes=(2,))
_COPY_INSIDE: Fields = {1: (((1, 1), Role.READ), ((2, 1), Role.WRITE))}
_RESULT = _all(_PLAIN, writes=(1,))

KINDS: dict[int, ThunkKind] = {
    2: ThunkKind("sequential"),
    3: ThunkKind("copy", _COPY),
    4: ThunkKind("device_to_host_copy", _COPY_INSIDE),
    5: ThunkKind("host_to_device_copy", _COPY_INSIDE),
    6: ThunkKind("conditional", _all(_SHAPED, reads=(1,))),
    7: ThunkKind("while", _all(_PLAIN, reads=(1,))),
    8: ThunkKind("kernel", {1: ((_PLAIN, Role.FLAGGED),)}, 2, (3,)),
    9: ThunkKind("gemm", _all(_PLAIN, reads=(2, 3), both=(4,), writes=(5,))),
    11: ThunkKind("triangular_solve", _all(_SHAPED, reads=(2,), both=(3,), writes=(4,))),
    12: ThunkKind("replica_id", _RESULT),
    13: ThunkKind("device_to_device_copy", _COPY_INSIDE),
    14: ThunkKind("partition_id", _RESULT),
    15: ThunkKind("cudnn", {2: ((_SHAPED, Role.FLAGGED),)}, 4),
    16: ThunkKind("host_execute_start", _all(_SHAPED, reads=(2,), writes=(3,))),
    17: ThunkKind("host_execute_done", _all(_SHAPED, writes=(2,))),
    19: ThunkKind("memzero", _all(_SHAPED, writes=(1,))),
    20: ThunkKind("select_k", _all(_PLAIN, both=(1,))),
    21: ThunkKind("infeed", _all(_SHAPED, writes=(1,))),
    22: ThunkKind(
        "cublas_lt_matmul",
        # In the order of the custom call's operands. The matrix that is added may be the result.
        _all(_SHAPED, reads=(5, 6, 18, 11, 12, 13, 14, 9), both=(7, 10), writes=(8, 15, 16)),
    ),
    23: ThunkKind("outfeed", _all(_SHAPED, reads=(1,))),
    24: ThunkKind("norm", _all(_PLAIN, reads=(2, 3, 5, 8), both=(6, 7), writes=(4, 9, 10, 11))),
    25: ThunkKind(
        "convolution",
        _all(_SHAPED, reads=(2,), writes=(3,)) | _all(_PLAIN, writes=(4,)),
    ),
    26: ThunkKind(
        "convolution_reorder",
        _COPY | {3: (((1, 1), Role.READ), ((2, 1), Role.WRITE))},
    ),
    27: ThunkKind("fft", _all(_PLAIN, reads=(3,), writes=(4,))),
    28: ThunkKind("memset32bit_value", _RESULT),
    30: ThunkKind("custom_call", _all(_MAYBE, reads=(2,), writes=(3,))),
    32: ThunkKind("host_send", _all(_PLAIN, reads=(2,))),
    33: ThunkKind("host_send_done", _all(_SHAPED, reads=(4,))),
    34: ThunkKind("host_recv", _all(_PLAIN, writes=(2,))),
    35: ThunkKind("host_recv_done", _all(_SHAPED, writes=(4,))),
    36: ThunkKind("custom_kernel", {1: ((_SHAPED, Role.FLAGGED),)}, 2, (3, 1)),
    38: ThunkKind("all_gather", _exchanged(3)),
    39: ThunkKind("all_reduce", _exchanged(3)),
    40: ThunkKind("reduce_scatter", _exchanged(3)),
    41: ThunkKind("all_to_all", _exchanged(3)),
    # All operands are named as destinations too, and written is the one that the result lies over.
    42: ThunkKind("ragged_all_to_all", {3: (((2, 1), Role.READ), ((3, 1), Role.BOTH))}),
    43: ThunkKind("collective_permute", _exchanged(2)),
    44: ThunkKind("send", _exchanged(2)),
    45: ThunkKind("recv", _exchanged(2)),
    46: ThunkKind("collective_broadcast", _exchanged(2)),
    47: ThunkKind("collective_group"),
    57: ThunkKind("async_start"),
    58: ThunkKind("async_done"),
    59: ThunkKind("collective_kernel", _exchanged(4)),
    60: ThunkKind("dynamic_slice_fusion", _all(_PLAIN, reads=(3,), writes=(4,))),
    61: ThunkKind("rng_seed", _RESULT),
    62: ThunkKind("collective_reduce", _exchanged(2)),
}
"""Field number in ThunkProto -> kind of thunk."""

FLOWS: dict[int, tuple[Flow, dict[int, bool], int]] = {
    2: (Flow.SEQUENCE, {1: False}, 0),
    6: (Flow.BRANCH, {2: True}, 0),
    7: (Flow.LOOP, {2: True, 3: True}, 0),
    47: (Flow.SEQUENCE, {2: False}, 0),
    57: (Flow.START, {3: True}, 1),
    58: (Flow.DONE, {}, 1),
}
"""Field number -> what it does with thunks inside; fields of those, and whether each is a
ThunkSequenceProto, or a thunk; the field that a start and its done have in common."""
