"""Predicted time on a GPU's streams: what hides, and what does not."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo.dumps.read import from_hlo_text
from hlo.module import module_from_bytes
from olla_xla.remat.cost.path import Streams, is_transfer, path_seconds
from olla_xla.remat.cost.roofline import H100, CostModel

COST = CostModel(dataclasses.replace(H100, start_seconds=1.0), "cuda")


def test_a_transfer_hides_behind_other_work_and_before_its_done():
    streams = Streams(1.0)
    streams.start("a", 5.0, link="devices")
    streams.run(3.0)
    streams.done("a")
    assert streams.now == 5.0
    streams.start("b", 2.0, link="devices")
    streams.run(3.0)
    streams.done("b")
    assert streams.now == 8.0


LINKS = {"run": "", "transfer": "devices", "host": "to the host", "beside": ""}
STEPS = st.lists(st.tuples(st.floats(0, 9), st.sampled_from([*LINKS]), st.integers(0, 3)))


@given(STEPS)
def test_no_time_is_less_than_the_main_stream_takes_nor_more_than_all_in_turn(steps):
    streams, waiting = Streams(0.5), []
    for k, (seconds, what, dones) in enumerate(steps):
        if what == "run":
            streams.run(seconds)
        else:
            streams.start(k, seconds, link=LINKS[what])
            waiting.append(k)
        for _ in range(min(dones, len(waiting))):
            streams.done(waiting.pop(0))
    least = sum(seconds for seconds, what, _ in steps if what == "run")
    most = sum(seconds for seconds, _, _ in steps)
    assert least * (1 - 1e-12) <= streams.finish() <= most * (1 + 1e-12)


_TEXT = """HloModule m, is_scheduled=true
copied {
  c = f32[8] parameter(0)
  ROOT d = f32[8] copy(c)
}
ENTRY e {
  p = f32[8] parameter(0)
  s = ((f32[8]), f32[8]) async-start(p), calls=copied
  a = f32[8] negate(p)
  d = f32[8] async-done(s)
  b = f32[8] add(a, d)
  ROOT r = f32[8] negate(b)
}
"""


def test_a_module_in_its_own_order_and_in_another():
    module = module_from_bytes(from_hlo_text(_TEXT))
    assert path_seconds(module, COST) == pytest.approx(3.0, abs=1e-6)
    order = {"e": ("p", "s", "d", "a", "b", "r", "gone")}
    assert path_seconds(module, COST, order) == pytest.approx(4.0, abs=1e-6)
    assert COST.step_seconds(module) == pytest.approx(4.0, abs=1e-6)


_SPILLED = """HloModule m, is_scheduled=true
w {
  c = f32[2,64]{1,0:S(5)} parameter(0)
  u = f32[1,64] parameter(1)
  z = s32[] parameter(2)
  ROOT d = f32[2,64]{1,0:S(5)} dynamic-update-slice(c, u, z, z)
}
r {
  c = f32[2,64]{1,0:S(5)} parameter(0)
  z = s32[] parameter(1)
  ROOT d = f32[1,64] dynamic-slice(c, z, z), dynamic_slice_sizes={1,64}
}
ENTRY e {
  p = f32[1,64] parameter(0)
  h = f32[2,64]{1,0:S(5)} parameter(1)
  z = s32[] constant(0)
  s = ((f32[2,64]{1,0:S(5)}, f32[1,64], s32[]), f32[2,64]{1,0:S(5)}) async-start(h, p, z), calls=w
  t = ((f32[2,64]{1,0:S(5)}, s32[]), f32[1,64]) async-start(h, z), calls=r
  k = (f32[2,64], f32[2,64]{1,0:S(5)}, u32[]) copy-start(h)
  e = f32[2,64] copy-done(k)
  d = f32[2,64]{1,0:S(5)} async-done(s)
  g = f32[1,64] async-done(t)
  ROOT o = (f32[2,64]{1,0:S(5)}, f32[1,64], f32[2,64]) tuple(d, g, e)
}
"""


def test_copies_to_the_host_and_from_it_take_a_link_each():
    link = dataclasses.replace(COST.device, start_seconds=0.0, host_bytes_per_second=256.0)
    module = module_from_bytes(from_hlo_text(_SPILLED))
    cost = CostModel(link, "cuda")
    assert cost.step_seconds(module) == pytest.approx(4.0), "one slice out, one in, two in"
    assert path_seconds(module, cost) == pytest.approx(3.0), "out beside in"


@pytest.mark.parametrize("opcode", ["all-gather", "all-reduce-start", "send", "reduce-scatter"])
def test_transfers_go_over_a_link(opcode):
    assert is_transfer(opcode) and not is_transfer("copy-start")
