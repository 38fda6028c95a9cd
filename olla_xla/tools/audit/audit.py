"""`olla_xla.audit`: checks an executable of plain `jax.jit`, which nothing was planned for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax

from hlo.backend import CPU, TPU, platform_of_jax
from hlo.cpu_executable import CpuExecutable
from hlo.dumps.read import read_file, to_hlo
from hlo.gpu_executable import GpuExecutable, read_gpu_executable
from hlo.invariant_loads import invariant_loads
from hlo.module import HloError, module_from_bytes
from hlo.shapes import ShapeIndex
from olla_xla.analysis.analyze import jax_stage
from olla_xla.check.executable.survey import survey
from olla_xla.compile.accounting import assignment_proto, final_module
from olla_xla.compile.gpu_code import serialized_executable
from olla_xla.compile.jax_private import kept_arguments, platform_of
from olla_xla.errors import InputError, ModuleFormatError
from olla_xla.memory.own_jit import own_jit
from olla_xla.memory.snappy import unsnapped
from olla_xla.tools.audit.report import Audit, ExecutableParts, located

Promises = tuple[frozenset[int] | None, dict[ShapeIndex, int]]
"""Numbers of the donated arguments, if known; index of a result -> the argument it takes over."""

_TAKEN, _DONOR, _ALIASES = "tf.aliasing_output", "jax.buffer_donor", "mhlo.input_output_alias"
"""JAX's attributes of a donated argument: with the result that takes it over, or without; and that
of a module that was made from HLO, with all such pairs."""


def audit(fn: Any, *args: Any, before: str | Path | None = None, **kwargs: Any) -> Audit:
    """Checks a compiled function's memory: that each read finds what was written there last.

    Followed are all arrays through the bytes that XLA assigned, asynchronous operations to their
    end, donated arguments, layouts, and on a GPU each thunk and the address of each slice that a
    loop copies. What a kernel computes of its bytes is taken on trust. Nothing is run.

    Args:
      fn: what `jax.jit` returned or a plain function, lowered and compiled here for `args`; or a
        `jax.stages.Lowered` or `jax.stages.Compiled`, without arguments.
      args, kwargs: arrays or `jax.ShapeDtypeStruct`s, also on devices that are not there.
      before: a dump of the module before some of XLA's passes (`--xla_dump_hlo_pass_re`). The
        executable's results are to be those of the dump, bit by bit, loops iteration by iteration.

    Returns:
      The report, which is true where nothing is wrong.

    Raises:
      InputError: `fn` cannot be compiled, or is compiled and comes with arguments.
      ModuleFormatError: `before` is no module.
    """
    stage = getattr(fn, "stage", fn)  # of ours, JAX's own
    if isinstance(stage, jax.stages.Compiled | jax.stages.Lowered):
        if args or kwargs:
            raise InputError("a lowered or compiled function has its arguments; give no others")
    elif callable(fn):
        jitted = fn if hasattr(fn, "lower") else own_jit(fn)
        stage = jax_stage(jitted.lower(*args, **kwargs))
    else:
        raise InputError(f"olla_xla.audit takes a function, not {type(fn).__name__}")
    if isinstance(stage, jax.stages.Compiled):
        return audit_compiled(stage, donated=_donated(stage), before=before)
    compiled: Any = stage.compile()
    module = getattr(stage, "stage", stage).compiler_ir()
    return audit_compiled(getattr(compiled, "stage", compiled), module, before=before)


def audit_compiled(
    compiled: Any,
    lowered: Any = None,
    donated: frozenset[int] | None = None,
    before: str | Path | None = None,
) -> Audit:
    """Audits the memory of an executable that is compiled already, as `audit` does.

    Args:
      compiled: a `jax.stages.Compiled`, or a stand-in for one (`tools.dumped.DumpedExecutable`).
      lowered: the StableHLO module that it was compiled from, as MLIR, if it is known.
      donated: numbers of the donated arguments, where `lowered` is not known.
      before: path of a dumped module with whose results the executable's are compared, or None.

    Raises InputError for an executable of no CPU, GPU or TPU, ModuleFormatError if `before` is no
    module.
    """
    try:
        backend = platform_of_jax(platform_of(compiled))
    except KeyError as error:
        raise InputError("olla_xla.audit reads executables of CPUs, GPUs and TPUs only") from error
    began = time.monotonic()
    serialized = b"" if backend is TPU else serialized_executable(compiled)
    parts = ExecutableParts(
        backend.name,
        final_module(compiled),
        b"" if backend.lists_thunks else assignment_proto(compiled, backend.name),
        serialized,
        "" if lowered is None else str(lowered),
        dumped_before(before),
    )
    return audit_parts(parts, lowered, donated, began)


def dumped_before(path: str | Path | None) -> bytes:
    """Reads a dumped module, to compare results with, as a serialized HloModuleProto; b"" for None.
    Raises ModuleFormatError if it is no module.
    """
    try:
        return b"" if path is None else to_hlo(read_file(path))
    except HloError as error:
        raise ModuleFormatError(str(error)) from error


def audit_parts(
    parts: ExecutableParts,
    lowered: Any = None,
    donated: frozenset[int] | None = None,
    began: float | None = None,
) -> Audit:
    """Audits the memory of an executable given by its serialized parts, as read from a file.
    Raises ModuleFormatError if these have no module that can be read.

    Args:
      parts: the executable. lowered: the StableHLO that it was compiled from, as MLIR, if known.
      donated: numbers of the donated arguments, where `lowered` is not known.
      began: `time.monotonic()` when the audit began; None: now.
    """
    began = time.monotonic() if began is None else began
    executable, left = _read(parts)
    try:
        module = module_from_bytes(parts.module)
    except HloError as error:
        raise ModuleFormatError(str(error)) from error
    promised = dict[ShapeIndex, int]()
    if lowered is not None:
        donated, promised = promises_of(lowered, len(module.entry.parameters))
    surveyed = survey(
        parts.module,
        parts.target,
        assignment=parts.assignment,
        executable=executable,
        donated=donated,
        promised=promised,
        before=parts.before,
    )
    wrong = located(parts.module, surveyed.objections)
    is_gpu = isinstance(executable, GpuExecutable)
    doubts = invariant_loads(parts.module, executable).wrong if is_gpu else ()
    said = tuple(
        f"{name} may read memory with invariant loads while the kernel of {origin} writes it"
        for name, origin in doubts
    )
    counts, unknown = (surveyed.followed, surveyed.trusted), (*left, *surveyed.left)
    took = time.monotonic() - began
    return Audit(module.name, parts.target, wrong, *counts, unknown, said, took, parts)


def _read(parts: ExecutableParts) -> tuple[GpuExecutable | CpuExecutable | None, tuple[str, ...]]:
    """Parses the executable of `parts`: (it, or None if it cannot be read; what is unchecked then).
    Without one to read, returns (None, ()).
    """
    if not parts.executable:
        return None, ()
    try:
        if parts.target == CPU.name:
            return CpuExecutable(parts.executable), ()
        return read_gpu_executable(parts.executable, unsnapped), ()
    except HloError as error:
        return None, (f"thunks, since the executable could not be read: {error}",)


def promises_of(lowered: Any, arguments: int) -> Promises:
    """Reads from a lowered module, in MLIR, what is donated: (donated arguments, aliases).
    The first are numbers of arguments. The second: index of a result -> number of the donated
    argument that JAX asked to write it over. (None, {}) if it takes not as many as `arguments`.
    """
    main: Any = next(
        f for f in lowered.body.operations if str(f.attributes["sym_name"]).strip('"') == "main"
    )
    said = list(main.attributes["arg_attrs"]) if "arg_attrs" in main.attributes else []
    results = len(main.type.results)
    if len(main.type.inputs) != arguments:
        return None, {}
    donated, taken = set[int](), dict[ShapeIndex, int]()
    for number, attributes in enumerate(said):
        if _TAKEN in attributes or _DONOR in attributes:
            donated.add(number)
        if _TAKEN in attributes:
            k = int(attributes[_TAKEN].value)
            taken[(k,) if results > 1 else ()] = number
    attributes = lowered.operation.attributes
    for pair in attributes[_ALIASES] if _ALIASES in attributes else ():
        number = pair["alias"]["parameter_number"].value
        donated.add(number)
        taken[tuple(pair["output_index"])] = number
    return frozenset(donated), taken


def _donated(compiled: jax.stages.Compiled) -> frozenset[int] | None:
    """Numbers of the donated ones among an executable's arguments; None where that is not known."""
    kept = kept_arguments(compiled)
    leaves = jax.tree.leaves(compiled.args_info)
    if kept is None or len(module_from_bytes(final_module(compiled)).entry.parameters) != len(kept):
        return None
    return frozenset(n for n, leaf in enumerate(kept) if leaves[leaf].donated)
