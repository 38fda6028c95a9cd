"""XLA's notes on loops: which elements it takes offsets of slices from."""

import functools
import json

import jax
import jax.numpy as jnp
import pytest

from hlo.module import module_from_bytes, parse_module_proto
from olla_xla.remat.loops.pairs import pairs
from tests.support.compiles import on_h100, xla_schedule
from tests.support.loop_programs import PROGRAMS

pytestmark = [pytest.mark.quick, pytest.mark.cuda13]

NAME = next(iter(PROGRAMS))
COUNTER = {"tuple_index": "0", "init": "0", "step": "1"}


@functools.cache
def scheduled():
    step, arguments = PROGRAMS[NAME]()
    return xla_schedule(jax.jit(step).lower(*on_h100(jax.tree.map(jnp.asarray, arguments))))


def found(**more):
    """How many pairs there are with more in the notes of each loop."""
    proto = parse_module_proto(scheduled())
    for computation in proto.computations:
        for i in computation.instructions:
            if i.opcode == "while":
                i.backend_config = json.dumps(json.loads(i.backend_config) | more).encode()
    return len(pairs(module_from_bytes(proto.SerializeToString()), "cuda"))


def test_the_counter_may_be_a_dynamic_variable():
    assert found() == found(dynamic_variables=[COUNTER]) > 0
    assert found(dynamic_variables=[{"tuple_index": "0"}]) == found()


@pytest.mark.parametrize(
    "more",
    [
        {"dynamic_variables": [COUNTER, COUNTER | {"tuple_index": "1"}]},
        {"dynamic_variables": [COUNTER | {"init": "3"}]},
        {"dynamic_variables": [COUNTER | {"step": "2"}]},
        {"known_init_step": {"init": "1", "step": "1"}},
        {"known_induction_variable": {"tuple_index": "1"}},
    ],
    ids=["another element", "another start", "another step", "start", "counter"],
)
def test_other_notes_are_not_known(more):
    assert not found(**more)
