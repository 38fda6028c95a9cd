"""Differences of snapshots: what came, what went, what there is more of."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla.analysis.difference import Snapshot, difference, load_snapshot
from tests.support.plans import made_plan

SHAPE = jax.ShapeDtypeStruct((256, 256), jnp.float32)
PLAN = made_plan(offsets={"a": (0, 64), "dot.1": (64, 256)}, predicted_bytes=320)


@pytest.fixture(scope="module")
def analyses():
    """A step, and the same step with one more large tensor at its peak."""

    def lean(x, w):
        return jnp.tanh(x @ w) @ w

    def fat(x, w):
        return lean(x, w) @ jnp.sin(w).T

    return [olla_xla.analyze(jax.jit(f), SHAPE, SHAPE) for f in (lean, fat)]


def test_the_same_differs_by_nothing(analyses):
    snapshot = Snapshot.of_analysis(analyses[0], "a")
    found = difference(snapshot, Snapshot.of_analysis(analyses[0].to_dict(), "b"))
    assert not found.changes and found.bytes == 0


def test_changes_sum_to_the_difference(analyses, tmp_path):
    for name, analysis in zip("ab", analyses, strict=True):
        analysis.save(tmp_path / name)
    a, b = (load_snapshot(tmp_path / name) for name in "ab")
    found = difference(a, b)
    assert found.bytes == analyses[1].xla.total_bytes - analyses[0].xla.total_bytes > 0
    assert sum(c.bytes for c in found.changes) == found.bytes
    largest = found.changes[0]
    assert abs(largest.bytes) >= SHAPE.size * 4 and largest.shape == "f32[256,256]"
    back = difference(b, a)
    assert [-c.bytes for c in back.changes] == [c.bytes for c in found.changes]
    json.dumps(found.to_dict())


def test_plans(tmp_path):
    PLAN.save(tmp_path / "a.json")
    more = {"a": (0, 64), "dot.7": (64, 256), "dot.8": (320, 256)}
    grown = dataclasses.replace(PLAN, offsets=more, predicted_bytes=576)
    found = difference(load_snapshot(tmp_path / "a.json"), Snapshot.of_plan_file(grown, "b"))
    (change,) = found.changes  # XLA's numbers do not count
    assert (change.what, change.before, change.after) == ("dot", (1, 256), (2, 512))
    assert found.bytes == 256 and found.share == pytest.approx(0.8)


def test_what_cannot_be_compared(analyses, tmp_path):
    with pytest.raises(olla_xla.InputError, match="a plan and an analysis"):
        difference(Snapshot.of_plan_file(PLAN, "a"), Snapshot.of_analysis(analyses[0], "b"))
    path = tmp_path / "a.json"
    path.write_text('{"format": "olla_xla.analysis", "version": 99}')
    with pytest.raises(olla_xla.InputError, match="version 99"):
        load_snapshot(path)
    path.write_text('{"format": "olla_xla.analysis"}')
    with pytest.raises(olla_xla.InputError, match="version None"):
        load_snapshot(path)
    path.write_text("HloModule x")
    assert load_snapshot(path) is None
    with pytest.raises(olla_xla.InputError, match="cannot read"):
        load_snapshot(tmp_path / "none")
