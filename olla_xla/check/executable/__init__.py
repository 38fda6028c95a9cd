"""The referee of the compiled module: reads an executable's final HLO, in its final order.

It shows two things. No value is read after its memory was overwritten (`memory`): this is checked
on the buffers that XLA must share and, where XLA's buffer assignment is known, byte by byte. And
the results are the same expressions of the arguments as in XLA's own module (`expressions`),
whichever instructions were moved, cloned or bound to operands. It is written from XLA's definitions
(HloDataflowAnalysis, HloAliasAnalysis, AliasInfo). It imports neither the planner nor any analysis
that the planner uses: of `hlo` only the readers of XLA's formats.
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
