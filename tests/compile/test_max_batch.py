"""The largest batch that fits, against every batch size compiled."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import olla_xla
from examples.zoo import common, load, resnet
from olla_xla.cli import main
from olla_xla.cli.report.batches import batch_verdict
from olla_xla.compile import batch_ways
from olla_xla.compile import max_batch as module
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.outcomes import Outcome
from tests.support.compiles import QUICK, total_bytes

MEMORY = 200_000
W = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 6
OPTIONS = olla_xla.PlanOptions(step_limit=2000, time_limit=5)


def step(w, x):
    """One large temporary a branch; XLA's order on CPUs keeps several at once."""
    hidden = [jnp.tanh(x @ a) for a in w]
    return [a * jnp.sum(h @ h.T) for a, h in zip(w, hidden, strict=True)]


def lower(batch):
    x = jax.ShapeDtypeStruct((batch, 64), jnp.float32)
    return jax.jit(step, donate_argnums=0).lower(W, x)


def planned_total(batch):
    function = olla_xla.plan(step, donate_argnums=0, step_limit=2000, time_limit=5)
    return total_bytes(function.lower(W, jax.ShapeDtypeStruct((batch, 64), jnp.float32)).compile())


def test_answers_are_those_of_every_size():
    lines = []
    memory = total_bytes(lower(40).compile(compiler_options=QUICK))
    found = olla_xla.max_batch(lower, memory, compiles=12, options=OPTIONS, progress=lines.append)
    fits = [
        n for n in range(30, 60) if total_bytes(lower(n).compile(compiler_options=QUICK)) <= memory
    ]
    assert found.xla.batch == max(fits)
    assert (
        found.xla.bytes
        == total_bytes(lower(found.xla.batch).compile(compiler_options=QUICK))
        <= memory
    )
    assert (
        found.xla.next_bytes
        == total_bytes(lower(found.xla.batch + 1).compile(compiler_options=QUICK))
        > memory
    )
    planned = found.planned
    assert planned.batch > found.xla.batch, "an order helps this step"
    assert planned_total(planned.batch) == planned.bytes <= memory
    assert planned_total(planned.batch + 1) == planned.next_bytes > memory
    assert found.recomputed.batch >= planned.batch and found.recomputed.overhead <= 0.05
    assert found.compiles <= 18 and any("xla: batch" in line for line in lines)


def test_multiples_and_ways():
    memory = f"{total_bytes(lower(40).compile(compiler_options=QUICK)) / 1000}KB"
    found = olla_xla.max_batch(
        lower, memory, multiple_of=16, max_overhead=0, compiles=12, options=OPTIONS
    )
    assert found.recomputed is None
    for answer in (found.xla, found.planned):
        assert answer.batch % 16 == 0 and answer.next_batch == answer.batch + 16
        assert answer.bytes <= found.memory_bytes < answer.next_bytes


def test_nothing_fits():
    found = olla_xla.max_batch(lower, 50_000, max_overhead=0, options=OPTIONS)
    assert found.xla.batch == found.planned.batch == 0 and found.xla.bytes == 0
    assert found.xla.next_batch == 1 and found.xla.next_bytes > 50_000


def test_bad_input():
    with pytest.raises(olla_xla.LimitError, match="multiple_of=0 must be positive"):
        olla_xla.max_batch(lower, MEMORY, multiple_of=0)
    with pytest.raises(olla_xla.InputError, match="memory='much' is not a number of bytes"):
        olla_xla.max_batch(lower, "much")
    with pytest.raises(olla_xla.LimitError, match="compiles=3 must be at least 4"):
        olla_xla.max_batch(lower, MEMORY, compiles=3)
    with pytest.raises(olla_xla.LimitError, match="does the step use it"):
        olla_xla.max_batch(lambda n: lower(4), "1GB", options=OPTIONS)


@pytest.mark.parametrize(
    ("points", "low", "high", "halve", "expected"),
    [
        ([], 8, None, False, 32),
        ([(8, 100)], 8, None, False, 256),  # 80, in proportion, would be near the first
        ([(8, 1)], 8, None, False, 8000),  # in proportion
        ([(64, 2000)], 0, 64, False, 2),  # 32, in proportion, need not fit
        ([(8, 100), (16, 101)], 16, None, False, 7208),
        ([(8, 100), (16, 100.01)], 16, None, False, 8192),  # as far as a line is followed
        ([(8, 500), (16, 800)], 16, 40, False, 21),
        ([(8, 500), (16, 800)], 16, 40, True, 28),
        ([(8, 500), (16, 400)], 16, 40, False, 28),  # larger batches took less here
    ],
)
def test_the_next_size(points, low, high, halve, expected):
    work = module._BatchSearch(lower, 1000, 1, print)
    assert work._next(points, low, high, halve) == expected


@pytest.mark.parametrize("truth", [0, 1, 3, 40, 41, 47, 64, 200])
@pytest.mark.parametrize("predicted", [0, 1, 40])
def test_what_is_assigned_decides(predicted, truth):
    class Way(module.Xla):
        def assigned(self, batch):
            seen.append(batch)
            return 900 if batch <= truth else 1100

    seen = []
    work = module._BatchSearch(lower, 1000, 1, print)
    assert work._confirmed(Way(work), predicted, 0, 99) == (truth, truth + 1)
    assert min(seen) > 0 and len(set(seen)) <= 2 + 3 * abs(truth - predicted).bit_length()


def test_the_command(capsys, tmp_path):
    arguments = ("--model=mlp", "--optimizer=sgd", "--target=cpu", "--time_limit=2")
    code = main.main([
        "olla_xla", "max_batch", *arguments, "--memory=4MiB", "--max_overhead=0",
        f"--out={tmp_path / 'batch.json'}",
    ])  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0 and "mlp, sgd, cpu: 4.0 MB for the step" in out and "XLA alone" in out
    assert "with recomputation" not in out and "planned: batch" in err
    written = json.loads((tmp_path / "batch.json").read_text())
    assert written["planned"]["bytes"] <= written["memory_bytes"] == 4 * 2**20
    assert written["planned"]["batch"] in {batch for _, batch, _ in written["points"]}
    for bad, said in (
        ((), "target=cpu has no memory of its own; give --memory"),
        (("--target=h100", "--memory_fraction=2"), "--memory_fraction=2.0 must be above 0"),
        (("--memory=0GB",), "memory=0 must be positive"),
        (("--memory=4MiB", "--max_overhead=-1"), "max_overhead=-1.0 must be at least 0"),
    ):
        code = main.main(["olla_xla", "max_batch", *arguments, *bad])
        assert code == 2 and said in capsys.readouterr().err


def test_what_cannot_be_compiled_as_planned_is_said_and_not_tried_again(monkeypatch):
    """As where a referee refuses each plan: XLA's own order is compiled, and takes more."""
    refused = []

    def compile_given(lowered, plan, *args, **options):
        refused.append(plan)
        return Outcome(lowered.compile(), None, False, "the referee refuses it")

    def chosen(compiles, plan, applied, captured):
        return compile_given(compiles._lowered, plan)

    monkeypatch.setattr(batch_ways, "compile_given", compile_given)
    monkeypatch.setattr(batch_ways, "chosen", chosen)
    memory = total_bytes(lower(400).compile(compiler_options=QUICK))
    found = olla_xla.max_batch(lower, memory, options=OPTIONS)
    assert len(refused) == 2  # one plan for each way
    for way in (found.planned, found.recomputed):
        assert (way.batch, way.bytes) == (found.xla.batch, found.xla.bytes)
        assert "is not compiled as planned: the referee refuses it" in way.reason
    assert "the referee refuses it" in batch_verdict(found)


def small_resnet(batch_size, optimizer):
    network = resnet.ResNet((1, 1), resnet.BasicBlock, 10)
    network = common.linen_network(network, common.image_batches(32, 3, 10))
    return common.build(network, batch_size=batch_size, optimizer=optimizer)


@pytest.mark.parametrize(
    ("model", "memory", "again"),
    [("resnet", "64MiB", 0), ("mlp", "24MiB", 0.05), ("lenet", "64MiB", 0), (None, "2MiB", 0.05)],
)
def test_six_compiles_for_two_ways_and_three_more_for_the_third(monkeypatch, model, memory, again):
    """Two that predict, and two that confirm for each way, on a line or not."""
    compiles = []
    for name in ("_compiled", "_scheduled"):
        real = getattr(Compiles, name)

        def counted(*args, real=real):
            compiles.append(args)
            return real(*args)

        monkeypatch.setattr(Compiles, name, counted)

    def lowered(batch):
        if model is None:
            return lower(batch)
        build = small_resnet if model == "resnet" else load(model)
        train, arguments, options = build(batch_size=batch, optimizer="sgd")
        return jax.jit(train, **options).lower(*arguments)

    found = olla_xla.max_batch(lowered, memory, max_overhead=again, options=OPTIONS)
    assert 0 < found.xla.batch <= found.planned.batch
    assert len(compiles) == found.compiles <= (9 if again else 6)
    for way in (found.xla, found.planned, found.recomputed):
        if way is not None:
            assert way.bytes <= found.memory_bytes < way.next_bytes


class Told(batch_ways.Batches):
    """Sizes of known totals: nothing is compiled, and all the same counted."""

    def way(self, totals, error, name="xla"):
        class Way(module.Way):
            def predicted(self, batch):
                self.work.captured(batch)
                return int(totals(batch) * (1 + error))

            def compiled(self, batch):
                self.work.compiles += 1
                self.work.keep(batch, None)
                return totals(batch)

        way = Way(self)
        way.name = name
        return way

    def captured(self, batch):
        if not self.is_captured(batch):
            self.compiles += 1
            self.keep(batch, None)


class Search(Told, module._BatchSearch):
    """A search in such sizes."""


@given(
    base=st.integers(0, 900),
    each=st.floats(0.1, 60),
    bend=st.just(1) | st.floats(0.8, 1.2),
    stair=st.sampled_from([1, 8, 64]),
    error=st.just(0) | st.floats(-0.08, 0.08),
    saved=st.floats(0.5, 1),
    start=st.sampled_from([1, 8, 64]),
)
@settings(deadline=None, max_examples=300)
def test_whatever_the_totals_are_no_more_is_compiled_than_that(
    base, each, bend, stair, error, saved, start
):
    def totals(batch):
        return 10**6 * base + int(10**6 * each * (stair * -(-batch // stair)) ** bend)

    def planned_totals(batch):
        return 10**6 * base + int(saved * (totals(batch) - 10**6 * base))

    def largest(totals):
        low, high = 0, 2**24
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if totals(middle) <= 10**9 else (low, middle)
        return low

    work = Search(None, 10**9, 1, lambda line: None)
    answers, before = [], None
    for function, most in ((totals, 4), (planned_totals, 6)):
        before = work.answer(work.way(function, error), before, start, most)
        assert work.compiles <= max(most, 5)
        answers.append((before, largest(function)))
    if bend == stair == 1 and not error:
        assert answers[0][0].is_largest
    for found, truth in answers:
        assert found.batch <= truth
        assert not found.next_batch or truth < found.next_batch
        if found.is_largest and not found.reason:
            assert found.batch == truth


def test_a_way_that_fits_less_has_the_answer_of_the_way_before():
    """As on a TPU, where predicted totals of plans may be far above XLA's."""
    work = Search(None, 10**9, 1, lambda line: None)
    before = work.answer(work.way(lambda b: 10**6 * b, 0), None, 8, 4)
    found = work.answer(work.way(lambda b: 2 * 10**6 * b, 0, "planned"), before, 8, 6)
    assert found == dataclasses.replace(before, way="planned", reason=found.reason)
    assert found.reason == "with a batch of 1,000 no plan was found that fits"


@pytest.mark.parametrize("answer", [0, 1, 7, 640, 1866])
@pytest.mark.parametrize("predicted", [0, 1, 100, 1874, 2500])
def test_a_wrong_prediction_is_corrected_in_a_few_compiles(answer, predicted):
    memory, per_size, constant = 10**9, 530_000, 10**9 - 530_000 * answer - 1000

    class Way:
        tried = []

        def assigned(self, batch):
            self.tried.append(batch)
            return constant + per_size * batch

    work = module._BatchSearch(None, memory, 1, lambda line: None)
    way = Way()
    way.tried = []
    assert work._confirmed(way, predicted, 0, 99) == (answer, answer + 1)
    assert len(way.tried) <= 6, way.tried
