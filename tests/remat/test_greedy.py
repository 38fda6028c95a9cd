"""Evictions of one small step: live bytes without any, targets, and nothing that is not needed."""

import numpy as np
import pytest

from hlo.module import module_from_bytes
from hlo.parse import from_hlo_text
from hlo.read import with_program_order
from olla_xla.memory import clock
from olla_xla.memory.lifetimes import timeline
from olla_xla.memory.module_state import PlannedModule
from olla_xla.remat.cost.roofline import CostModel, Device
from olla_xla.remat.evictions import expand
from olla_xla.remat.front import Front
from olla_xla.remat.greedy import Selector

CPU = Device("CPU", 2e10, 2e10, 5e8, 5e10, 2e-6)
LAYERS = 6


@pytest.fixture(scope="module")
def view():
    """Layers forward, then backward: each hidden value is read again, the last one first."""
    shape = "f32[256,256]"
    lines, last = [f"x = {shape} parameter(0)"], "x"
    for k in range(LAYERS):
        lines.append(f"h{k} = {shape} tanh({last})")
        last = f"h{k}"
    for k in reversed(range(LAYERS)):
        lines.append(f"g{k} = {shape} multiply({last}, h{k})")
        last = f"g{k}"
    body = "\n  ".join(lines)
    text = f"HloModule m\nENTRY e {{\n  {body}\n  ROOT r = ({shape}) tuple({last})\n}}"
    return module_from_bytes(with_program_order(from_hlo_text(text)))


@pytest.fixture(scope="module")
def graph(view):
    return Front(view, "cpu", CostModel(CPU, "cpu"), 60, {}).graph


NOTHING = np.zeros((0, 2), np.int64)


def test_without_evictions_live_bytes_are_those_of_the_order(view, graph):
    found = expand(graph, NOTHING)
    planned = PlannedModule(view, "cpu")
    lowered = planned.lowered(planned.module.entry)
    own = timeline(lowered.graph, range(len(lowered.graph.operators)))
    assert found.feasible and found.live.tolist() == own.tolist()
    assert found.seconds == 0 and not len(found.clone_op) and not found.removed.any()


def test_evictions_meet_a_target_and_none_can_be_taken_back(graph):
    selector = Selector(graph, clock.now() + 60)
    start = selector.point(NOTHING)
    target = int(0.75 * start.peak)
    point = selector.reduce(NOTHING, target)
    assert point.peak <= target < start.peak and point.seconds > 0
    assert len(expand(graph, point.evictions).clone_op) > 0
    for k in range(len(point.evictions)):
        fewer = np.delete(point.evictions, k, axis=0)
        assert selector.point(fewer).peak > target


def test_a_target_out_of_reach_and_a_limit_of_time_end_the_search(graph):
    selector = Selector(graph, clock.now() + 60)
    least = selector.reduce(NOTHING, 1)
    assert least.peak > 1
    cheap = selector.reduce(NOTHING, 1, seconds=least.seconds / 4)
    assert cheap.seconds <= least.seconds and cheap.peak >= least.peak
    late = Selector(graph, clock.now() - 1)
    assert len(late.reduce(NOTHING, 1).evictions) == 0
