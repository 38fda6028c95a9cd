"""Steps over eight devices: jit's results, fewer bytes, collectives and overlap as they were."""

import dataclasses

import pytest

from benchmarks.sharded.job import Row, run_steps
from benchmarks.sharded.overlap import Overlap, overlap
from benchmarks.sharded.steps import STEPS, Sizes
from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.errors import InputError
from tests.support.compiles import h100_device

OPTIONS = {"time_limit": 60, "step_limit": 200}
ASYNC = """HloModule m, is_scheduled=true

ENTRY e {
  p = f32[1024,1024] parameter(0)
  q = f32[1024,1024] parameter(1)
  s = (f32[1024,1024], f32[1024,1024]) collective-permute-start(p), source_target_pairs={{0,1}}
  a = f32[1024,1024] add(q, q)
  b = f32[1024,1024] multiply(a, q)
  d = f32[1024,1024] collective-permute-done(s)
  ROOT c = f32[1024,1024] add(b, d)
}
"""


def test_steps_over_eight_devices(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    names = ["fsdp", "experts", "pmap"]
    rows = list(run_steps(names, "cpu", Sizes(layers=2), OPTIONS))
    assert [row.step for row in rows] == names
    for row in rows:
        assert not row.wrong and row.same and row.collectives, row
    assert any(row.planned and row.bytes < row.xla_bytes for row in rows)


@pytest.mark.cuda13
def test_bytes_of_transfers_are_predicted_exactly_on_a_gpu():
    """Where nothing runs beside a transfer XLA makes it synchronous: other tables, other steps."""
    h100_device()
    for row in run_steps(["fsdp", "pipeline"], "h100", Sizes(), OPTIONS):
        assert not row.wrong, row
        assert row.predicted_xla_bytes == row.xla_bytes and row.collectives


def test_what_runs_between_a_start_and_its_done():
    before = overlap(module_from_bytes(from_hlo_text(ASYNC)), "cuda")
    assert before.order == {"e": (("s", "collective-permute"),)} and before.seconds > 0
    assert before.hidden.keys() == {"s"} and before.hidden["s"].keys() == {"a", "b"}
    line = "  d = f32[1024,1024] collective-permute-done(s)\n"
    text = ASYNC.replace(line, "").replace("  b =", f"{line}  b =")
    early = overlap(module_from_bytes(from_hlo_text(text)), "cuda")
    assert 0 < before.least_kept(early) < 1 == early.least_kept(before)
    without = Overlap(early.order, early.hidden, early.operators - {"b"})
    assert before.least_kept(without) == 1, "what is not run any more is not lost"
    assert not before.moved(early)


@pytest.mark.parametrize(
    "other, moved",
    [("s1 t1", False), ("s9 t8", False), ("t1 s1", True), ("t9 s8", True), ("s1", False)],
)
def test_collectives_that_run_in_another_order(other, moved):
    """XLA's last passes may name them anew."""
    kinds = {"s": "all-reduce", "t": "all-gather"}
    orders = [tuple((n, kinds[n[0]]) for n in names.split()) for names in ("s1 t1", other)]
    one, two = (Overlap({"e": order}, {}, frozenset()) for order in orders)
    assert bool(one.moved(two)) == moved


def test_a_row_says_what_is_wrong():
    row = Row("fsdp", "cpu", True, "", 10, 9, True, 3, 0, 1, 1.0, 1.0, 1.0)
    assert not row.wrong
    for change in ({"same": False}, {"moved": 1}, {"least_kept": 0.9}, {"bytes": 11}):
        assert dataclasses.replace(row, **change).wrong
    exact = dataclasses.replace(row, predicted_xla_bytes=10, predicted_bytes=9)
    assert not exact.wrong
    assert dataclasses.replace(exact, predicted_bytes=8).wrong.startswith("a prediction is off")
    assert dataclasses.replace(exact, predicted_xla_bytes=9).wrong
    with pytest.raises(InputError, match="no step 'none'"):
        list(run_steps(["none"], "cpu", Sizes(), {}))
    assert len(STEPS) == 10


def test_one_collective_more_is_no_other_order():
    def run(*collectives):
        return Overlap({"e": collectives}, {}, frozenset())

    first, second, more = ("a", "all-gather"), ("b", "all-reduce"), ("c", "all-gather")
    assert not run(first, second).moved(run(more, first, second))
    assert run(first, second).moved(run(second, first))
    assert run(first, second).moved(run(("d", "all-reduce"), ("e", "all-gather")))
