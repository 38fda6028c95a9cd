"""What is a scan residual, and why something that looks like one is none: loops by hand."""

import pytest

from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.remat.loops.counted_loops import counted_loop
from olla_xla.remat.loops.scan_residuals import NotAResidual, before_moves, residual_of
from tests.support.two_loops import two_loops

pytestmark = pytest.mark.quick


def loops(*, before="", **parts):
    """The two loops of the module with some parts changed, and a computation before them."""
    text = two_loops(**parts).replace("\nwrite {", f"{before}\nwrite {{")
    module = module_from_bytes(from_hlo_text(text))
    whiles = [i for i in module.entry.instructions if i.opcode == "while"]
    writer, reader = (counted_loop(i, i, "cuda", together=False) for i in whiles)
    assert writer is not None and reader is not None and writer.iterations == 5
    return writer, reader


def found(**parts):
    return residual_of(*loops(**parts), 2, [2])


def test_a_scan_residual():
    residual, written, place = found()
    assert (residual.written, residual.read, residual.axis, residual.bytes) == (2, 2, 0, 80)
    assert residual.update.i.name == "put" and residual.value.shape.bytes == 16
    assert [read.i.opcode for read in residual.reads] == ["dynamic-slice"] and not residual.moves
    assert (written.element, written.factor, written.offset) == ((0,), 1, 0)
    assert (place.element, place.factor, place.offset) == ((0,), -1, 4), "from the last one on"


def test_written_from_the_last_slice_on():
    _, written, _ = found(slot="down")
    assert (written.factor, written.offset) == (-1, 4)


def test_what_is_never_read_has_no_place():
    residual, _, place = found(read="f32[1,4] reshape(h)")
    assert residual.reads == () and place is None


def test_moved_between_the_loops():
    """A copy of all slices in their order moves bytes within each."""
    copies = "copied = f32[5,4] copy(moved)\n  again = f32[5,4] copy(copied)"
    parts = {"begin": "again", "extra": copies}
    residual, _, _ = found(**parts)
    assert [i.name for i in residual.moves] == ["copied", "again"]
    start, moves = before_moves(loops(**parts)[1].start[2])
    assert start.name == "moved" and [i.name for i in moves] == ["copied", "again"]


def test_read_by_an_asynchronous_slice_that_is_no_fusion():
    """As a TPU copies it from the host's memory."""
    taken = """
taken {
  all = f32[5,4] parameter(0)
  k = s32[] parameter(1)
  zero = s32[] parameter(2)
  ROOT slice = f32[1,4] dynamic-slice(all, k, zero), dynamic_slice_sizes={1,4}
}
"""
    go = "((f32[5,4], s32[], s32[]), f32[1,4], u32[]) async-start(all, turned, zero), calls=taken"
    turn = f"s32[] subtract(last, n)\n  go = {go}"
    residual, _, _ = found(before=taken, turn=turn, read="f32[1,4] async-done(go)")
    assert [read.owner.name for read in residual.reads] == ["go"]


BOTH_ENDS = """f32[1,4] dynamic-slice(all, turned, zero), dynamic_slice_sizes={1,4}
  first = f32[1,4] dynamic-slice(all, n, zero), dynamic_slice_sizes={1,4}
  ends = f32[1,4] add(row, first)"""
PUT_TWICE = "again = f32[5,4] dynamic-update-slice(put, row, down, zero)"


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"slot": "zero"}, "the forward loop writes another iteration's slice"),
        ({"slot": "up"}, "the forward loop writes another iteration's slice"),
        ({"turn": "s32[] add(n, one)"}, "the backward loop reads another iteration's slice"),
        ({"read": BOTH_ENDS, "flat": "reshape(ends)"}, "reads another iteration's slice"),
        ({"turn": "s32[] multiply(n, zero)"}, "reads another iteration's slice"),
        ({"kept": "again", "more": "again = f32[5,4] negate(put)"}, "not write the array slice"),
        ({"kept": "again", "more": PUT_TWICE}, "does not write the array slice by slice"),
        ({"more": "seen = f32[5,4] negate(all)"}, "the forward loop reads the array too"),
        ({"more": "seen = f32[5,4] negate(put)"}, "the forward loop also reads the array after"),
        ({"read": "f32[5,4] negate(all)",
          "flat": "constant({1,2,3,4})"}, "backward loop reads the array by negate"),
        ({"read": "f32[2,4] dynamic-slice(all, turned, zero), dynamic_slice_sizes={2,4}",
          "flat": "constant({1,2,3,4})"}, "does not read the forward loop's slices"),
        ({"extra": "seen = f32[5,4] negate(moved)"}, "the array is read outside the backward loop"),
        ({"root": "ROOT", "after": ""}, "the array is read outside the backward loop"),
        ({"after": "ROOT end = f32[5,4] get-tuple-element(second), index=2"},
         "the array is read after the backward loop"),
    ],
)  # fmt: skip
def test_why_something_is_none(parts, why):
    with pytest.raises(NotAResidual, match=why):
        found(**parts)


def test_two_elements_that_begin_alike():
    with pytest.raises(NotAResidual, match="twice"):
        residual_of(*loops(), 2, [1, 2])
