"""The commands of `olla_xla`, one module each.

A command's module has a docstring, shown as its help, and two functions:
`define_flags(values)` defines its flags on an `absl.flags.FlagValues` of its own, and
`run(values) -> int` does the work and returns the exit code. Where it names operands in `OPERANDS`,
`run` is given these too. A new command is such a module and one line below.
"""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS: dict[str, str] = {
    "plan": "plan one model, or a dumped HLO module, and say what it saves",
    "analyze": "what is in memory at the peak of a step, and why; reports",
    "diff": "what takes more memory: two plans, analyses, HLO dumps or versions of jax",
    "check": "XLA's buffer assignment against the optimal packing, tensor by tensor",
    "measure": "run a model planned and unplanned; compare outputs, memory and time",
    "max_batch": "the largest batch that fits a device: XLA alone, planned, with recomputation",
    "graph": "the tensor graph of a module or of GraphML: ordered, written, drawn",
    "place": "place the blocks of a recorded trace (CSV): offsets, bound, gap",
    "bench schedule": "orders of real train steps: bound, gap, total, seconds",
    "bench first_call": "what planning adds to a first call, against jax.jit, in fresh processes",
    "bench ilp": "the paper's ILP and our forms of it, by equation and by solver",
    "bench loops": "what scans keep: every policy of jax.checkpoint against our plans",
    "bench kernels": "kernels that may round otherwise: the same memory as in XLA's own order",
    "bench scale": "planning as the graph grows: operators against seconds and memory",
    "bench sharded": "steps over eight devices: bits, bytes of a device, collectives, overlap",
    "bench sublinear": "feature-map memory and step time of recomputation in segments",
    "bench suite": "dumped modules of a folder, XLA's own benchmarks: each compiled and planned",
    "bench trainers": "steps of MaxText, keras, gemma, others: each remat policy, and plans",
    "bench processes": "steps of several processes, with faults put into one of them",
    "bench programs": "plan random train steps and compare each with jax.jit, bit for bit",
    "bench soak": "plans again and again in one process: does memory or the time of a call grow",
    "bench mutants": "seeded faults in planned modules: does the referee catch all that matter",
    "bench cost": "predicted against measured step times on this machine's CPU",
    "cache": "plans that are kept on disk for reuse: list, check and remove them",
    "estimate": "memory of a step or function under frameworks' allocators and planners",
    "bench place": "offsets: MiniMalloc's instances, plans of train steps, random blocks",
    "bench profile": "NumPy loops served from a planned arena: peak, replans, time of a request",
    "sweep": "run a grid of models in processes of their own, resumable, rows as CSV",
    "pareto": "memory against time: recomputation by us, by jax.checkpoint, by XLA",
    "figures": "draw the papers' figures from stored sweeps and benchmarks",
    "table": "plan every combination of models, batch sizes, optimizers and targets",
}
"""Command name, its module's name with "_" for " " -> what it does, in one line."""
