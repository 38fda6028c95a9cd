"""Memory against time for one train step, under every way of recomputation.

Rows: XLA's own schedule, its own rematerialisation (GPU), jax.checkpoint around the loss with each
of JAX's policies, olla_xla.sublinear around it (Chen et al. 2016), and plans of olla_xla, one for
each of --overheads. Totals are those that XLA assigns to the compiled step; times are predicted by
one cost model, and on a CPU also measured. A star marks a row if no other row is at least as good
in both memory and time and better in one.

Each row takes one compile, up to 17 in all. After --seconds no further one is begun, and a line
lists the rows that are left out.
"""

import math

from absl import flags

from olla_xla.cli.commands import shared
from olla_xla.cli.flags import Flags
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.sweeps import pareto_table
from olla_xla.errors import InputError
from olla_xla.tools.variants import pareto


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla pareto` in `values`."""
    shared.define_model(values)
    shared.define_target(values)
    shared.define_overheads(values, "0,0.01,0.02,0.05,0.1,0.2")
    Flags(values).real(
        "seconds",
        300.0,
        "Time limit in seconds, after which no new row is compiled; 0 means no limit.",
        least=0.0,
    )
    shared.define_format(values)
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Compiles a step with each kind of recomputation; prints memory and time. Returns 0."""
    options = shared.options(values)
    if values.model is None:
        raise InputError("give --model=NAME; see olla_xla pareto --help")
    overheads = shared.overheads(values)
    with Progress() as progress:
        model, target = shared.loaded_model(values, progress)
        seconds = values.seconds or math.inf
        rows, left = pareto(model, target, options, overheads, progress.stage, seconds)
    shared.print_table(values, pareto_table(rows, model.titled(target.name)))
    if left:
        print(
            f"Left out after {values.seconds:,.0f} s: {', '.join(left)}. --seconds=0 compiles all."
        )
    return 0
