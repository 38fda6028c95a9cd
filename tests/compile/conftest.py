"""Fixtures of the tests of planned compiles."""

import pytest

from hlo import xla_pb2
from olla_xla import planner
from olla_xla.compile import objection
from tests.support.planned_steps import depth_first
from tests.support.steps import count_searches


@pytest.fixture
def depth_first_planner(monkeypatch):
    monkeypatch.setattr(planner, "plan_module", depth_first)


@pytest.fixture
def searches(monkeypatch):
    """Counts searches for plans."""
    return count_searches(monkeypatch)


@pytest.fixture
def wrong(monkeypatch):
    """Planned modules return their last two results exchanged."""
    apply_plan = planner.apply_plan

    def exchanged(module, found, mark=""):
        proto = xla_pb2.HloModuleProto.FromString(apply_plan(module, found, mark))
        entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
        root = next(i for i in entry.instructions if i.id == entry.root_id)
        root.operand_ids[-2], root.operand_ids[-1] = root.operand_ids[-1], root.operand_ids[-2]
        return proto.SerializeToString(deterministic=True)

    monkeypatch.setattr(planner, "apply_plan", exchanged)


@pytest.fixture
def blind(monkeypatch):
    """The referee accepts everything."""
    monkeypatch.setattr(objection.Case, "check", lambda *_: objection.Seen())
