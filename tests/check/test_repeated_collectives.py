"""XLA's rematerialization runs collectives again, on new channels; the values are the same."""

import pytest

from hlo.text import from_hlo_text
from olla_xla.check.executable import results_digest

_GATHERED = (
    "all-gather({operand}), channel_id={channel}, replica_groups={{{{{groups}}}}}, "
    "dimensions={{0}}, use_global_device_ids=true"
)

_MODULE = """HloModule m, is_scheduled=true, num_partitions=2

ENTRY e {{
  p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  first = f32[8] {first}
  doubled = f32[8] add(first, first)
  second = f32[8] {second}
  ROOT out = f32[8] multiply(doubled, second)
}}
"""


def gathered(operand="p", channel=1, groups="0,1"):
    return _GATHERED.format(operand=operand, channel=channel, groups=groups)


def digest(first, second):
    module = from_hlo_text(_MODULE.format(first=first, second=second))
    return results_digest(module, "cuda")


ONCE = digest(gathered(), "bitcast(first)")


def test_a_repeated_collective_is_the_same_value_whatever_its_channel():
    assert digest(gathered(channel=1), gathered(channel=7)) == ONCE
    assert digest(gathered(channel=3), gathered(channel=9)) == ONCE


@pytest.mark.parametrize(
    "other",
    [
        gathered(operand="q", channel=7),
        gathered(channel=7, groups="1,0"),
    ],
)
def test_another_collective_is_another_value(other):
    assert digest(gathered(), other) != ONCE
