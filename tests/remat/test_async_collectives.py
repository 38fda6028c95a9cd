"""Loops over several chips: fusions that run parts of a transfer, and transfers of both loops."""

import pytest

from hlo.async_collective_fusion import OwnPart, own_part
from hlo.dumps.read import with_program_order
from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.check.executable import check_rewrite, results_digest
from olla_xla.errors import CheckError, PlanMismatchError
from olla_xla.remat.cost.work import work
from olla_xla.remat.loops.pairs import pairs
from olla_xla.remat.loops.recipe import recipe
from tests.support.rewrites import record, with_loops_changed

STATE = "(s32[], f32[4], f32[3,4], f32[3,4], f32[2,2]{1,0}, f32[2], f32[4], u32[])"
ROWS, COLUMNS = "{1,0}", "{0,1}"
SHIFT = "source_target_pairs={{0,1},{1,0}}"
STAY = "source_target_pairs={{0,0},{1,1}}"

OWN = """y = f32[4] multiply(x, w)
  c = f32[1,4] bitcast(y)
  zero = s32[] constant(0)
  u = f32[3,4] dynamic-update-slice(stack, c, i, zero)"""

FUSION = """f = (f32[3,4], f32[2], f32[4], u32[]) fusion(shard, sem, other, i, x, pd),
    kind=kOutput, calls=carried, output_to_operand_aliasing={{1}: (0, {})},
    backend_config={"continuation_config":{"output_tuple_original_start":"0"}}"""


def carried(own=OWN, transfer="all-gather(shard), dimensions={0}, replica_groups={{0,1}}"):
    return f"""carried {{
  shard = f32[2] parameter(0)
  sem = u32[] parameter(1)
  stack = f32[3,4] parameter(2)
  i = s32[] parameter(3)
  x = f32[4] parameter(4)
  w2 = f32[2,2]LAYOUT parameter(5)
  w = f32[4] reshape(w2)
  half = f32[2] slice(w), slice={{[0:2]}}
  g = f32[4] {transfer}
  {own}
  ROOT t = (f32[3,4], f32[2], f32[4], u32[]) tuple(u, shard, g, sem)
}}"""


def condition(name):
    return f"""{name} {{
  s = {STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT t = pred[] compare(i, n), direction=LT
}}"""


def permuted(pairs, layout, channel):
    kind = f"f32[2,2]{layout}"
    return f"""wl = {kind} copy(weights)
  ps = ({kind}, {kind}, u32[], u32[]) collective-permute-start(wl),
    channel_id={channel}, {pairs}
  pd = {kind} collective-permute-done(ps)"""


def module(body=None, to_reader=SHIFT, layouts=(ROWS, ROWS)):
    """Weights are handed on to a neighbour in both loops; the first one keeps what it makes."""
    elements = """i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  stack = f32[3,4] get-tuple-element(s), index=2
  other = f32[3,4] get-tuple-element(s), index=3
  weights = f32[2,2] get-tuple-element(s), index=4
  shard = f32[2] get-tuple-element(s), index=5
  gathered = f32[4] get-tuple-element(s), index=6
  sem = u32[] get-tuple-element(s), index=7"""
    common = f"s = {STATE} parameter(0)\n  {elements}\n  one = s32[] constant(1)\n  "
    common += "zero = s32[] constant(0)\n  n = s32[] add(i, one)"
    return with_program_order(
        from_hlo_text(f"""HloModule m, num_partitions=2
{(body or carried()).replace("LAYOUT", layouts[0])}
writes {{
  {common}
  {permuted(SHIFT, layouts[0], 1)}
  b = f32[1,4] bitcast(x)
  v = f32[3,4] dynamic-update-slice(stack, b, i, zero)
  {FUSION}
  o = f32[3,4] get-tuple-element(f), index=0
  f1 = f32[2] get-tuple-element(f), index=1
  f2 = f32[4] get-tuple-element(f), index=2
  f3 = u32[] get-tuple-element(f), index=3
  h = f32[4] cosine(x)
  ROOT t = {STATE} tuple(n, h, v, o, weights, f1, f2, f3)
}}
{condition("writes_on")}
reads {{
  {common}
  {permuted(to_reader, layouts[1], 2)}
  last = s32[] constant(2)
  k = s32[] subtract(last, i)
  p = f32[1,4] dynamic-slice(other, k, zero), dynamic_slice_sizes={{1,4}}
  d = f32[4] bitcast(p)
  r = f32[4] add(x, d)
  flat = f32[4] reshape(pd)
  q = f32[4] subtract(r, flat)
  ROOT t = {STATE} tuple(n, q, stack, other, weights, shard, gathered, sem)
}}
{condition("reads_on")}
ENTRY e {{
  x = f32[4] parameter(0)
  weights = f32[2,2]{{1,0}} parameter(1)
  shard = f32[2] parameter(2)
  zero = s32[] constant(0)
  sem = u32[] constant(0)
  f = f32[] constant(0)
  z = f32[3,4] broadcast(f), dimensions={{}}
  gathered = f32[4] broadcast(f), dimensions={{}}
  b = {STATE} tuple(zero, x, z, z, weights, shard, gathered, sem)
  w = {STATE} while(b), condition=writes_on, body=writes
  h = f32[4] get-tuple-element(w), index=1
  g = f32[3,4] get-tuple-element(w), index=2
  o = f32[3,4] get-tuple-element(w), index=3
  c = {STATE} tuple(zero, h, g, o, weights, shard, gathered, sem)
  q = {STATE} while(c), condition=reads_on, body=reads
  ROOT r = f32[4] get-tuple-element(q), index=1
}}""")
    )


def fusion_of(data):
    view = module_from_bytes(data)
    return next(i for c in view.computations for i in c.instructions if i.opcode == "fusion")


def without_other(data):
    view = module_from_bytes(data)
    (pair,) = pairs(view, "tpu")
    return with_loops_changed(data, [recipe(view, pair, record(pair, 3))])


def test_what_a_fusion_does_beside_a_transfer_is_told_apart():
    fusion = fusion_of(module())
    assert own_part(fusion) == OwnPart(results=(0,), operands=(2, 3, 4, 5))
    own = 4 * (2 * 4 + 4) + 4  # two operands and a slice, and an index
    assert own <= work(fusion, "tpu").bytes < own + 4 * 4 * 3, "the transfer's is not counted"


NOT_APART = {
    "what it makes is made of the transfer": carried(OWN.replace("(x, w)", "(x, g)")),
    "nothing is transferred": carried(transfer="negate(w)"),
    "it reads what is transferred": carried(
        transfer="all-gather(half), dimensions={0}, replica_groups={{0,1}}"
    ),
}


@pytest.mark.parametrize("name", NOT_APART)
def test_what_is_not_apart(name):
    assert own_part(fusion_of(module(NOT_APART[name]))) is None


def test_a_copy_runs_without_the_transfer_and_reads_the_loops_own():
    before = module()
    after = without_other(before)
    check_rewrite(before, after, "tpu", loops=True)
    view = module_from_bytes(after)
    (body,) = (c for c in view.control_computations if c.name.split(".")[0] == "reads")
    (copy,) = (i for i in body.instructions if i.opcode == "fusion" and ".again" in i.name)
    inside = {i.opcode for i in copy.called[0].instructions}
    assert "multiply" in inside and not inside & {"all-gather", "tuple"}
    assert not copy.shape.is_tuple and not copy.backend_config
    assert any(o.opcode == "collective-permute-done" for o in copy.operands)
    starts = [i for i in body.instructions if i.opcode == "collective-permute-start"]
    assert len(starts) == 1, "nothing is sent once more"


def test_another_transfer_is_another_value():
    before = module(to_reader=STAY)
    with pytest.raises(PlanMismatchError):
        without_other(before)


def test_the_referee_tells_transfers_apart():
    digests = {results_digest(module(to_reader=to), "tpu", loops=True) for to in (SHIFT, STAY)}
    assert len(digests) == 2
    after = without_other(module())
    with pytest.raises(CheckError):
        check_rewrite(module(to_reader=STAY), after, "tpu", loops=True)


def test_a_transfer_in_another_layout_is_copied():
    """What the backward loop receives in rows, and the forward loop in columns."""
    before = module(layouts=(COLUMNS, ROWS))
    after = without_other(before)
    check_rewrite(before, after, "tpu", loops=True)
    view = module_from_bytes(after)
    (body,) = (c for c in view.control_computations if c.name.split(".")[0] == "reads")
    starts = [i for i in body.instructions if i.opcode == "collective-permute-start"]
    assert len(starts) == 1, "nothing is sent once more"
    (copy,) = (i for i in body.instructions if i.opcode == "copy" and "relaid" in i.name)
    assert copy.operands[0].opcode == "collective-permute-done"
    assert copy.shape.minor_to_major == (0, 1)
    assert copy.operands[0].shape.minor_to_major == (1, 0)
    with pytest.raises(PlanMismatchError):
        without_other(module(to_reader=STAY, layouts=(COLUMNS, ROWS)))
