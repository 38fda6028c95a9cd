"""Pairs of loops written by hand: what is a scan residual, and what is written without it."""

import pytest

from hlo.dumps.read import with_program_order
from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.check.executable import check_rewrite
from olla_xla.errors import PlanMismatchError
from olla_xla.remat.loops.indices import Affine
from olla_xla.remat.loops.pairs import pairs
from olla_xla.remat.loops.recipe import recipe
from tests.check.test_executable_loops import STATE, condition, module_text, reader, writer
from tests.support.rewrites import record, with_loops_changed

BOTH = """kept = f32[1,4]{1,0} dynamic-slice(stack, k, zero), dynamic_slice_sizes={1,4}
  made = f32[1,4]{1,0} dynamic-slice(other, k, zero), dynamic_slice_sizes={1,4}
  p = f32[1,4]{1,0} subtract(kept, made)"""

TARGETS = pytest.mark.parametrize("target", ["cpu", "cuda"])


def scheduled(first=None, then=None):
    return with_program_order(from_hlo_text(module_text(first or writer(), then or reader(BOTH))))


def pair_of(data, target="cpu"):
    (pair,) = pairs(module_from_bytes(data), target)
    return pair


def without(data, *gone, target="cpu"):
    """The module without some scan residuals, which the referee accepts, and the edit."""
    view = module_from_bytes(data)
    pair = pair_of(data, target)
    edit = recipe(view, pair, record(pair, *gone))
    after = with_loops_changed(data, [edit])
    check_rewrite(data, after, target, loops=True)
    return module_from_bytes(after), edit


def body_of(module, name):
    return next(c for c in module.control_computations if c.name.split(".")[0] == name)


def opcodes(computation):
    return [i.opcode for i in computation.schedule]


# What is a scan residual.


@TARGETS
@pytest.mark.parametrize(("at", "read"), [("i", "k"), ("back", "j")])
def test_slices_of_each_iterations_own_are_of_a_residual(target, at, read):
    data = scheduled(writer(at=at), reader(BOTH.replace(", k,", f", {read},")))
    pair = pair_of(data, target)
    assert [(s.written, s.read, s.axis, s.bytes) for s in pair.scan_residuals] == [
        (2, 2, 0, 48),
        (3, 3, 0, 48),
    ]
    up, down = Affine((0,), 1, 0), Affine((0,), -1, 2)
    assert pair.written == (up if at == "i" else down)
    assert pair.place == (down if read == "k" else up)
    assert pair.iteration == down, "the last one's is read first"
    assert [r.owner.name.split(".")[0] for r in pair.scan_residuals[1].reads] == ["made"]
    assert pair.scan_residuals[1].value.i.opcode == "sine"


def test_other_numbers_of_iterations_are_no_pair():
    shorter = reader(BOTH).replace(condition("reads_on", STATE), condition("reads_on", STATE, 2))
    data = scheduled(None, shorter)
    assert not [s for p in pairs(module_from_bytes(data), "cpu") for s in p.scan_residuals]


# What is written without it.


@TARGETS
@pytest.mark.parametrize("at", ["i", "back"])
def test_what_goes_is_computed_again_in_the_other_loop(target, at):
    data = scheduled(writer(at=at))
    after, edit = without(data, 3, target=target)
    assert edit.dropped == ((3, 3),) and not edit.added
    writes, reads = body_of(after, "writes"), body_of(after, "reads")
    assert opcodes(writes).count("dynamic-update-slice") == 1
    assert "sine" not in opcodes(writes) and "sine" in opcodes(reads)
    assert len(writes.parameters[0].shape.elements) == len(reads.parameters[0].shape.elements) == 3
    assert [m.original.split(".")[0] for m in edit.made if m.original] == ["y"]


@pytest.mark.parametrize("target", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("at", ["i", "back"])
def test_what_reads_the_iteration_reads_that_of_the_other_loop(target, at):
    counted = writer("add(x, wide)", at=at).replace(
        "  other =",
        "  real = f32[] convert(i)\n  wide = f32[4]{0} broadcast(real), dimensions={}\n  other =",
    )
    after, edit = without(scheduled(counted), 3, target=target)
    assert edit.iteration == ((-1, 2) if at == "i" else (1, 0))
    assert "convert" in opcodes(body_of(after, "reads"))


def test_both_go_where_the_carry_is_kept_in_their_place():
    """What the first residual has is the carry as an iteration begins: it has to be kept."""
    after, edit = without(scheduled(), 2, 3)
    assert edit.added == (1,), "a residual of the carry"
    writes = body_of(after, "writes")
    assert (
        opcodes(writes).count("dynamic-update-slice")
        + sum(
            "dynamic-update-slice" in [k.opcode for k in i.called[0].instructions]
            for i in writes.schedule
            if i.opcode == "fusion"
        )
        == 1
    )


def test_what_cannot_be_computed_again_is_told():
    once = writer('custom-call(x), custom_call_target="f"')
    data = scheduled(once)
    with pytest.raises(PlanMismatchError):
        recipe(module_from_bytes(data), pair_of(data), record(pair_of(data), 3))


# Numbers of what a body computes.


# Arrays and names of what is made again.
