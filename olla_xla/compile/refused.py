"""Steps that XLA refuses to compile because they do not fit: what it would have run."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from hlo.backend import platform
from hlo.buffer_assignment import BufferAssignment, read_dump
from hlo.module import HloError
from olla_xla.compile.assignment import dump_options
from olla_xla.errors import OllaError

_REQUIRED = re.compile(r"(?:memory required[^(]*\(|Used )([0-9.]+)([KMGT]?)")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def is_refusal(error: Exception, target: str) -> bool:
    """Whether a compile error says that the program needs more memory than the device has; False
    for a platform (`target`) where XLA compiles it all the same.
    """
    return platform(target).refuses_what_does_not_fit and "RESOURCE_EXHAUSTED" in str(error)


def refused_bytes(error: Exception) -> int:
    """Reads the total bytes from XLA's error that refuses a step, to 0.1 %; 0 if it names none.
    Both texts of XLA:TPU are read: "the total memory required for HLO temporaries (16.80G) exceeds
    available HBM (15.75G)", and before it "Used 16.80G of 15.75G hbm".
    """
    match = _REQUIRED.search(str(error))
    return int(float(match[1]) * 2 ** _UNITS[match[2]]) if match else 0


def refused_executable(
    lowered: jax.stages.Lowered, target: str, compiler_options: Mapping[str, Any]
) -> tuple[bytes, BufferAssignment]:
    """Compiles a step again that XLA refused because it does not fit the device, with a dump of
    what XLA found too large. XLA stops before code generation, which takes longest. `target`: name
    of the platform. Returns (the scheduled module, serialized; its buffer assignment). Raises
    OllaError if there is no usable dump, and XLA's error if it is another one.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = {**compiler_options, **dump_options(Path(folder))}
        try:
            lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            if not is_refusal(error, target):
                raise
        dumps = sorted(Path(folder).glob("*after_optimizations.hlo.pb"))
        if not dumps:
            raise OllaError(
                "XLA refused the step because it does not fit the device, and wrote no dump"
            )
        try:
            module, assignment = read_dump(dumps[-1], target)
        except HloError as error:
            raise OllaError(f"XLA refused the step: it needs too much memory; {error}") from error
    return module.SerializeToString(), assignment
