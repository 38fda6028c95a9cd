"""The largest batch that fits, against every batch size compiled."""

import json

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from examples.zoo import load
from olla_xla.cli import main
from olla_xla.cli.report.batches import batch_verdict
from olla_xla.compile import batch_ways
from olla_xla.compile import max_batch as module
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.outcomes import Outcome
from tests.support.compiles import total_bytes

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
    memory = total_bytes(lower(40).compile())
    found = olla_xla.max_batch(lower, memory, options=OPTIONS, progress=lines.append)
    fits = [n for n in range(30, 60) if total_bytes(lower(n).compile()) <= memory]
    assert found.xla.batch == max(fits)
    assert found.xla.bytes == total_bytes(lower(found.xla.batch).compile()) <= memory
    assert found.xla.next_bytes == total_bytes(lower(found.xla.batch + 1).compile()) > memory
    planned = found.planned
    assert planned.batch > found.xla.batch, "an order helps this step"
    assert planned_total(planned.batch) == planned.bytes <= memory
    assert planned_total(planned.batch + 1) == planned.next_bytes > memory
    assert found.recomputed.batch >= planned.batch and found.recomputed.overhead <= 0.05
    assert len(found.tried) < 24 and any("xla: batch" in line for line in lines)


def test_multiples_and_ways():
    memory = f"{total_bytes(lower(40).compile()) / 1000}KB"
    found = olla_xla.max_batch(lower, memory, multiple_of=16, max_overhead=0, options=OPTIONS)
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
    with pytest.raises(olla_xla.LimitError, match="does the step use it"):
        olla_xla.max_batch(lambda n: lower(4), "1GB", options=OPTIONS)


@pytest.mark.parametrize(
    ("points", "low", "high", "halve", "expected"),
    [
        ([], 8, None, False, 32),
        ([(8, 100)], 8, None, False, 80),  # in proportion
        ([(8, 100), (16, 110)], 16, None, False, 512),  # 728, further than is gone at once
        ([(8, 500), (16, 800)], 16, 40, False, 21),
        ([(8, 500), (16, 800)], 16, 40, True, 28),
        ([(8, 500), (16, 400)], 16, 40, False, 28),  # larger batches took less here
    ],
)
def test_the_next_size(points, low, high, halve, expected):
    work = module._BatchSearch(lower, 1000, 1, print)
    assert work._next(points, low, high, 4.0, halve) == expected


@pytest.mark.parametrize("truth", [0, 1, 3, 40, 41, 47, 64, 200])
@pytest.mark.parametrize("predicted", [0, 1, 40])
def test_what_is_assigned_decides(predicted, truth):
    class Way(module.Xla):
        def assigned(self, batch):
            seen.append(batch)
            return 900 if batch <= truth else 1100

    seen = []
    work = module._BatchSearch(lower, 1000, 1, print)
    assert work._confirmed(Way(work), predicted) == truth
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
    memory = total_bytes(lower(400).compile())
    found = olla_xla.max_batch(lower, memory, options=OPTIONS)
    assert len(refused) == 2  # one plan for each way
    for way in (found.planned, found.recomputed):
        assert (way.batch, way.bytes) == (found.xla.batch, found.xla.bytes)
        assert "is not compiled as planned: the referee refuses it" in way.reason
    assert "the referee refuses it" in batch_verdict(found)


@pytest.mark.parametrize(
    ("function", "memory", "most"), [("resnet18", "1GiB", 6), (step, "2MiB", 10)]
)
def test_six_compiles_for_two_ways(monkeypatch, function, memory, most):
    """Two that predict, and two that confirm for each way; more where totals are on no line."""
    compiles = []
    for name in ("_compiled", "_scheduled"):
        real = getattr(Compiles, name)

        def counted(*args, real=real):
            compiles.append(args)
            return real(*args)

        monkeypatch.setattr(Compiles, name, counted)

    def lowered(batch):
        if function == "resnet18":
            train, arguments, options = load("resnet18")(batch_size=batch, optimizer="sgd")
            return jax.jit(train, **options).lower(*arguments)
        x = jax.ShapeDtypeStruct((batch, 64), jnp.float32)
        return jax.jit(function, donate_argnums=0).lower(W, x)

    found = olla_xla.max_batch(lowered, memory, max_overhead=0, options=OPTIONS)
    assert 0 < found.xla.batch <= found.planned.batch
    assert len(compiles) <= most


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
    assert work._confirmed(way, predicted) == answer
    assert len(way.tried) <= 6, way.tried
