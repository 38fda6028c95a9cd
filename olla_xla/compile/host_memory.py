"""What of an executable lies in host memory: its bytes, and the scan residuals."""

from __future__ import annotations

import dataclasses

import jax

from hlo.module import Instruction, module_from_bytes
from olla_xla.compile.accounting import final_module
from olla_xla.memory.sources import source_line
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import HostArray
from olla_xla.remat.loops.pairs import ScanPair, pairs
from olla_xla.remat.loops.scan_residuals import ScanResidual


def maker(pair: ScanPair, residual: ScanResidual) -> Instruction:
    """Finds the instruction of the forward loop that computes the slices of a scan residual (an
    array that the loop saves for the backward loop), also if they go to host memory an iteration
    later.
    """
    made = residual.value
    if residual.whole.is_host and made.i.opcode == "parameter":
        made = pair.writer.body.root[made.index].behind
    return made.i


def described(compiled: jax.stages.Compiled, plan: Plan, size: int) -> Plan:
    """Returns the plan with `host_bytes` = `size`, and as `host_arrays` the scan residuals (arrays
    that a forward loop saves for its backward loop) that lie in host memory in this executable.
    """
    arrays = []
    for pair in pairs(module_from_bytes(final_module(compiled)), plan.target):
        loops = pair.writer.i.name, pair.reader.i.name
        for residual in (r for r in pair.scan_residuals if r.whole.is_host):
            line = source_line(maker(pair, residual)) or source_line(residual.update.i)
            line = line.rpartition("/")[2]
            arrays.append(HostArray(residual.whole.text, residual.whole.bytes, line, *loops))
    arrays.sort(key=lambda a: -a.bytes)
    return dataclasses.replace(plan, host_bytes=size, host_arrays=tuple(arrays))
