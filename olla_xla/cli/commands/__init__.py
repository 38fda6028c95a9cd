"""The commands of `olla_xla`, one module each.

A command's module has a docstring, shown as its help, and two functions:
`define_flags(values)` defines its flags on an `absl.flags.FlagValues` of its own, and
`run(values) -> int` does the work and returns the exit code. If the module has a tuple `OPERANDS`
(names of positional arguments), `run` receives one string for each of them after `values`; if it
has a tuple `SCRIPT` (words of its usage line), all arguments from the first that is no flag. With
`KEEPS_GARBAGE = True` Python collects none while it runs, nor at the end of its process. To add a
command, write such a module and add its line to `COMMANDS`.
"""

__all__ = ["COMMANDS", "FURTHER", "OF_ANY_JAX"]

COMMANDS: dict[str, str] = {
    "plan": "plan one model or dumped HLO module; print how much memory the plan saves",
    "run": "run an unchanged script, plan its jitted functions, print how much memory that saves",
    "analyze": "list the tensors that are in memory at the peak of a step; write a report",
    "audit": "check whether XLA's executable of a jax.jit function reads wrong bytes of memory",
    "check": "for CI: fail if a step takes more memory than a stored baseline",
    "diff": "compare the memory of two plans, analyses, HLO dumps or versions of JAX",
    "max_batch": "find the largest batch that fits a device, without and with a plan",
    "fit": "find the fewest pieces in which a model must be computed to fit a memory budget",
    "sweep": "plan many models, each in its own process; write a CSV file; can be resumed",
    "pareto": "compare memory and time of recomputation by olla_xla, jax.checkpoint and XLA",
    "measure": "run a model with and without a plan; compare outputs, memory and time",
    "cache": "list, check and remove the plans that are stored on disk",
    "doctor": "check this machine, run models on its GPU with and without plans, write a report",
    "graph": "find an operator order with less memory for an HLO module or a GraphML file",
    "objection": "repeat the check of a plan that olla_xla rejected",
    "place": "choose the offsets of the memory blocks that a CSV file lists",
}
"""Name of a command, which is also the name of its module -> one line that says what it does."""

FURTHER = ("doctor", "graph", "objection", "place")
"""Commands that few users need; the overview lists them last, under a heading of their own."""

OF_ANY_JAX = ("audit",)
"""Commands that need no hook, and so no recent JAX."""
