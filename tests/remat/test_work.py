"""What instructions move: of stacks that loops read and write, one slice."""

import pytest

from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.remat.cost.work import work

pytestmark = pytest.mark.quick

SLICED = """HloModule m, is_scheduled=true

take {{
  stack = f32[8,4,32]{{2,1,0}} parameter(0)
  j = s32[] parameter(1)
  zero = s32[] constant(0)
  {seen}
  slice = f32[1,128]{{1,0}} dynamic-slice({read}, j, zero), dynamic_slice_sizes={{1,128}}
  ROOT r = f32[1,128]{{1,0}} negate(slice)
}}

ENTRY e {{
  stack = f32[8,4,32]{{2,1,0}} parameter(0)
  j = s32[] parameter(1)
  ROOT f = f32[1,128]{{1,0}} fusion(stack, j), kind=kLoop, calls=take
}}
"""

WRITTEN = """HloModule m, is_scheduled=true

put {
  stack = f32[8,128]{1,0} parameter(0)
  i = s32[] parameter(1)
  a = f32[1,128]{1,0} parameter(2)
  zero = s32[] constant(0)
  n = f32[1,128]{1,0} negate(a)
  ROOT u = f32[8,128]{1,0} dynamic-update-slice(stack, n, i, zero)
}

ENTRY e {
  a = f32[1,128]{1,0} parameter(0)
  i = s32[] parameter(1)
  zero = f32[] constant(0)
  stack = f32[8,128]{1,0} broadcast(zero), dimensions={}
  ROOT f = f32[8,128]{1,0} fusion(stack, i, a), kind=kLoop, calls=put
}
"""


def moved(text, target="cuda"):
    """Bytes that the instruction f moves."""
    module = module_from_bytes(from_hlo_text(text))
    return work(next(i for i in module.entry.instructions if i.name == "f"), target).bytes


@pytest.mark.parametrize(
    "seen", ["", "flat = f32[8,128]{1,0} bitcast(stack)"], ids=["as it is", "through a bitcast"]
)
def test_of_a_stack_that_is_sliced_one_slice_is_read(seen):
    if not seen:
        text = SLICED.replace("[8,4,32]{{2,1,0}}", "[8,128]{{1,0}}")
        assert moved(text.format(seen="", read="stack")) == 4 + 2 * 512
    else:
        assert moved(SLICED.format(seen=seen, read="flat")) == 4 + 2 * 512


def test_of_a_stack_that_is_updated_one_slice_is_written():
    assert moved(WRITTEN) == 4 + 2 * 512


@pytest.mark.parametrize(
    ("given", "result", "kind", "operations"),
    [
        ("c64[4,16,8]", "c64[4,16,8]", "FFT", 5 * 512 * 7),
        ("f32[4,16,8]", "c64[4,16,5]", "RFFT", 5 * 512 * 7 // 2),
        ("c64[4,16,5]", "f32[4,16,8]", "IRFFT", 5 * 512 * 7 // 2),
    ],
)
def test_a_transform_takes_operations_of_its_length(given, result, kind, operations):
    text = f"""HloModule m, is_scheduled=true

ENTRY e {{
  a = {given}{{2,1,0}} parameter(0)
  ROOT f = {result}{{2,1,0}} fft(a), fft_type={kind}, fft_length={{16,8}}
}}
"""
    root = module_from_bytes(from_hlo_text(text)).entry.root
    assert root is not None and work(root, "cpu").operations == operations


@pytest.mark.parametrize("target", ["cuda", "tpu"])
@pytest.mark.parametrize("called", ["AllocateBuffer", "CreateBuffer"])
def test_memory_of_the_host_as_it_is_takes_no_time(called, target):
    text = f"""HloModule m, is_scheduled=true

ENTRY e {{
  ROOT f = f32[64,1024]{{1,0:S(5)}} custom-call(), custom_call_target="{called}"
}}
"""
    assert moved(text, target) == 0
