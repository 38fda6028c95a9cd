"""The largest batch that fits, against every batch size compiled."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import olla_xla
from olla_xla import targets
from olla_xla.cli import main
from olla_xla.cli.commands.max_batch import batch_table, batch_verdict
from olla_xla.compile import refused
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.outcomes import Outcome
from olla_xla.errors import InputError
from olla_xla.tools import batch_ways
from olla_xla.tools import max_batch as module
from tests.support import four_products
from tests.support.compiles import QUICK, total_bytes
from tests.support.plugins import mark

MEMORY = 200_000
W = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 6
OPTIONS = olla_xla.PlanOptions(step_limit=2000, time_limit=5)


def step(w, x):
    """One large temporary a branch; XLA's order on CPUs keeps several at once."""
    hidden = [jnp.tanh(x @ a) for a in w]
    return [a * jnp.sum(h @ h.T) for a, h in zip(w, hidden, strict=True)]


def lower(batch):
    function, arguments = traced(batch)
    return function.lower(*arguments)


def traced(batch):
    x = jax.ShapeDtypeStruct((batch, 64), jnp.float32)
    return jax.jit(step, donate_argnums=0), (W, x)


def planned_total(batch):
    function = olla_xla.plan(step, donate_argnums=0, step_limit=2000, time_limit=5)
    return total_bytes(function.lower(W, jax.ShapeDtypeStruct((batch, 64), jnp.float32)).compile())


def test_answers_are_those_of_every_size():
    lines = []
    memory = total_bytes(lower(40).compile(compiler_options=QUICK))
    found = olla_xla.max_batch(lower, memory, compiles=18, options=OPTIONS, progress=lines.append)
    fits = [
        n for n in range(36, 46) if total_bytes(lower(n).compile(compiler_options=QUICK)) <= memory
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


def on_h100(rows):
    weights, x = four_products.shapes(4096, rows)
    given = targets.target("h100").place([weights, x], [dict.fromkeys(weights, -1), 0])
    return jax.jit(four_products.step, donate_argnums=0), given


@mark("cuda13")
def test_a_larger_batch_fits_with_host_memory():
    targets.prepare_environment("h100")
    options = olla_xla.PlanOptions(step_limit=1000)
    found = olla_xla.max_batch(
        on_h100, "3GiB", multiple_of=256, start=8192, host_budget="8GiB", options=options
    )
    most = found.spilled
    assert most.batch > found.recomputed.batch >= found.planned.batch and most.way == "spilled"
    assert most.bytes <= found.memory_bytes and 2**26 < most.host_bytes < 2**33
    assert not found.recomputed.host_bytes and most.overhead <= 0.05 and found.compiles <= 8
    function, given = on_h100(most.batch)
    planned = olla_xla.plan(function, host_budget="8GiB", max_overhead=0.05, step_limit=1000)
    plan = planned.lower(*given).compile().plan
    assert (plan.assigned_bytes, plan.host_bytes) == (most.bytes, most.host_bytes)
    table = batch_table(found, "")
    assert table.headings[3:5] == ("MB", "host MB") and table.rows[-1][0] == "with host memory"
    assert table.rows[-1][4] == f"{most.host_bytes / 2**20:,.1f}" and table.rows[0][4] == "0.0"


def test_what_host_memory_needs_is_said():
    for host_budget, error in (("much", InputError), (0, olla_xla.LimitError)):
        with pytest.raises(error, match="host_budget="):
            olla_xla.max_batch(traced, MEMORY, host_budget=host_budget)
    with pytest.raises(InputError, match=r"with host_budget=, make must return \(jax.jit"):
        olla_xla.max_batch(lower, MEMORY, host_budget="1GiB")
    found = olla_xla.max_batch(traced, MEMORY, host_budget="1GiB", options=OPTIONS)
    assert found.spilled.batch == found.recomputed.batch > 0
    assert found.spilled.reason == "the device is a CPU, whose memory is the host's"


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
    with pytest.raises(olla_xla.LimitError, match="compiles=4 must be at least 5"):
        olla_xla.max_batch(lower, MEMORY, compiles=4)
    with pytest.raises(olla_xla.LimitError, match="does the step depend on"):
        olla_xla.max_batch(lambda n: lower(4), "1GB", options=OPTIONS)


def test_the_command(capsys, tmp_path):
    arguments = ("--model=mlp", "--optimizer=sgd", "--target=cpu", "--time_limit=2")
    code = main.main([
        "olla_xla", "max_batch", *arguments, "--memory=4MiB", "--max_overhead=0",
        f"--out={tmp_path / 'batch.json'}",
    ])  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0 and "mlp, sgd, cpu: the step may use 4.0 MB" in out and "XLA alone" in out
    assert "with recomputation" not in out and "planned: batch" in err
    written = json.loads((tmp_path / "batch.json").read_text())
    assert written["planned"]["bytes"] <= written["memory_bytes"] == 4 * 2**20
    assert written["planned"]["batch"] in {batch for _, batch, _ in written["points"]}
    for bad, said in (
        ((), "for target=cpu, give the memory that a step may use"),
        (("--target=h100", "--memory_fraction=2"), "--memory_fraction=2.0 must be above 0"),
        (("--memory=0GB",), "memory=0 must be positive"),
        (("--memory=4MiB", "--max_overhead=-1"), "max_overhead=-1.0 must be at least 0"),
        (("--memory=4MiB", "--host_budget=0"), "host_budget='0' must be positive"),
    ):
        code = main.main(["olla_xla", "max_batch", *arguments, *bad])
        assert code == 2 and said in capsys.readouterr().err


def test_what_cannot_be_compiled_as_planned_is_said_and_not_tried_again(monkeypatch):
    """As where a referee refuses each plan: XLA's own order is compiled, and takes more."""
    refused = []

    def compile_given(lowered, plan, *args, **options):
        refused.append(plan)
        said = "the referee refuses it"
        return Outcome(lowered.compile(), None, False, said, objection=said)

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


@pytest.mark.parametrize("again", [0, 0.05])
def test_six_compiles_for_all_ways(monkeypatch, again):
    """Two that predict, one for each way, and what is left where an answer is in doubt."""
    compiles = []
    for name in ("_compiled", "_scheduled"):
        real = getattr(Compiles, name)

        def counted(*args, real=real):
            compiles.append(args)
            return real(*args)

        monkeypatch.setattr(Compiles, name, counted)

    found = olla_xla.max_batch(lower, "2MiB", max_overhead=again, options=OPTIONS)
    assert 0 < found.xla.batch <= found.planned.batch
    assert len(compiles) == found.compiles <= 6
    before = 0
    for way in (found.xla, found.planned, found.recomputed):
        if way is not None:
            assert way.bytes <= found.memory_bytes
            assert not way.next_batch or found.memory_bytes < way.next_bytes
            assert before <= way.batch <= way.expected
            before = way.batch


class Told(batch_ways.BatchWay):
    """A way of known totals: nothing is compiled, and all the same counted."""

    def __init__(self, work, name, totals, error=0.0, refuses=lambda batch: False):
        super().__init__(work)
        self.name, self.totals, self.error, self.refuses = name, totals, error, refuses
        self.on_the_line = {}

    def predicted(self, batch):
        self.work.captured(batch)
        self.on_the_line[batch] = int(self.totals(batch) * (1 + self.error))
        return self.on_the_line[batch]

    def on_line(self):
        return self.on_the_line

    def compiled(self, batch):
        self.work.compiles += 1
        self.work.keep(batch, None)
        if self.refuses(batch):
            raise batch_ways.NotCompiled(f"batch {batch:,} is refused")
        return self.totals(batch)


class Sizes(batch_ways.Batches):
    """Sizes that are scheduled at once."""

    def __init__(self, memory=10**9):
        super().__init__(None, memory, lambda line: None)

    def captured(self, batch):
        if not self.is_captured(batch):
            self.compiles += 1
            self.keep(batch, None)


def largest(totals, memory=10**9):
    """By halving, of totals that rise."""
    low, high = 0, 2**24
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if totals(middle) <= memory else (low, middle)
    return low


NAMES = ("xla", "planned", "recomputed")


@dataclasses.dataclass(frozen=True)
class Totals:
    """Bytes of a step by its batch: a constant, and a curve in stairs, with noise on it all."""

    base: int
    each: float
    bend: float
    stair: int
    noise: float

    def of(self, part, batch):
        rest = int(part * 10**6 * self.each * (self.stair * -(-batch // self.stair)) ** self.bend)
        noise = self.noise * ((batch * 2654435761) % 1000) / 1000
        return int((10**6 * self.base + rest) * (1 + noise))


@given(
    totals=st.builds(
        Totals,
        base=st.integers(0, 900),
        each=st.floats(0.1, 60),
        bend=st.just(1) | st.floats(0.8, 1.2),
        stair=st.sampled_from([1, 8, 64]),
        noise=st.just(0) | st.floats(0, 0.03),
    ),
    error=st.just(0) | st.floats(-0.08, 0.08),
    saved=st.tuples(st.just(1), st.floats(0.5, 1), st.floats(0.3, 0.5)),
    start=st.sampled_from([1, 8, 64]),
    ways=st.sampled_from([2, 3]),
    most=st.sampled_from([5, 6, 9, 12]),
    refusing=st.sampled_from([(), ("planned",), ("recomputed",), ("planned", "recomputed")]),
    refused_above=st.sampled_from([0, 30]),
)
def test_whatever_the_totals_are_no_more_is_compiled_and_all_answers_fit(
    totals, error, saved, start, ways, most, refusing, refused_above
):
    work = Sizes()
    functions = [functools.partial(totals.of, part) for part in saved[:ways]]
    told = [
        Told(work, name, of, error, lambda b, name=name: name in refusing and b > refused_above)
        for name, of in zip(NAMES, functions, strict=False)
    ]
    found = module._answers(told, 1, start, most)
    assert work.compiles <= most
    before = 0
    for answer, of in zip(found, functions, strict=True):
        assert answer.batch >= before, "what fits in one way fits in the next"
        before = answer.batch
        assert answer.reason or of(answer.batch) >= answer.bytes <= 10**9
        if totals.noise or refusing:
            continue
        truth = largest(of)
        assert answer.batch <= truth
        assert not answer.next_batch or answer.reason or truth < answer.next_batch
        if answer.is_largest and not answer.reason:
            assert answer.batch == truth
        if totals.bend == totals.stair == 1 and not error and most > 5:
            assert answer.batch == answer.expected == truth


@pytest.mark.parametrize("ways", [2, 3])
def test_a_wrong_prediction_leaves_small_gaps(ways):
    """Predicted totals that are up to 8 % off; six compiles; the answer fits and is near."""
    for error in (-0.08, -0.02, 0.02, 0.08):
        for base, each in ((0, 7), (500, 1), (900, 0.11)):
            parts = [1, 0.8, 0.5][:ways]
            of = [functools.partial(Totals(base, each, 1, 1, 0).of, part) for part in parts]
            work = Sizes()
            told = [Told(work, n, f, error) for n, f in zip(NAMES, of, strict=False)]
            for answer, totals in zip(module._answers(told, 1, 8, 6), of, strict=True):
                truth = largest(totals)
                assert 0.7 * truth <= answer.batch <= truth
                assert not answer.next_batch or answer.next_batch > truth
                assert answer.expected == pytest.approx(truth, rel=0.1)


def test_a_way_that_fits_less_has_the_answer_of_the_way_before():
    """As on a TPU, where predicted totals of plans may be far above XLA's."""
    work = Sizes()
    xla = Told(work, "xla", lambda b: 10**6 * b)
    xla, planned = module._answers([xla, Told(work, "planned", lambda b: 2 * 10**6 * b)], 1, 8, 6)
    assert xla.batch == 1000 and xla.is_largest
    reason = "a batch of 1,001 does not fit, and no batch above 1,000 was found that fits"
    size = 2 * 10**6 * 1001
    assert planned == dataclasses.replace(xla, way="planned", reason=reason, next_bytes=size)


@pytest.mark.parametrize("names_total", [False, True])
def test_what_xla_refuses_does_not_fit_and_is_not_counted(names_total):
    """A refused step of 3 MB a sample; its order's totals are predicted to be 2 MB a sample."""

    class Refused(Told):
        def compiled(self, batch):
            total = self.totals(batch)
            if total > self.work.memory:
                self.work.compiles += 1
                said = f"Used {total / 2**30:.2f}G of 0.93G hbm." if names_total else "too large"
                raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {said}")
            return super().compiled(batch)

    work = Sizes()
    work.is_refusal = lambda error: "RESOURCE_EXHAUSTED" in str(error)
    ways = [Refused(work, name, lambda b: 3 * 10**6 * b, error=-1 / 3) for name in NAMES[:2]]
    xla, planned = module._answers(ways, 1, 8, 12)
    assert xla.batch == planned.batch == 333 and xla.is_largest and planned.is_largest
    assert work.compiles <= 12 and 0 < work.refusals <= (4 if names_total else 12)
    assert xla.next_bytes > 10**9 and xla.next_is_predicted != names_total


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("the total memory required for HLO temporaries (16.50G) exceeds", 16896),
        ("Ran out of memory in memory space hbm. Used 512.00M of 15.75G hbm.", 512),
        ("Ran out of memory", 0),
    ],
)
def test_the_total_that_a_refusal_names(text, mebibytes):
    error = jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {text}")
    assert refused.refused_bytes(error) == mebibytes * 2**20
