"""The commands of `olla_xla`, one module each.

A command's module has a docstring, shown as its help, and two functions:
`define_flags(values)` defines its flags on an `absl.flags.FlagValues` of its own, and
`run(values) -> int` does the work and returns the exit code. If the module has a tuple `OPERANDS`
(names of positional arguments), `run` receives one string for each of them after `values`; if it
has a tuple `SCRIPT` (words of its usage line), all arguments from the first that is no flag. To add
a command, write such a module and add its line to `COMMANDS`.
"""

__all__ = ["COMMANDS", "FURTHER", "OF_ANY_JAX"]

COMMANDS: dict[str, str] = {
    "plan": "plan one model, or a dumped HLO module, and say what it saves",
    "run": "run an unchanged script, plan the functions that it jits, print what that saves",
    "analyze": "what is in memory at the peak of a step, and why; reports",
    "audit": "check an executable of plain jax.jit: followed, taken on trust, wrong",
    "check": "guard memory in CI: fail if a step takes more memory than a stored baseline",
    "diff": "how the memory of two plans, analyses, HLO dumps or versions of jax differs",
    "max_batch": "the largest batch that fits a device: XLA alone, planned, with recomputation",
    "fit": "the fewest pieces, run one after another, with which a model fits a memory budget",
    "sweep": "plan many models, each in a process of its own; resumable; writes a CSV file",
    "pareto": "compare memory and time of recomputation by olla_xla, jax.checkpoint and XLA",
    "measure": "run a model planned and unplanned; compare outputs, memory and time",
    "cache": "list, check and remove the plans that are kept on disk for reuse",
    "doctor": "check this machine, run models on its GPU planned and unplanned, write a report",
    "graph": "order the tensor graph of a module or a GraphML file; write or draw it",
    "objection": "check again a plan that olla_xla rejected",
    "place": "choose offsets for the memory blocks of a recorded trace (CSV)",
}
"""Name of a command, which is also the name of its module -> one line that says what it does."""

FURTHER = ("doctor", "graph", "objection", "place")
"""Commands that few users need; the overview lists them last, under a heading of their own."""

OF_ANY_JAX = ("audit",)
"""Commands that need no hook, and so no recent JAX."""
