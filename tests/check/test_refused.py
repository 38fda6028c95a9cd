"""Rewritten scans that are right, and were refused once: scheduled modules of JAX and XLA.

Each pair is a decoder's train step on an H100, as XLA scheduled it, and with fewer scan residuals.
In `ref0` and `ref2` a slice is read whose shape puts an extent of 1 outermost; in `ref1` and `mha0`
the carry that checkpoint arrays keep is not row-major.
"""

import gzip
import pathlib

import pytest

from hlo import xla_pb2
from olla_xla.check.executable import check_rewrite, iterations, results_digest
from olla_xla.check.executable.element_expressions import ElementExpressions
from olla_xla.check.executable.program import read_program

FOLDER = pathlib.Path(__file__).parent / "refused"
LAST = 7
"""Of eight layers: the backward loop's iteration i reads slice 7 - i."""


def module(pair, which):
    return gzip.decompress((FOLDER / f"{pair}_{which}.pb.gz").read_bytes())


@pytest.mark.parametrize("pair", ["ref0", "ref1", "ref2", "mha0"])
def test_a_right_rewrite_is_accepted(pair):
    check_rewrite(module(pair, "before"), module(pair, "after"), "cuda", loops=True)


def first_slices(proto):
    """Constants by which fusions count back the slices of arrays of one slice a layer."""
    for computation in proto.computations:
        by_id = {i.id: i for i in computation.instructions}
        cut = {
            k
            for i in computation.instructions
            if i.opcode == "dynamic-slice"
            and by_id[i.operand_ids[0]].shape.dimensions[0] == LAST + 1
            for k in i.operand_ids[1:]
        }
        for i in computation.instructions:
            if i.opcode == "subtract" and i.id in cut:
                yield by_id[i.operand_ids[0]]


@pytest.mark.parametrize("pair", ["ref2", "mha0"])
def test_another_slice_is_not(pair):
    proto = xla_pb2.HloModuleProto.FromString(module(pair, "after"))
    expected, found = results_digest(module(pair, "before"), "cuda", loops=True), []
    for constant in first_slices(proto):
        old = constant.literal
        assert old.endswith(bytes([LAST]))
        constant.literal = old[:-1] + bytes([LAST - 1])
        found.append(results_digest(proto.SerializeToString(), "cuda", loops=True))
        constant.literal = old
    assert len(found) > 1 and expected not in found


class WrittenOut(iterations.Loops):
    """Numbers every operation of every iteration, instead of repeating the steps of the first."""

    def _iterated(self, numbering, op, start, condition, body):
        body, condition = op.called
        state, effects = start, []
        while True:
            (goes_on,) = numbering.run(condition, [state], effects).values()
            goes_on = numbering.integers.value(goes_on)
            if not goes_on:
                return None if goes_on is None else (state, effects)
            state = numbering.run(body, [state], effects)


@pytest.mark.parametrize("which", ["before", "after"])
@pytest.mark.parametrize("pair", ["ref0", "ref1", "ref2", "mha0"])
def test_iterations_are_numbered_as_if_written_out(pair, which):
    def results(loops):
        numbering = ElementExpressions("cuda")
        numbering.loops = loops
        return numbering.function(read_program(module(pair, which)).entry)[0]

    assert results(iterations.Loops()) == results(WrittenOut())
