"""Memory of one unfused module under every baseline."""

from __future__ import annotations

import dataclasses

from hlo.module import Module
from olla_xla.bench.eager.eager import ALLOCATORS, run_eagerly
from olla_xla.bench.eager.graph import Program, forward_only, program
from olla_xla.bench.eager.static import MAX_ANCESTORS, assign
from olla_xla.check.storages import check_storages
from olla_xla.errors import InputError

__all__ = ["MODES", "Estimate", "Estimates", "estimate"]

MODES = ("training", "inference")
_STATIC = (
    ("no sharing", False, False, None),
    ("in place", True, False, None),
    ("sharing", False, True, None),
    ("in place + sharing", True, True, None),
    ("both, parallel by colour", True, True, "colour"),
    ("both, parallel by ancestors", True, True, "ancestors"),
)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What one baseline takes. Bytes.

    Attributes:
      planner: its name.
      total_bytes: everything, at the peak: arguments, results, gradients, temporaries. None where
        the module is too large for the planner.
      reserved_bytes: what a caching allocator takes from the device for it; None if static.
      fragmentation: share of the reserved bytes not in use at the peak; None if static.
    """

    planner: str
    total_bytes: int | None
    reserved_bytes: int | None = None
    fragmentation: float | None = None


@dataclasses.dataclass(frozen=True)
class Estimates:
    """All baselines of one module.

    Attributes:
      operators: how many the program has.
      argument_bytes, output_bytes: results that replace donated arguments are not counted.
      gradient_bytes: what an optimizer in the program reads.
      rows: one for each baseline.
    """

    operators: int
    argument_bytes: int
    output_bytes: int
    gradient_bytes: int
    rows: tuple[Estimate, ...]


def estimate(module: Module, mode: str = "training") -> Estimates:
    """Runs every baseline on an unfused module (StableHLO, read by `hlo.read`).

    Args:
      module: with JAX's op names, by which the backward pass is known.
      mode: one of `MODES`; "inference" leaves out the backward pass and what depends on it.

    Raises:
      InputError: the mode is unknown, or there is nothing but a backward pass.
      CheckError: the referee rejects an assignment.
    """
    if mode not in MODES:
        raise InputError(f"mode={mode!r} is not one of {', '.join(MODES)}")
    found = program(module)
    if mode == "inference":
        found = forward_only(found)
    graph = found.graph
    gradient_bytes = sum(graph.tensors[t].bytes for t in found.gradients)
    rows = []
    for name, allocator in ALLOCATORS.items():
        run = run_eagerly(found, allocator())
        rows.append(
            Estimate(
                f"eager, {name}", run.peak_live_bytes, run.peak_reserved_bytes, run.fragmentation
            )
        )
    fixed = found.argument_bytes + found.output_bytes + gradient_bytes
    for name, in_place, sharing, parallel in _STATIC:
        planned = _planned_bytes(found, in_place, sharing, parallel)
        rows.append(Estimate(name, None if planned is None else fixed + planned))
    return Estimates(
        len(graph.operators),
        found.argument_bytes,
        found.output_bytes,
        gradient_bytes,
        tuple(rows),
    )


def _planned_bytes(
    found: Program, in_place: bool, sharing: bool, parallel: str | None
) -> int | None:
    if parallel == "ancestors" and len(found.graph.operators) > MAX_ANCESTORS:
        return None
    made = assign(found, in_place=in_place, sharing=sharing, parallel=parallel)
    check_storages(found.graph, made.storage, made.sizes, parallel=parallel is not None)
    return made.bytes
