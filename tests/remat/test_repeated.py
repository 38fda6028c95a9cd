"""Transfers that run twice: which hold the same, and clones that read the later one."""

import numpy as np
import pytest

from hlo.dumps.read import with_program_order
from hlo.module import HloError, module_from_bytes
from hlo.rewrite.clones import Clone, add_clones
from hlo.rewrite.edit import Edit
from hlo.text import from_hlo_text
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import CheckError
from olla_xla.memory.module_state import PlannedModule
from olla_xla.remat.clones import clones
from olla_xla.remat.evictions import expand
from olla_xla.remat.graph import remat_graph, repeated_results
from tests.support.rates import cost

GATHER = (
    "replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, channel_id={}, use_global_device_ids=true"
)


def read(text, head="num_partitions=4"):
    return module_from_bytes(with_program_order(from_hlo_text(f"HloModule m, {head}\n{text}")))


def step(second="w", groups="0,1,2,3", before="q"):
    """A weight gathered for a product and, after others, for another one.

    Args:
      second: what is gathered the second time. groups: by which devices.
      before: what runs right after that.
    """
    later = f"""  w1 = bf16[256,64] convert({second})
  g1 = bf16[1024,64] all-gather(w1), replica_groups={{{{{groups}}}}}, channel_id=2,
    dimensions={{0}}, use_global_device_ids=true
"""
    text = f"""ENTRY e {{ w = f32[256,64] parameter(0)
  v = f32[256,64] parameter(1)
  x = bf16[1024,64] parameter(2)
  w0 = bf16[256,64] convert(w)
  g0 = bf16[1024,64] all-gather(w0), {GATHER.format(1)}
  m = bf16[1024,64] multiply(x, g0)
  t = bf16[1024,64] tanh(m)
  n1 = bf16[1024,64] negate(t)
  n2 = bf16[1024,64] sine(n1)
"""
    text += """  p = bf16[1024,64] multiply(t, n2)
  q = bf16[1024,64] add(p, g1)
  ROOT r = bf16[1024,64] negate(q) }"""
    return text.replace(f"  {before} =", f"{later}  {before} =")


def graph_of(module):
    planned = PlannedModule(module, "cpu")
    lowered = planned.charge_all()
    return planned, remat_graph(planned.dataflow, lowered, cost())


def groups_of(module):
    planned = PlannedModule(module, "cpu")
    found = repeated_results(planned.dataflow, module.entry.instructions)
    return [[r.transfer.name for r in group] for group in found]


def test_gathers_of_one_shard_by_the_same_devices_hold_the_same():
    assert groups_of(read(step())) == [["g0", "g1"]]


def test_other_operands_and_other_devices_do_not():
    assert groups_of(read(step(second="v"))) == []
    assert groups_of(read(step(groups="0,2,1,3"))) == []


def test_what_depends_on_more_than_parameters_cannot_run_at_any_time():
    text = step().replace("w1 = bf16[256,64] convert(w)", "w1 = bf16[256,64] slice(n2), "
                          "slice={[0:256], [0:64]}")  # fmt: skip
    assert groups_of(read(text)) == []


def test_what_waits_for_something_else_stays_where_it_is():
    text = step().replace(
        "dimensions={0}, use_global_device_ids=true\n  q",
        "dimensions={0}, use_global_device_ids=true, control-predecessors={n2}\n  q",
    )
    assert "control-predecessors" in text and groups_of(read(text)) == []


def rewritten(module, tensor="t", target="cpu"):
    """The module with a tensor dropped after its first reader, and the clones."""
    planned, g = graph_of(module)
    names = [i.name for i in g.instructions]
    values = [planned.dataflow.values[v].instruction.name for v in g.values]
    dropped = [
        (values.index(k), (2 * names.index("n1") + 1) * g.arrays.n + 1) for k in (tensor, "m")
    ]
    expansion = expand(g, np.array(dropped, np.int64))
    assert expansion.feasible
    made = clones(planned.dataflow, g, expansion)
    after = Edit(module).rewrite(add_clones, made).module()
    check_rewrite(module.data, after.data, target)
    check_executable(after.data, target)
    return g, expansion, made, after


def test_a_clone_reads_the_later_gather_which_then_runs_earlier():
    module = read(step())
    _, expansion, made, after = rewritten(module)
    assert [(c.original, c.operands) for c in made] == [
        ("m", ("x", "g1")),
        ("t", ("m.remat",)),
    ]
    order = [i.name for i in after.entry.instructions if i.opcode != "parameter"]
    at = {name: k for k, name in enumerate(after.order["e"])}
    assert at["w1"] < at["g1"] < at["m.remat"] < at["p"] and "g0" in order
    assert sum(i.opcode == "all-gather" for i in after.entry.instructions) == 2
    # Nothing but the two clones takes time.
    assert expansion.seconds > 0 and len(made) == 2


def test_what_overlaps_is_no_repetition():
    """The second gather runs before the first one's last reader."""
    text = step(before="m")
    _, g = graph_of(read(text))
    assert groups_of(read(text)) == [["g0", "g1"]] and not g.repeats


ASYNC = """%gather (a: bf16[256,64], b: bf16[8,4]) -> (bf16[1024,64], bf16[32,4]) {
  a = bf16[256,64] parameter(0)
  b = bf16[8,4] parameter(1)
  ROOT g = (bf16[1024,64], bf16[32,4]) all-gather(a, b), GATHER1
}
%again (a: bf16[256,64]) -> bf16[1024,64] {
  a = bf16[256,64] parameter(0)
  ROOT g = bf16[1024,64] all-gather(a), GATHER2
}
ENTRY e { w = f32[256,64] parameter(0)
  b = bf16[8,4] parameter(1)
  x = bf16[1024,64] parameter(2)
  w0 = bf16[256,64] convert(w)
  go0 = ((bf16[256,64], bf16[8,4]), (bf16[1024,64], bf16[32,4])) async-start(w0, b), calls=%gather
  d0 = (bf16[1024,64], bf16[32,4]) async-done(go0)
  g0 = bf16[1024,64] get-tuple-element(d0), index=0
  h0 = bf16[32,4] get-tuple-element(d0), index=1
  m = bf16[1024,64] multiply(x, g0)
  t = bf16[1024,64] tanh(m)
  n1 = bf16[1024,64] negate(t)
  n2 = bf16[1024,64] sine(n1)
  p = bf16[1024,64] multiply(t, n2)
  w1 = bf16[256,64] convert(w)
  go1 = ((bf16[256,64]), bf16[1024,64]) async-start(w1), calls=%again
  e1 = bf16[1024,64] exponential(p)
  d1 = bf16[1024,64] async-done(go1)
  q = bf16[1024,64] add(e1, d1)
  ROOT r = (bf16[1024,64], bf16[32,4]) tuple(q, h0) }""".replace(
    "GATHER1", GATHER.format(1)
).replace("GATHER2", GATHER.format(2))


def test_an_asynchronous_gather_keeps_its_distance():
    """Of two arrays that are gathered together one is gathered again alone."""
    module = read(ASYNC)
    assert groups_of(module) == [["go0", "go1"]]
    _, _, made, after = rewritten(module, target="cuda")
    assert ("m", ("x", "d1")) in [(c.original, c.operands) for c in made]
    at = {name: k for k, name in enumerate(after.order["e"])}
    assert at["w1"] < at["go1"] < at["d1"] < at["m.remat"] < at["p"]
    assert at["d1"] - at["go1"] >= 2


def test_a_clone_that_reads_the_wrong_gather_is_refused():
    module = read(step(second="v"))
    wrong = [Clone("m.remat", "m", ("x", "g1"), (("p", 0),))]
    with pytest.raises(CheckError):
        check_rewrite(module.data, Edit(module).rewrite(add_clones, wrong).module().data, "cpu")


def test_a_clone_cannot_read_what_is_made_from_it():
    module = read(step())
    circle = [Clone("t.remat", "t", ("q",), (("p", 0),))]
    with pytest.raises(HloError, match="depends on itself"):
        Edit(module).rewrite(add_clones, circle)
