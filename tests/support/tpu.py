"""Steps compiled for a TPU that is not there."""

import functools
from typing import NamedTuple

import jax

from hlo.buffer_assignment import BufferAssignment, assignment_from_bytes
from hlo.module import parse_module_proto
from olla_xla import targets
from olla_xla.tools.capture import Compiled, capture
from tests.support import plugins
from tests.support.compiles import STEPS


class TpuStep(NamedTuple):
    """A step as XLA:TPU scheduled and compiled it."""

    captured: Compiled
    assignment: BufferAssignment


def v5e(devices: int = 1) -> targets.Target:
    """A v5e; skips the test where libtpu is not installed."""
    plugins.need("tpu")
    targets.prepare_environment("v5e")
    return targets.target("v5e", devices)


@functools.cache
def tpu_step(name: str) -> TpuStep:
    """One of STEPS, compiled for a v5e."""
    where = v5e()
    function, arguments, donated = STEPS[name]
    lowered = jax.jit(function, donate_argnums=donated).lower(*where.place(arguments))
    captured = capture(lowered)
    proto = parse_module_proto(captured.final)
    assignment = assignment_from_bytes(captured.assignment, proto, "tpu")
    return TpuStep(captured, assignment)
