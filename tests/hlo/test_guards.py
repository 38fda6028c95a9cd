"""Control edges from who reads memory to who writes it next."""

import re

import pytest

from hlo import xla_pb2
from hlo.graph import MutableComputation
from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.check.executable import check_control, check_planned
from tests.support.rewrites import with_guards

pytestmark = pytest.mark.quick

HEAD = """HloModule m, is_scheduled=true{attributes}

double {{
  p = f32[64] parameter(0)
  ROOT d = f32[64] add(p, p)
}}

turned {{
  p = f32[64] parameter(0)
  ROOT d = f32[64] reverse(p), dimensions={{0}}
}}

"""
DONATED = ", input_output_alias={ {0}: (0, {}, may-alias) }"
BOUND = "output_to_operand_aliasing={{}: (0, {})}"


def guarded(entry, attributes="", more=""):
    """The module, and names of who writes -> who reads before, without XLA's numbers."""
    data = from_hlo_text(HEAD.format(attributes=attributes) + more + entry)
    after = with_guards(data, "cuda")
    check_control(data, after)
    check_planned(data, after, "cuda")
    proto = xla_pb2.HloModuleProto.FromString(after)
    names = {i.id: re.sub(r"\.\d+", "", i.name) for c in proto.computations for i in c.instructions}
    edges = {
        names[i.id]: {names[k] for k in i.control_predecessor_ids}
        for c in proto.computations
        for i in c.instructions
        if i.control_predecessor_ids
    }
    order = [names[i.id] for i in module_from_bytes(after).entry.schedule or ()]
    return data, after, edges, order


def test_readers_of_an_argument_come_before_what_replaces_it():
    _, _, edges, _ = guarded(
        """
ENTRY e {
  a = f32[64] parameter(0)
  b = f32[64] parameter(1)
  early = f32[64] fusion(a), kind=kLoop, calls=turned
  other = f32[64] fusion(b), kind=kLoop, calls=turned
  new = f32[64] fusion(a), kind=kLoop, calls=double
  ROOT r = (f32[64], f32[64], f32[64]) tuple(new, early, other)
}""",
        DONATED,
    )
    assert edges == {"new": {"early"}}


def test_a_bound_fusion_comes_before_what_hands_it_on(monkeypatch):
    # What forwards results is listed once: to look for each fusion's took LSTM's plan 0.4 s.
    monkeypatch.delattr(MutableComputation, "readers")
    _, _, edges, order = guarded(
        f"""
ENTRY e {{
  a = f32[64] parameter(0)
  t = f32[64] fusion(a), kind=kLoop, calls=double
  v = f32[8,8] bitcast(t)
  s = f32[64] fusion(t), kind=kLoop, calls=turned
  u = f32[8,8] negate(v)
  f = f32[64] fusion(t), kind=kLoop, calls=double, {BOUND}
  w = f32[64] fusion(s), kind=kLoop, calls=turned
  g = f32[64] fusion(f), kind=kLoop, calls=turned
  ROOT r = (f32[64], f32[64], f32[64], f32[8,8]) tuple(w, s, g, u)
}}"""
    )
    assert edges == {"f": {"s", "u"}, "f.is_placed": {"f"}}
    assert order[order.index("f") + 1] == "f.is_placed"


def test_nothing_shared_is_left_as_it_is():
    data, after, edges, _ = guarded(
        """
ENTRY e {
  a = f32[64] parameter(0)
  t = f32[64] fusion(a), kind=kLoop, calls=double
  ROOT f = f32[64] fusion(t), kind=kLoop, calls=turned
}"""
    )
    assert after == module_from_bytes(data).proto.SerializeToString(deterministic=True)
    assert not edges


LOOP = """
body {
  s = (f32[64], f32[64], s32[]) parameter(0)
  x = f32[64] get-tuple-element(s), index=0
  y = f32[64] get-tuple-element(s), index=1
  n = s32[] get-tuple-element(s), index=2
  k = f32[64] fusion(x), kind=kLoop, calls=turned
  z = f32[64] fusion(x), kind=kLoop, calls=double
  one = s32[] constant(1)
  m = s32[] add(n, one)
  q = f32[64] add(k, z)
  ROOT r = (f32[64], f32[64], s32[]) tuple(q, y, m)
}

condition {
  s = (f32[64], f32[64], s32[]) parameter(0)
  n = s32[] get-tuple-element(s), index=2
  most = s32[] constant(3)
  ROOT c = pred[] compare(n, most), direction=LT
}
"""


def test_what_a_loop_passes_on_and_what_it_starts_from():
    _, _, edges, _ = guarded(
        """
ENTRY e {
  a = f32[64] parameter(0)
  b = f32[64] parameter(1)
  zero = s32[] constant(0)
  t = f32[64] fusion(a), kind=kLoop, calls=double
  u = f32[64] fusion(b), kind=kLoop, calls=double
  first = f32[64] fusion(t), kind=kLoop, calls=turned
  second = f32[64] fusion(u), kind=kLoop, calls=turned
  i = s32[] copy(zero)
  s = (f32[64], f32[64], s32[]) tuple(t, u, i)
  w = (f32[64], f32[64], s32[]) while(s), condition=condition, body=body
  x = f32[64] get-tuple-element(w), index=0
  ROOT r = (f32[64], f32[64], f32[64]) tuple(x, first, second)
}""",
        more=LOOP,
    )
    assert edges["w"] == {"first"}, "the loop leaves u as it was"
    assert edges["q"] == {"k", "z"}
