"""Takes scan residuals out of a pair of loops: what was read of them is computed again where it is
read.

A scan residual is an element of a loop's state of which each iteration writes one slice; a later
loop reads the slices. Without it both states are an element shorter. In the backward loop's body a
slice is then made by copies of the forward loop's instructions, or it is a slice of another scan
residual.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo import xla_pb2
from hlo.graph import MutableModule
from hlo.module import HloError
from hlo.rewrite.apart import keep_apart
from hlo.rewrite.checkpoints import RerunEdit
from hlo.rewrite.loop_edit import LoopEdit
from hlo.rewrite.loop_module import LoopModule
from hlo.rewrite.loop_readers import Readers
from hlo.rewrite.loop_states import States
from hlo.rewrite.loop_values import Maker
from hlo.rewrite.trim import trim_branches


def change_loops(proto: xla_pb2.HloModuleProto, edits: Sequence[LoopEdit]) -> None:
    """Removes scan residuals from pairs of loops, and adds what computes their slices again.

    Args:
      proto: a scheduled module, changed in place. edits: made one after the other.

    Raises:
      HloError: a name is unknown or taken, or the loops are not as the edit has them.
    """
    if not edits:
        return
    before = xla_pb2.HloModuleProto()
    before.CopyFrom(proto)
    for edit in edits:
        _change(proto, edit)
    keep_apart(before, proto, edits[0].target)
    module = MutableModule(proto)
    for computation in proto.computations:
        if computation.id in proto.schedule.sequences:
            module.body(computation.id).reorder()
    module.finish()


def _change(proto: xla_pb2.HloModuleProto, edit: LoopEdit) -> None:
    """Makes one change of a pair of loops."""
    module = LoopModule(proto, edit)
    states = States(module)
    writer, reader = module.writer, module.reader
    if reader.parent is not module.parent:
        raise HloError(f"{edit.writer} and {edit.reader} are in different computations")
    module.thread = module.backward.computation.execution_thread
    for new in edit.added:
        named = isinstance(new, str)
        states.grow(reader, module.parent.named(new) if named else states.stacked(new))
    maker = Maker(module)
    readers = Readers(module, maker)
    rerun = None
    if edit.checkpoints is not None:
        rerun = RerunEdit(module, edit.checkpoints, states.checkpoints(edit.checkpoints))
        maker.know(rerun.begin())
    for made in edit.made:
        maker.make(made)
    for taken in edit.taken:
        readers.take(taken)
    if rerun is not None:
        rerun.end(maker.value)
    states.shrink(reader, [r for _, r in edit.dropped])
    states.forget(writer, [w for w, _ in edit.dropped])
    trims = module.platform.trims_results
    for made in edit.made:
        for body, name in ((module.backward, made.name), (module.forward, made.original)):
            if name in body and body.named(name).opcode == "conditional":
                trim_branches(module, body, body.named(name), whole=trims)
    if trims:  # it would do so itself, after it was planned
        module.trim()
    module.write()
