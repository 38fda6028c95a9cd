"""A GPU's executable as XLA serializes it, from which its thunks are read without the GPU."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterable
from typing import Any

import jax

from hlo.gpu_executable import GpuExecutable, read_gpu_executable
from hlo.module import HloError
from olla_xla.memory.snappy import unsnapped

_logger = logging.getLogger("olla_xla")

_FLAG = "xla_gpu_command_buffer_scheduling_mode"
_UNORDERED = {"1": "CONCURRENT", "3": "CONCURRENT_REGIONS"}
"""Number -> mode in which XLA assigns memory by dependencies, not by the schedule."""


def serialized_executable(compiled: jax.stages.Compiled) -> bytes:
    """Returns a GPU's executable, serialized; b"" where JAX cannot do that (one warning)."""
    executable: Any = compiled.runtime_executable()
    try:
        return executable.serialize()
    except (AttributeError, jax.errors.JaxRuntimeError) as error:
        _say(f"JAX {jax.__version__} cannot serialize a GPU executable: {error}")
        return b""


def read_or_say(data: bytes) -> GpuExecutable | None:
    """Parses a serialized GPU executable; None if b"", or with a warning if that fails.
    Also warns of thunks of unknown kinds. Each warning is given once.
    """
    if not data:
        return None
    try:
        executable = read_gpu_executable(data, unsnapped)
    except HloError as error:
        _say(str(error))
        return None
    if unknown := sorted(executable.unknown_kinds):
        _say_unknown(", ".join(unknown))
    return executable


@functools.cache
def _say(reason: str) -> None:
    _logger.warning(
        "a GPU's executable cannot be read (%s): only buffers that must share memory are checked, "
        "not every byte",
        reason.partition("\n")[0],
    )


@functools.cache
def _say_unknown(kinds: str) -> None:
    _logger.warning(
        "a GPU's executable has thunks of unknown kinds (%s): the checks assume that these "
        "thunks read and write the buffers of their instructions",
        kinds,
    )


def reason_without_order(executable: GpuExecutable) -> str:
    """Says which XLA flag makes a GPU executable's buffers ignore the schedule's order; or ""."""
    return _reason(str(executable.scheduling_mode))


def without_order(options: Iterable[tuple[str, Any]]) -> str:
    """Says by which XLA flag memory would not depend on the order of instructions; or "".
    `options`: compiler options as (name, value); XLA_FLAGS count where these do not set the flag.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    said = re.findall(rf"--{_FLAG}=(\w+)", flags)[-1:]
    said += [str(value) for name, value in options if name == _FLAG]
    return _reason(said[-1]) if said else ""


def _reason(mode: str) -> str:
    mode = _UNORDERED.get(mode, mode).upper()
    if mode not in _UNORDERED.values():
        return ""
    return (
        f"with {_FLAG}={mode} XLA assigns memory without regard to the order of instructions; "
        "leave the flag out, so that the step can be planned"
    )
