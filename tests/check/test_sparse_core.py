"""What XLA:TPU makes of a look-up that its SparseCore runs: a start without operands."""

import pytest

from hlo import xla_pb2
from hlo.dumps.read import with_program_order
from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from hlo.values import analyse
from olla_xla.check.executable import check_executable, results_digest
from olla_xla.errors import CheckError

TEXT = """
HloModule looked_up

looking {
  rows = f32[64,8] parameter(0)
  order = s32[16] parameter(1)
  ROOT found = f32[16,8] gather(rows, order), offset_dims={1}, collapsed_slice_dims={0},
    start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
}

called {
  rows = f32[64,8] parameter(0)
  order = s32[16] parameter(1)
  ROOT looked = f32[16,8] fusion(rows, order), kind=kCustom, calls=looking
}

beside {
  rows = f32[64,8] parameter(0)
  order = s32[16] parameter(1)
  ROOT run = f32[16,8] call(rows, order), to_apply=called
}

ENTRY main {
  table = f32[64,8] parameter(0)
  places = s32[16] parameter(1)
  others = s32[16] negate(places)
  start = ((f32[64,8], s32[16]), f32[16,8], s32[4]) async-start(table, places), calls=beside
  done = f32[16,8] async-done(start)
  ROOT result = f32[16,8] add(done, done)
}
"""
"""As it is scheduled."""


def module():
    proto = xla_pb2.HloModuleProto()
    proto.ParseFromString(with_program_order(from_hlo_text(TEXT)))
    return proto


def found(proto, name):
    return next(i for c in proto.computations for i in c.instructions if i.name == name)


def final(operand="places", target="TODO(b/522284627)"):
    """As XLA:TPU compiles it: an async-update brings the operands, a custom call is the call."""
    proto = module()
    (entry,) = (c for c in proto.computations if c.id == proto.entry_computation_id)
    start, rows, order = found(proto, "start"), found(proto, "table"), found(proto, operand)
    update = xla_pb2.HloInstructionProto()
    update.CopyFrom(start)
    update.name, update.opcode = "start.update", "async-update"
    update.id = max(i.id for c in proto.computations for i in c.instructions) + 1
    update.operand_ids[:] = [start.id, rows.id, order.id]
    del update.called_computation_ids[:]
    aliased = update.output_operand_aliasing.add(operand_index=0)
    aliased.output_shape_index[:] = aliased.operand_shape_index[:] = [2]
    for k in (0, 1):
        start.shape.tuple_shapes[k].Clear()
        start.shape.tuple_shapes[k].element_type = 13
    del start.operand_ids[:]
    done = found(proto, "done")
    done.operand_ids[:] = [update.id]
    place = [i.name for i in entry.instructions].index("done")
    entry.instructions.insert(place, update)
    sequence = proto.schedule.sequences[entry.id].instruction_ids
    sequence.insert(list(sequence).index(done.id), update.id)
    run = found(proto, "run")
    run.opcode, run.custom_call_target = "custom-call", target
    return proto.SerializeToString()


def test_it_is_the_look_up_that_was_scheduled():
    digest = results_digest(module().SerializeToString(), "tpu")
    assert results_digest(final(), "tpu") == digest
    check_executable(final(), "tpu", results=digest)


def test_other_operands_and_other_calls_are_others():
    digest = results_digest(module().SerializeToString(), "tpu")
    assert results_digest(final(operand="others"), "tpu") != digest
    assert results_digest(final(target="mine"), "tpu") != digest


def test_operands_that_are_brought_twice_are_not_followed():
    proto = xla_pb2.HloModuleProto()
    proto.ParseFromString(final())
    found(proto, "start").operand_ids[:] = found(proto, "start.update").operand_ids[1:]
    with pytest.raises(CheckError, match="passes operands to start, which cannot be checked"):
        results_digest(proto.SerializeToString(), "tpu")


def test_what_it_gives_is_one_value_and_its_context_another():
    view = module_from_bytes(final())
    values = analyse(view, "tpu").at
    start, update, done, rows = (
        next(i for i in view.entry.instructions if i.name == name)
        for name in ("start", "start.update", "done", "table")
    )
    assert values[update, (0, 0)] is values[rows, ()]
    assert values[done, ()] is values[update, (1,)]
    assert values[update, (2,)] is values[start, (2,)]


def test_an_update_may_have_no_context():
    """A step with adam for v5p has such: its shape has two elements, and planning ended in it."""
    proto = xla_pb2.HloModuleProto()
    proto.ParseFromString(final())
    update = found(proto, "start.update")
    del update.shape.tuple_shapes[2], update.output_operand_aliasing[:]
    view = module_from_bytes(proto.SerializeToString())
    values = {(i.name, index): value for (i, index), value in analyse(view, "tpu").at.items()}
    assert values["done", ()] is values["start.update", (1,)]
    assert values["start.update", (0, 1)] is values["places", ()]
    digest = results_digest(module().SerializeToString(), "tpu")
    check_executable(proto.SerializeToString(), "tpu", results=digest)
