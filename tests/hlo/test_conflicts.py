"""Where a value must be copied before another is written into its memory."""

import pytest

from hlo.module import module_from_bytes
from hlo.rewrite.apart import conflicts
from hlo.text import from_hlo_text
from hlo.values import analyse

pytestmark = pytest.mark.quick

SUMMED = """HloModule m, is_scheduled=true, num_partitions=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

wrapped {
  q = f32[8] parameter(0)
  ROOT r = f32[8] all-reduce(q), channel_id=1, replica_groups={{0,1}}, to_apply=add
}

ENTRY e {
  p = f32[8] parameter(0)
  x = f32[8] sine(p)
  start = ((f32[8]), f32[8], u32[]) async-start(x), calls=wrapped
  y = f32[8] cosine(READ)
  done = f32[8] async-done(start), calls=wrapped
  ROOT z = f32[8] add(done, y)
}
"""


@pytest.mark.parametrize(("read", "found"), [("p", False), ("x", True)])
def test_what_a_start_writes_over_is_not_read_by_its_done(read, found):
    """An all-reduce has its operand's memory: nothing but it may read that from then on."""
    module = module_from_bytes(from_hlo_text(SUMMED.replace("READ", read)))
    assert bool(conflicts(analyse(module, "cuda"), "cuda")) is found
