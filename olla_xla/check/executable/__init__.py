"""The referee of the compiled module: what XLA will really run, followed from first to last step.

It reads an executable's final HLO, in its final order, and shows two things. No value is read
after its memory was written again (`memory`), by the buffers that XLA must share and, where XLA's
buffer assignment can be had, byte by byte. And the results are the expressions of the arguments
that XLA's own module computes (`expressions`), whatever was moved, cloned or bound. It is written
from XLA's definitions (HloDataflowAnalysis, HloAliasAnalysis, AliasInfo) and imports neither the
planner nor any analysis that feeds it: it shares their proto, and nothing else.
"""

from olla_xla.check.executable.kernels import KernelMemory, differing
from olla_xla.check.executable.verdict import (
    Accepted,
    check_control,
    check_executable,
    check_places,
    check_planned,
    check_rewrite,
    results_digest,
)

__all__ = [
    "Accepted",
    "KernelMemory",
    "check_control",
    "check_executable",
    "check_places",
    "check_planned",
    "check_rewrite",
    "differing",
    "results_digest",
]
