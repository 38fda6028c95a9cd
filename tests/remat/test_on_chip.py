"""What lies in a TPU's VMEM by prediction, and what operators take then."""

import dataclasses

import pytest

from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.remat.cost.devices import card_device
from olla_xla.remat.cost.on_chip import on_chip
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.cost.work import touched

CHAIN = """HloModule chain, is_scheduled=true

ENTRY main {
  x = f32[256] parameter(0)
  a = f32[256] negate(x)
  b = f32[512] concatenate(a, a), dimensions={0}
  c = f32[256] slice(b), slice={[0:256]}
  d = f32[256] add(a, c)
  ROOT e = f32[256] negate(d)
}
"""

LOOP = """HloModule loop, is_scheduled=true

body {
  s = (s32[], f32[256]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(k, one)
  v = f32[256] get-tuple-element(s), index=1
  inner = f32[256] negate(v)
  seen = f32[16,16] bitcast(inner)
  other = f32[16,16] tanh(seen)
  back = f32[256] bitcast(other)
  ROOT r = (s32[], f32[256]) tuple(next, back)
}

condition {
  s = (s32[], f32[256]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  n = s32[] constant(8)
  ROOT less = pred[] compare(k, n), direction=LT
}

ENTRY main {
  x = f32[256] parameter(0)
  y = f32[256] negate(x)
  across = f32[256] tanh(x)
  zero = s32[] constant(0)
  start = (s32[], f32[256]) tuple(zero, y)
  whole = (s32[], f32[256]) while(start), condition=condition, body=body
  w = f32[256] get-tuple-element(whole), index=1
  within = f32[256] add(w, w)
  ROOT z = f32[256] add(within, across)
}
"""

SEVERAL = """HloModule several, is_scheduled=true

two {
  p = f32[256] parameter(0)
  n = f32[256] negate(p)
  t = f32[256] tanh(p)
  ROOT r = (f32[256], f32[256]) tuple(n, t)
}

ENTRY main {
  x = f32[256] parameter(0)
  both = (f32[256], f32[256]) fusion(x), kind=kLoop, calls=two
  first = f32[256] get-tuple-element(both), index=0
  ROOT y = f32[256] negate(first)
}
"""


def computation(text, name="main"):
    module = module_from_bytes(from_hlo_text(text))
    return next(c for c in module.control_computations if c.name == name)


def names(found):
    return sorted(i.name for i, _ in found)


pytestmark = pytest.mark.quick


@pytest.fixture
def tpu():
    device = card_device("TPU v5 lite")
    assert device is not None
    return device


def test_what_fits_lies_there_but_for_what_comes_and_goes():
    assert names(on_chip(computation(CHAIN), 2**20)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("capacity", "expected"),
    # At each step: a 1024, a+b 3072, a+b+c 4096, a+c+d 3072, d 1024 bytes. Moved: b 4096, a 3072
    # (it has two readers), c and d 2048 each.
    [
        (4096, ["a", "b", "c", "d"]),
        (4095, ["a", "b", "d"]),
        (3071, ["b", "d"]),
        (2047, ["a"]),
        (1023, []),
    ],
)
def test_arrays_that_move_most_bytes_come_first_as_far_as_they_fit(capacity, expected):
    assert names(on_chip(computation(CHAIN), capacity)) == expected


def test_a_loops_state_and_what_outlives_a_loop_stay_where_they_are():
    assert names(on_chip(computation(LOOP), 2**20)) == ["within"]
    assert names(on_chip(computation(LOOP, "body"), 2**20)) == ["inner"]


def test_results_that_nobody_reads_are_not_there():
    found = on_chip(computation(SEVERAL), 2**20)
    assert {(i.name, index) for i, index in found} == {("both", (0,))}


def test_memory_that_is_given_as_it_is_takes_none_of_its_own():
    text = CHAIN.replace("negate(x)", 'custom-call(), custom_call_target="AllocateBuffer"')
    assert "a" not in names(on_chip(computation(text), 2**20))


def test_an_operator_is_as_fast_as_the_memory_that_it_uses(tpu):
    near = tpu.near_bytes_per_second
    far = tpu.bytes_per_second
    seconds = {
        i.name: CostModel(dataclasses.replace(tpu, start_seconds=0.0), "tpu").seconds(i)
        for i in computation(CHAIN).instructions
    }
    assert seconds["a"] == pytest.approx(1024 / far + 1024 / near)
    assert seconds["b"] == pytest.approx(1024 / near + 2048 / near)
    assert seconds["c"] == pytest.approx(2048 / near)
    assert seconds["e"] == pytest.approx(1024 / near + 1024 / far)


def test_a_copy_keeps_what_it_makes_near_if_it_fits(tpu):
    (root,) = [i for i in computation(CHAIN).instructions if i.is_root]
    cost = CostModel(dataclasses.replace(tpu, start_seconds=0.0), "tpu")
    assert cost.copied_seconds(root) == pytest.approx(2048 / tpu.near_bytes_per_second)
    assert cost.copied_seconds(root) < cost.seconds(root)
    full = dataclasses.replace(cost.device, near_bytes=1000)
    assert CostModel(full, "tpu").copied_seconds(root) == CostModel(full, "tpu").seconds(root)
    saved = cost.nearer_seconds(root, 1024)
    assert saved == pytest.approx(cost.seconds(root) - cost.copied_seconds(root))
    assert cost.nearer_seconds(root, 2**20) == saved, "no more than it moves"


def test_on_other_devices_all_is_in_one_memory():
    card = card_device("NVIDIA H100")
    assert card is not None
    assert card.near_bytes == 0
    cost = CostModel(card, "cuda")
    for i in computation(CHAIN).instructions:
        assert cost.work(i).near == 0
        assert cost.copied_seconds(i) == cost.seconds(i)
        assert cost.nearer_seconds(i, 1024) == 0.0


def test_results_that_nobody_reads_take_time_where_xla_leaves_them_in():
    fusion = next(i for i in computation(SEVERAL).instructions if i.name == "both")
    moved = {t: sum(size for _, size in touched(fusion, t)) for t in ("tpu", "cuda")}
    assert moved == {"tpu": 2048, "cuda": 3072}
