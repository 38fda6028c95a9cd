"""The scan residuals that loops keep and recompute under a plan."""

import dataclasses

from hlo.module import Module
from olla_xla.memory.sources import source_line
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import LoopRecord
from olla_xla.remat.loops.pairs import ScanPair, pairs
from olla_xla.remat.loops.recipe import recipe


@dataclasses.dataclass(frozen=True)
class ResidualRow:
    """An array that one loop writes slice by slice for a later one (a scan residual), under a plan.

    Attributes:
      loop: name of the while that writes it. iterations: slices that it has.
      bytes: of all slices. slices: how many the plan keeps at a time; 0: they are recomputed.
      op_name, location: JAX's name of what is kept and "file:line" of it, or "".
      new: whether the plan has added it, to recompute others from it.
    """

    loop: str
    iterations: int
    bytes: int
    slices: int
    op_name: str
    location: str
    new: bool = False


def residual_rows(module: Module, plan: Plan) -> list[ResidualRow]:
    """Lists scan residuals, arrays that loops write for later ones, of loops that a plan changes.
    Those that the plan adds are in the list, too; the largest come first. `module`: as scheduled by
    XLA. `plan`: of that module.
    """
    records = {record[:2]: record for record in plan.loops}
    rows = []
    for pair in pairs(module, plan.target):
        record = records.get((pair.writer.i.name, pair.reader.i.name))
        if record is None:
            continue
        slices = _slices(module, pair, record)
        loop, iterations = pair.writer.i.name, pair.writer.iterations
        for residual in pair.scan_residuals:
            made, put = residual.value.i, residual.update.i
            kept = slices.get(residual.written, iterations)
            what = made.op_name or put.op_name, source_line(made) or source_line(put)
            rows.append(ResidualRow(loop, iterations, residual.bytes, kept, *what))
        given = {i.name: i for i in pair.writer.body.computation.instructions}
        for name, index in record.kept:
            i = given[name]
            size = iterations * i.shape.at(index).bytes
            what = i.op_name, source_line(i)
            rows.append(ResidualRow(loop, iterations, size, iterations, *what, new=True))
    return sorted(rows, key=lambda row: (-row.bytes, row.slices))


def _slices(module: Module, pair: ScanPair, record: LoopRecord) -> dict[int, int]:
    """Element of the forward loop's state -> slices that the plan keeps at a time, 0 for none.
    Arrays of which it keeps all are left out. `record`: what the plan does with the loops.
    """
    slices = dict.fromkeys(record.dropped, 0)
    if record.every:
        edit = recipe(module, pair, record)
        slices = {w: record.every for w, _ in edit.dropped} | slices
    return slices
