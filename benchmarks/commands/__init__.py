"""The commands of `python -m benchmarks`, a module each, like those of `olla_xla.cli.commands`."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "schedule": "orders of real train steps: bound, gap, total, seconds",
    "first_call": "what planning adds to a first call, against jax.jit, in fresh processes",
    "gains": "totals of steps against the least that was ever reached; fails where one is lost",
    "ilp": "the paper's ILP and our forms of it, by equation and by solver",
    "loops": "what scans keep: every policy of jax.checkpoint against our plans",
    "kernels": "kernels that may round otherwise: the same memory as in XLA's own order",
    "remedies": "what analyze says would help 35 steps, tried: are its figures right",
    "scale": "planning as the graph grows: operators against seconds and memory",
    "sharded": "steps over eight devices: bits, bytes of a device, collectives, overlap",
    "sublinear": "feature-map memory and step time of recomputation in segments",
    "suite": "dumped modules of a folder, XLA's own benchmarks: each compiled and planned",
    "trainers": "steps of MaxText, keras, gemma, others: each remat policy, and plans",
    "processes": "steps of several processes, with faults put into one of them",
    "programs": "plan random train steps and compare each with jax.jit, bit for bit",
    "fission": "steps whole and in pieces: bytes assigned and resident, time, predicted time",
    "fission_head": "a head of a large vocabulary, whole, cut and by hand: bytes, errors",
    "fission_programs": "random functions cut by fission: results, and what is refused",
    "soak": "plans again and again in one process: does memory or the time of a call grow",
    "mutants": "faults put into planned modules: do olla_xla's checks find all that matter",
    "thunks": "what a GPU will run, and seeded faults in it: accepted, and all caught",
    "audit": "executables of plain jax.jit, and seeded faults in them: clean, and all found",
    "cost": "predicted against measured step times on this machine's CPU",
    "place": "offsets: MiniMalloc's instances, plans of train steps, random blocks",
    "place_ilp": "places by the OLLA paper's integer programs, of a trace or a planned step",
    "profile": "NumPy loops served from a planned arena: peak, replans, time of a request",
    "estimate": "memory of a step or function under frameworks' allocators and planners",
    "sweep_eager": "a grid of unfused graphs: an eager framework's memory, and our arena",
    "ilp_alone": "orders of unfused steps by a solver alone: how near after which limit",
    "figures": "draw the papers' figures from stored sweeps and benchmarks",
}
"""Name of a command, which is also the name of its module -> one line that says what it does."""
