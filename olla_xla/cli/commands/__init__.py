"""The commands of `olla_xla`, one module each.

A command's module has a docstring, shown as its help, and two functions:
`define_flags(values)` defines its flags on an `absl.flags.FlagValues` of its own, and
`run(values) -> int` does the work and returns the exit code. If the module has a tuple `OPERANDS`
(names of positional arguments), `run` receives one string for each of them after `values`; if it
has a tuple `SCRIPT` (words of its usage line), all arguments from the first that is no flag. To add
a command, write such a module and add its line to `COMMANDS`.
"""

from __future__ import annotations

__all__ = ["COMMANDS", "FURTHER"]

COMMANDS: dict[str, str] = {
    "plan": "plan one model, or a dumped HLO module, and say what it saves",
    "run": "run a training script unchanged, with what it jits planned; a table of what that saves",
    "analyze": "what is in memory at the peak of a step, and why; reports",
    "check": "guard memory in CI: fail if a step takes more than its baseline",
    "diff": "how the memory of two plans, analyses, HLO dumps or versions of jax differs",
    "max_batch": "the largest batch that fits a device: XLA alone, planned, with recomputation",
    "fit": "the fewest pieces, run one after another, with which a model fits a memory budget",
    "sweep": "run a grid of models in processes of their own, resumable, rows as CSV",
    "pareto": "memory against time: recomputation by us, by jax.checkpoint, by XLA",
    "measure": "run a model planned and unplanned; compare outputs, memory and time",
    "cache": "list, check and remove the plans that are kept on disk for reuse",
    "doctor": "check this machine, run models on its GPU both ways, write a report to send in",
    "graph": "order the tensor graph of a module or a GraphML file; write or draw it",
    "objection": "check again a plan that olla_xla rejected",
    "place": "place the blocks of a recorded trace (CSV): offsets, bound, gap",
}
"""Name of a command, which is also the name of its module -> one line that says what it does."""

FURTHER = ("doctor", "graph", "objection", "place")
"""Commands that few users need; the overview lists them last, under a heading of their own."""
