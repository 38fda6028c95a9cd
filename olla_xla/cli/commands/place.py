"""Places the blocks of a recorded trace: offsets that need as few bytes as possible.

The trace is a CSV file with one block a row: id,lower,upper,size and optionally alignment and
offset; an offset pins the block. A block lives during the half-open interval [lower, upper). With
--capacity any placement within that many bytes is accepted; without it the smallest is searched
for. Exit code 1 if there is no placement, or none was found.
"""

from absl import flags

from olla_xla.cli import files
from olla_xla.cli.flags import Flags
from olla_xla.errors import InputError
from olla_xla.place import METHODS, Packing, PlacementProblem, place
from olla_xla.place.trace import read_trace, write_trace
from olla_xla.problem.options import SOLVERS
from olla_xla.solvers.linear import Status


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla place` in `values`."""
    define = Flags(values)
    define.text("trace", None, "CSV file to read: one memory block per row.")
    define.text("out", None, "CSV file to write: the blocks with their offsets.")
    define.whole("capacity", None, "Largest number of bytes that the blocks may take together.")
    define.real("time_limit", 10.0, "Time limit of the search, in seconds.")
    define.whole(
        "node_limit",
        None,
        "Limit on the number of search nodes; with it, equal traces give equal offsets.",
    )
    define.one_of("method", "auto", METHODS, "Algorithm that chooses the blocks' offsets.")
    define.one_of("backend", "highs", SOLVERS, "Solver of the integer program (--method=ilp).")
    define.real("gap", 0.0, "Fraction above the lower bound at which --method=ilp may stop.")


def run(values: flags.FlagValues) -> int:
    """Chooses offsets for memory blocks, whose sizes and lifetimes are read from a trace file.
    Prints the result and writes the offsets to --out. Returns 1 if there is no packing, or none was
    found, else 0. Raises InputError if the trace is missing or a file cannot be used.
    """
    if values.trace is None:
        raise InputError("give --trace=FILE.csv; see olla_xla place --help")
    files.check_writable(values.out)
    problem = read_trace(values.trace, capacity=values.capacity)
    packing = place(
        problem,
        method=values.method,
        time_limit=values.time_limit,
        node_limit=values.node_limit,
        backend=values.backend,
        gap=values.gap,
    )
    return report(values, problem, packing)


def report(values: flags.FlagValues, problem: PlacementProblem, packing: Packing) -> int:
    """Prints a packing of memory blocks, writes its offsets to --out; returns 1 if none, else 0."""
    if packing.offsets is None:
        what = "exists" if packing.status is Status.INFEASIBLE else "was found"
        within = "" if values.capacity is None else f" within {values.capacity} bytes"
        print(
            f"no packing of the {len(problem)} blocks {what}{within} (stopped by "
            f"{packing.stopped_by}, {packing.seconds:.2f} s); they need at least "
            f"{packing.bound} bytes"
        )
        return 1
    print(
        f"{len(problem)} blocks are packed into {packing.height} bytes; they need at least "
        f"{packing.bound} bytes (gap {100 * packing.gap:.2f} %); {packing.status}, found by "
        f"{packing.source}, stopped by {packing.stopped_by}, {packing.nodes} search nodes, "
        f"{packing.seconds:.2f} s"
    )
    if values.out is not None:
        write_trace(values.out, problem, packing.offsets)
    return 0
