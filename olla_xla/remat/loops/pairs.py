"""Pairs of loops: one writes scan residuals slice by slice, a later one reads them at its own
iterations.
"""

import collections
import dataclasses

from hlo.backend import platform
from hlo.cpu_code import one_function
from hlo.module import Computation, Instruction, Module
from hlo.rounding import may_depend_on_others
from olla_xla.remat.loops.body import Affine
from olla_xla.remat.loops.counted_loops import CountedLoop, counted_loop
from olla_xla.remat.loops.scan_residuals import (
    NotAResidual,
    ScanResidual,
    before_moves,
    residual_of,
)


@dataclasses.dataclass(eq=False)
class ScanPair:
    """A loop that writes scan residuals, and a later loop of the same computation that reads them.

    Attributes:
      writer, reader: the loops. scan_residuals: that could be recomputed.
      refused: (element of the writer, why not) of what looks like one but cannot be recomputed.
      written: the slice that an iteration of the writer writes.
      place: the slice that an iteration of the reader reads.
      iteration: the writer's iteration to which the reader's iteration j goes back, affine in j.
    """

    writer: CountedLoop
    reader: CountedLoop
    scan_residuals: tuple[ScanResidual, ...]
    refused: tuple[tuple[int, str], ...]
    written: Affine
    iteration: Affine
    place: Affine

    @property
    def goes_back(self) -> bool:
        """Whether the reader goes back one iteration at a time, and may run any fusion again."""
        back = Affine((self.reader.counter,), -1, self.writer.iterations - 1)
        return self.iteration == back and platform(self.writer.body.target).emits_any_fusion


def pairs(module: Module, target: str) -> list[ScanPair]:
    """The pairs of loops with scan residuals in a scheduled module whose fusions may be copied, in
    the order of the readers. `target`: "cpu", "cuda" or "tpu".
    """
    loops: dict[Instruction, CountedLoop | None] = {}
    sites = loop_sites(module)
    together = one_function(module) if platform(target).joins_calls else {}
    settled: dict[tuple[Computation, ...], bool] = {}

    def loop(site: Instruction) -> CountedLoop | None:
        if site not in loops:
            whole = sites[site].called[0] in together
            loops[site] = counted_loop(sites[site], site, target, together=whole)
        return loops[site]

    def are_apart(*both: Instruction) -> bool:
        """Whether fusions of both loops are compiled alone, or round as if they were."""
        functions = [together.get(sites[k].called[0]) for k in both]
        if None in functions:
            return functions == [None, None]  # else copies would be other code
        parts = tuple(dict.fromkeys(c for f in functions for c in f or ()))
        if parts not in settled:
            settled[parts] = not may_depend_on_others(parts)
        return settled[parts]

    scan_pairs = []
    for site in sites:
        for earlier in _writers(site, sites):
            if not are_apart(earlier, site):
                continue  # copies would be other code, or change other code in their function
            writer, reader = loop(earlier), loop(site)
            pair = _pair(writer, reader) if writer and reader else None
            if pair is not None:
                scan_pairs.append(pair)
    return scan_pairs


def loop_sites(module: Module) -> dict[Instruction, Instruction]:
    """Maps the sites of loops to their whiles, in order. The site is the while, or the only call of
    a computation that has nothing else; no other while that runs on a parameter has one.
    """
    computations = module.control_computations
    calls = collections.Counter(
        i.called[0] for c in computations for i in c.instructions if i.opcode == "call"
    )
    sites: dict[Instruction, Instruction] = {}
    for computation in computations:
        for i in computation.instructions:
            if i.opcode == "while" and i.operands[0].opcode != "parameter":
                sites[i] = i
            elif i.opcode == "call" and calls[i.called[0]] == 1:
                inner = i.called[0].instructions
                if [k.opcode for k in inner] == ["parameter", "while"] and inner[1].is_root:
                    sites[i] = inner[1]
    return sites


def _writers(reader: Instruction, sites: dict[Instruction, Instruction]) -> list[Instruction]:
    """The loops, by while or call, whose results are in the initial state of the loop `reader`."""
    (start,) = reader.operands
    taken = (before_moves(o)[0] for o in start.operands)
    return [
        i
        for i in dict.fromkeys(o.operands[0] for o in taken if o.opcode == "get-tuple-element")
        if i in sites
    ]


def _pair(writer: CountedLoop, reader: CountedLoop) -> ScanPair | None:
    """Two loops as a ScanPair; None if they do not count alike or no scan residual is read."""
    if writer.iterations != reader.iterations or writer.counter or reader.counter:
        return None
    if writer.start[0].shape.element_type != reader.start[0].shape.element_type:
        return None  # one's counter is of another type than the other's instructions take
    written: dict[int, list[int]] = {}
    for k in sorted(reader.fixed):
        start, _ = before_moves(reader.start[k])
        if start.opcode == "get-tuple-element" and start.operands[0] is writer.site:
            written.setdefault(start.tuple_index, []).append(k)
    indexed: list[tuple[ScanResidual, Affine, Affine | None]] = []
    refused: list[tuple[int, str]] = []
    for w, readers in written.items():
        if w not in writer.fixed:
            try:
                indexed.append(residual_of(writer, reader, w, readers))
            except NotAResidual as reason:
                refused.append((w, str(reason)))
    weights: dict[tuple[Affine, Affine], int] = {}
    for residual, at, place in indexed:
        if place is not None:
            weights[at, place] = weights.get((at, place), 0) + residual.bytes
    if not weights:
        return None
    # In JAX's loops all are read at one iteration; else the iteration with most bytes counts.
    write_at, place = max(weights, key=lambda key: weights[key])
    residuals = [s for s, at, here in indexed if at == write_at and here in (place, None)]
    other = "the array is read in an earlier or later iteration than most arrays"
    refused += [(s.written, other) for s, _, _ in indexed if s not in residuals]
    sign = write_at.factor
    back = Affine(place.element, sign * place.factor, sign * (place.offset - write_at.offset))
    return ScanPair(writer, reader, tuple(residuals), tuple(sorted(refused)), write_at, back, place)
