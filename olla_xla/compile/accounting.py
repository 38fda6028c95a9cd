"""What XLA reports of an executable: its total on the device, its final module, its donations."""

from __future__ import annotations

import collections
import dataclasses
import logging
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

from hlo import buffer_assignment, tpu_executable
from hlo.backend import platform
from hlo.backend.tpu import TPU
from hlo.module import (
    Computation,
    HloError,
    Instruction,
    Module,
    module_from_bytes,
    parse_module_proto,
)
from olla_xla.compile.jax_private import platform_of
from olla_xla.errors import OllaError
from olla_xla.memory import snappy

_logger = logging.getLogger("olla_xla")


@dataclasses.dataclass(frozen=True)
class Donation:
    """Numbers of donated argument arrays of an executable, by what XLA did with their memory.

    Attributes:
      requested: arrays that the caller donated. aliased: those whose memory an output takes over.
      unaliased: donated arrays that no output fits; XLA may reuse them for temporaries only.
      dropped: donated arrays that XLA ignored, such as unused arguments; not reused.
      aliased_bytes: bytes of the outputs that lie in donated memory.
    """

    requested: int
    aliased: int
    unaliased: int
    dropped: int
    aliased_bytes: int


def executable_module(compiled: jax.stages.Compiled) -> Any:
    """Returns XLA's HloModule object of an executable; OllaError where JAX does not give one."""
    executable = compiled.runtime_executable()
    if executable is None:
        raise OllaError("JAX gives no access to XLA's executable on this backend")
    return executable.hlo_modules()[0]


class Final(NamedTuple):
    """The optimized HloModule that an executable runs: as XLA's object and serialized (`proto`)."""

    module: Any
    proto: bytes

    @classmethod
    def of(cls, compiled: jax.stages.Compiled) -> Final:
        """Reads the module of an executable once, for several readers; OllaError if it has none."""
        module = executable_module(compiled)
        return cls(module, module.as_serialized_hlo_module_proto())


def final_module(compiled: jax.stages.Compiled) -> bytes:
    """Returns the serialized HloModuleProto of an executable; OllaError where JAX has none."""
    return Final.of(compiled).proto


_STATS: weakref.WeakKeyDictionary[jax.stages.Compiled, Future[Any]] = weakref.WeakKeyDictionary()


def ask_ahead(compiled: jax.stages.Compiled) -> None:
    """Starts `compiled.memory_analysis()` in a thread; `assigned_bytes` and others wait for it.
    The analysis serializes the whole buffer assignment. It does not hold the GIL meanwhile.
    """
    pool = ThreadPoolExecutor(1, "olla_xla accounting")
    _STATS[compiled] = pool.submit(compiled.memory_analysis)
    pool.shutdown(wait=False)


def _stats(compiled: jax.stages.Compiled) -> Any:
    """Returns `compiled.memory_analysis()`, computed once for each executable; None without one."""
    if compiled not in _STATS:
        stats = compiled.memory_analysis()  # an error is not cached
        _STATS[compiled] = future = Future()
        future.set_result(stats)
    return _STATS[compiled].result()


class _Account(NamedTuple):
    """Bytes of an executable by XLA: (arguments + outputs - aliases + temporaries, temporaries)."""

    total: int
    temporaries: int


def _account(compiled: jax.stages.Compiled) -> _Account | None:
    """Returns the bytes that XLA assigns to an executable; None without a memory analysis.
    A TPU's come from its buffer assignment, where that is given: libtpu's memory analysis counts
    the padding of temporaries twice (0.0.50), or leaves out those of some programs (0.0.52).
    """
    stats = _stats(compiled)
    if stats is None:
        return None
    if platform_of(compiled) == TPU.jax_name and (assignment := _of_tpu(compiled)) is not None:
        return _Account(assignment.total_bytes, assignment.temporary_bytes)
    temporaries = stats.temp_size_in_bytes
    kept = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return _Account(kept + temporaries, temporaries)


def _of_tpu(compiled: jax.stages.Compiled) -> buffer_assignment.BufferAssignment | None:
    """Parses the buffer assignment of a TPU's executable; None where it cannot be read."""
    data = assignment_proto(compiled, TPU.name)
    if not data:
        return None
    module = parse_module_proto(final_module(compiled))
    return buffer_assignment.assignment_from_bytes(data, module, TPU.name)


def assigned_bytes(compiled: jax.stages.Compiled) -> int:
    """Returns XLA's total bytes on one device: arguments + outputs - aliases + temporaries.
    Raises OllaError where the backend does not report it.
    """
    account = _account(compiled)
    if account is None:
        raise OllaError("this backend does not report how much memory an executable needs")
    return account.total


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
    """Returns the bytes of XLA's temporaries, which depend on the schedule; 0 if not reported."""
    account = _account(compiled)
    return 0 if account is None else account.temporaries


def host_bytes(compiled: jax.stages.Compiled) -> int:
    """Sums the bytes in host memory: arguments + outputs - aliases + temporaries; 0 if unknown."""
    stats = _stats(compiled)
    if stats is None:
        return 0
    arguments, outputs = stats.host_argument_size_in_bytes, stats.host_output_size_in_bytes
    return arguments + outputs - stats.host_alias_size_in_bytes + stats.host_temp_size_in_bytes


def output_bytes(compiled: jax.stages.Compiled) -> int:
    """Returns the bytes of an executable's outputs, also in donated memory; 0 if not reported."""
    stats = _stats(compiled)
    return 0 if stats is None else stats.output_size_in_bytes


_MADE_NOWHERE = frozenset(("parameter", "constant"))
_HANDED_ON = frozenset("tuple get-tuple-element bitcast while optimization-barrier".split())
"""Opcodes whose results are in the memory of their operands."""


def scratch_peak(module: Module, *, with_results: bool = True) -> int:
    """Returns the most bytes of values that are live at once when a module runs by its schedule.
    Parameters and constants count nothing. Values that share memory in XLA's assignment are counted
    separately here, so XLA's temporaries and outputs take no more, except for fragmentation.
    `with_results`: whether roots of computations count; not in XLA's rematerialization.
    """
    peaks: dict[Computation, int] = {}
    for computation in module.control_computations:
        peaks[computation] = _scratch_peak(computation, peaks, with_results)
    return peaks[module.entry]


def _scratch_peak(
    computation: Computation, peaks: Mapping[Computation, int], with_results: bool
) -> int:
    """Computes the most bytes of values live at once in one computation, by its schedule. `peaks`:
    those of the computations it calls. `with_results`: whether its root's values count.
    """
    order = computation.schedule or tuple(computation.instructions)
    makers: dict[Instruction, frozenset[Instruction]] = {}
    last: dict[Instruction, int] = {}
    for step, i in enumerate(order):
        read = frozenset(m for operand in i.operands for m in makers[operand])
        last.update(dict.fromkeys(read, step))
        if i.opcode in _HANDED_ON or i.opcode.endswith(("-done", "-update")):
            makers[i] = read
        else:
            makers[i] = frozenset(() if i.opcode in _MADE_NOWHERE else (i,))
        last.update(dict.fromkeys(makers[i], step))
    results = frozenset() if computation.root is None else makers[computation.root]
    last.update(dict.fromkeys(results, len(order)))
    sizes = {i: _made_bytes(i) for i in last}
    if not with_results:
        sizes.update(dict.fromkeys(results, 0))
    ended: collections.Counter[int] = collections.Counter()
    for i, step in last.items():
        ended[step] += sizes[i]
    live = most = 0
    for step, i in enumerate(order):
        if i in last:
            live += sizes[i]
        most = max(most, live + max((peaks[c] for c in i.called_control), default=0))
        live -= ended[step]
    return most


def _made_bytes(i: Instruction) -> int:
    """Returns the bytes of an instruction's output, less operands that an async start repeats."""
    size = sum(shape.bytes for _, shape in i.shape.indices())
    if not i.opcode.endswith("-start") or i.opcode == "all-reduce-start":
        return size
    return size - sum(o.shape.bytes for o in i.operands)


_TPU: weakref.WeakKeyDictionary[jax.stages.Compiled, bytes] = weakref.WeakKeyDictionary()
"""TPU executable -> its `assignment_proto`, kept because it takes serializing the executable."""


def _read_tpu(compiled: jax.stages.Compiled) -> bytes:
    executable: Any = compiled.runtime_executable()
    try:
        return tpu_executable.read_tpu_assignment(executable.serialize(), snappy.unsnapped)
    except (AttributeError, jax.errors.JaxRuntimeError, HloError) as error:
        _logger.warning("cannot read a TPU's executable (%s): totals are taken from libtpu", error)
        return b""


def assignment_proto(compiled: jax.stages.Compiled, target: str) -> bytes:
    """Returns the serialized BufferAssignmentProto of an executable, or b"" where XLA gives none.
    `target`: its platform, "cpu", "cuda" or "tpu". If a TPU's cannot be read, a warning is logged.
    For a GPU, `read_gpu_executable` gives the assignment too.
    """
    if platform(target) is TPU:
        if compiled not in _TPU:
            _TPU[compiled] = _read_tpu(compiled)
        return _TPU[compiled]
    stats = _stats(compiled)
    return b"" if stats is None else stats.serialized_buffer_assignment_proto


def donation(compiled: jax.stages.Compiled) -> Donation:
    """Counts an executable's donated argument arrays by what XLA did with their memory."""
    module = module_from_bytes(final_module(compiled))
    donated = [leaf for leaf in jax.tree.leaves(compiled.args_info) if leaf.donated]
    aliased = len(module.donated)
    unaliased = len(module.donors - module.donated)
    stats = _stats(compiled)
    return Donation(
        requested=len(donated),
        aliased=aliased,
        unaliased=unaliased,
        dropped=max(len(donated) - aliased - unaliased, 0),
        aliased_bytes=0 if stats is None else stats.alias_size_in_bytes,
    )
