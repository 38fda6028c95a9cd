"""Random programs (benchmarks.random_programs): what they are, and that plans of them hold."""

import dataclasses
import itertools
import json
import subprocess
import sys

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.commands import programs
from benchmarks.random_programs import (
    check,
    fixed_point,
    inner_steps,
    layered,
    processes,
    search,
    strategies,
    terms,
    training,
)
from benchmarks.random_programs.graph import OPERATORS
from benchmarks.random_programs.spec import (
    Case,
    FixedPoint,
    Graph,
    InnerSteps,
    Layered,
    Node,
    Program,
    Recurrent,
    Settings,
    Term,
    Transformer,
    Update,
    Updates,
)
from benchmarks.random_programs.text import from_text, to_text
from olla_xla import planner
from olla_xla.errors import CheckError, InputError
from olla_xla.problem import refusals
from tests.support.compiles import QUICK as QUICK_CODE

pytestmark = pytest.mark.usefixtures("any_choices_will_do")

SMALL = Updates(rows=8, cols=16, arrays=2, updates=(Update("add", 0, 1), Update("decay", 1)))
GAINS = Recurrent("gru", "unrolled", 3, 8, 16, 8, 32, read="pairs")
QUICK = Settings(step_limit=200)
FEW = hypothesis.settings(
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=tuple(hypothesis.HealthCheck),
    phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
)


@pytest.fixture(autouse=True, scope="module")
def _forget():
    yield
    check.forget()


def forward(*nodes, rows=8, cols=16):
    """A step without gradients."""
    return Program(Graph(rows, cols, 1, 1, nodes), optimizer="none", donate=(0, 1))


def quick(step):
    return jax.jit(step, compiler_options=QUICK_CODE)


def keeps_its_form(built):
    """Parameters and state of the next step are like those of this one."""

    def forms(tree):
        return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)

    new = jax.eval_shape(built.step, *built.arguments)
    assert forms(new[:2]) == forms(built.arguments[:2])


# What is drawn.


@hypothesis.settings(FEW, max_examples=100, phases=(hypothesis.Phase.generate,))
@hypothesis.given(strategies.cases())
def test_a_program_is_rebuilt_from_its_text(case):
    assert from_text(to_text(case)) == case
    assert from_text(repr(case)) == case
    assert case.program.kind


@pytest.mark.parametrize(
    "text",
    ["", "1 +", "print('x')", "Case()", "Node(op=open('x'))", "Node('add')", "Node(**{})"],
)
def test_text_that_is_no_program_is_refused(text):
    with pytest.raises(InputError, match="not a random program"):
        from_text(text)


def test_a_place_of_a_share_is_the_same_program_every_time():
    share = search.Share(seed=1, number=0, count=8)
    drawn = [search.drawn(share, place) for place in range(8)]
    assert drawn == [search.drawn(share, place) for place in range(8)]
    assert len(set(drawn)) == 8
    assert drawn[0] != search.drawn(dataclasses.replace(share, seed=2), 0)


# What is built.


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_each_operator_has_a_step_and_a_gradient(op):
    node = Node(op, (0, 1, -1), 1, (Node("mul", (0, 1)),))
    program = Program(Graph(8, 16, 1, 1, (Node("dense"), node)), donate=(0,))
    keeps_its_form(training.build(program))


@pytest.mark.parametrize("kind", sorted(strategies.bodies()))
@hypothesis.settings(FEW, max_examples=3, phases=(hypothesis.Phase.generate,))
@hypothesis.given(data=st.data())
def test_each_kind_is_built_and_keeps_the_form_of_its_state(kind, data):
    program = data.draw(strategies.programs(strategies.bodies()[kind]))
    with jax.enable_x64(program.x64):
        keeps_its_form(training.build(program))


TANH = (Node("dense"), Node("mul", (0, 1)))
SMALL_BODIES = (
    *(FixedPoint(8, 6, 4, 4, form, map_) for form, map_ in zip(
        fixed_point.FIXED_FORMS, itertools.cycle(fixed_point.FIXED_MAPS))),
    *(InnerSteps(4, 8, 8, 2, form, optimizer, batches, saturates)
      for form, optimizer, batches, saturates in zip(
          inner_steps.INNER_FORMS, inner_steps.INNER_OPTIMIZERS, (True, False) * 2,
          (True, True, False, False), strict=True)),
    *(Layered(TANH, 4, 8, 3, layout, form, carries=("count", "early")) for layout, form in zip(
        layered.LAYOUTS, (*layered.LAYERED_FORMS, "scan"), strict=True)),
    Layered(TANH, 4, 8, 3, carries=("rows", "chosen")),
    *(Layered(TANH, 4, 8, 3, branch=branch, carries=("mean", "best", "early"))
      for branch in layered.BRANCHES),
    *(Layered(TANH, 4, 8, 3, recompute=recompute, cast=True) for recompute in layered.RECOMPUTED),
    Recurrent("plain", "unrolled", 3, 4, 8, 8, 4, loss="means", jits=True),
)  # fmt: skip


@pytest.mark.parametrize("body", SMALL_BODIES, ids=to_text)
def test_each_form_keeps_the_form_of_its_state(body):
    keeps_its_form(training.build(Program(body, extras=("gradients",))))


ONE_OF_EACH = {type(body): body for body in SMALL_BODIES}.values()


@pytest.mark.parametrize("body", ONE_OF_EACH, ids=to_text)
def test_each_kind_gives_finite_results_and_gradients(body):
    built = training.build(Program(body, extras=("gradients",)))
    for leaf in jax.tree.leaves(quick(built.step)(*built.arguments)):
        assert jnp.isfinite(leaf).all(), leaf


def test_forms_of_one_fixed_point_agree():
    """With and without loops; the derivatives of some are others."""

    def loss(form):
        built = training.build(Program(FixedPoint(8, 6, 4, 4, form)))
        return float(quick(built.step)(*built.arguments)[2]["loss"])

    losses = [loss(form) for form in ("unrolled", "scan", "fori", "rewound", "implicit", "chunks")]
    assert max(losses) - min(losses) < 1e-4


@pytest.mark.parametrize("use", [*terms.USES, *terms.KEPT])
def test_each_term_is_used_and_kept(use):
    all_terms = tuple(Term(op, (1, 0), use, 0.3) for op in terms.TERMS)
    built = training.build(Program(SMALL_BODIES[0], donate=(1,), terms=all_terms))
    keeps_its_form(built)
    step = quick(built.step)
    params, state, results = step(*built.arguments)
    _, later, again = step(params, state, built.arguments[2])
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((later, again)))
    assert len(results.get("terms", ())) == (
        0 if use in ("loss", "part", "times") else len(terms.TERMS)
    )
    assert len(results.get("parts", ())) == (len(terms.TERMS) if use == "part" else 0)
    assert len(state.get("terms", ())) == (len(terms.TERMS) if use in terms.KEPT else 0)
    if use in terms.KEPT:
        kept = [jax.tree.leaves(tree["terms"]) for tree in (state, later)]
        assert any((old != new).any() for old, new in zip(*kept, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_program_with_types_of_64_bits_is_planned_alike(dtype):
    program = Program(GAINS, dtype, "adam", donate=(0, 1), x64=True)
    reference = check.Reference(program)
    assert reference.built.arguments[0]["v"].dtype == dtype
    assert reference.results.leaves["step 0[2]['loss']"][0] == dtype
    outcome = check.check(reference, QUICK)
    assert outcome.kind == "identical" and outcome.planned, outcome


def test_all_extras_are_planned_alike():
    program = Program(GAINS, donate=(0, 1), extras=tuple(training.EXTRAS))
    (outcome,) = check.check_case(Case(program, (QUICK,)))
    assert outcome.kind == "identical" and outcome.planned, outcome


@pytest.mark.parametrize("op", ["pure", "io", "io_ordered", "debug", "debug_ordered"])
def test_what_the_host_sees_is_compared(op):
    calls = (Node(op, (1, 0)), Node("scan", (-1, 0), 2, (Node(op, (0, 1)),)))
    gains = [Node("dense", (read,), k) for k in range(4) for read in (0, -1)]
    program = Program(Graph(8, 16, 1, 1, (*calls, *gains)), donate=(0, 1))
    (outcome,) = check.check_case(Case(program, (QUICK,)))
    assert outcome.kind == "identical" and outcome.planned, outcome
    ios, debugs, others = check.Reference(program).results.seen
    assert (bool(ios), bool(debugs)) == (op == "io_ordered", op == "debug_ordered")
    assert bool(others) == (op in ("io", "debug"))


# What must be found.


def altered(monkeypatch, change):
    """Reference of a program, and its step changed afterwards."""
    reference = check.Reference(Program(SMALL, donate=(0, 1), extras=("int4", "key", "empty")))
    step = reference.built.step
    built = reference.built._replace(step=lambda *arguments: change(step(*arguments)))
    monkeypatch.setattr(reference, "built", built)
    return reference


def test_a_wrong_result_is_reported(monkeypatch):
    def change(results):
        new = {**results[0], "array1": results[0]["array1"].at[3, 3].multiply(1.0000001)}
        return new, *results[1:]

    outcome = check.check(altered(monkeypatch, change), QUICK)
    assert outcome.kind == "wrong" and "array1" in outcome.reason


@pytest.mark.parametrize("name", ["int4", "key"])
def test_a_wrong_state_of_another_type_is_reported(monkeypatch, name):
    def change(results):
        state = dict(results[1])
        changed = {
            "int4": lambda: state["int4"] ^ jnp.int4(1),
            "key": lambda: jax.random.fold_in(state["key"], 1),
        }
        return results[0], {**state, name: changed[name]()}, results[2]

    outcome = check.check(altered(monkeypatch, change), QUICK)
    assert outcome.kind == "wrong" and name in outcome.reason


def test_a_larger_total_and_a_reason_that_names_no_limit_are_reported(monkeypatch):
    reference = check.Reference(Program(SMALL))
    monkeypatch.setattr(reference, "bytes", reference.bytes - 1)
    assert check.check(reference, QUICK).kind == "larger"

    def broken(*args, **kwargs):
        raise IndexError("list index out of range")

    monkeypatch.setattr("olla_xla.planner.plan_module", broken)
    outcome = check.check(check.Reference(Program(SMALL)), QUICK)
    assert outcome.kind == "failed" and "IndexError" in outcome.reason


@pytest.mark.refused
def test_a_choice_that_the_referee_refuses_is_reported(monkeypatch):
    made = planner.plan_module

    def refusing(*args, **kwargs):
        refusals.note("a change of loops", CheckError("it computes something else"))
        return made(*args, **kwargs)

    monkeypatch.setattr("olla_xla.planner.plan_module", refusing)
    outcome = check.check(check.Reference(Program(SMALL)), QUICK)
    assert outcome.kind == "refused" and "something else" in outcome.reason
    assert outcome.kind in check.FAILURES


def test_what_a_referee_objects_to_is_reported(monkeypatch):
    monkeypatch.setattr(check, "_checked", lambda *_: check.Outcome("failed", reason=_OBJECTION))
    assert check.check(check.Reference(Program(SMALL)), QUICK).kind == "refused"
    monkeypatch.setattr(check, "_checked", lambda *_: check.Outcome("wrong", reason=_OBJECTION))
    assert check.check(check.Reference(Program(SMALL)), QUICK).kind == "wrong"


_OBJECTION = "olla_xla's check failed: results differ"


def test_a_budget_that_cannot_be_met_is_no_failure():
    (outcome,) = check.check_case(Case(Program(SMALL), (dataclasses.replace(QUICK, budget=0.1),)))
    assert outcome.kind == "budget"


def test_what_fails_is_shrunk(monkeypatch):
    def fails(case):
        names = {node.op for node in getattr(case.program.body, "nodes", ())}
        return [check.Outcome("wrong" if "gates" in names else "identical")] * len(case.plans)

    monkeypatch.setattr(check, "check_case", fails)
    events = []
    share = search.Share(seed=0, number=0, count=17, shrinks=1, shrink_seconds=5)
    search.run_share(share, events.append)
    (failure,) = [event["failure"] for event in events if "failure" in event]
    small = from_text(failure["case"])
    assert failure["kind"] == "wrong" and len(small.plans) == 1
    assert "gates" in {node.op for node in small.program.body.nodes}
    assert len(small.program.body.nodes) <= 3
    assert (small.program.donate, small.program.extras) == ((), ())


# Processes.


def test_a_process_that_crashes_is_reported_and_its_share_goes_on(monkeypatch, tmp_path):
    worker = tmp_path / "crashing_worker.py"
    worker.write_text(
        "import json, os, sys\n"
        "share = json.loads(sys.argv[1])\n"
        "for place in range(share['skip'], share['count']):\n"
        "    head = {'share': 0, 'place': place, 'kind': 'any', 'case': f'case {place}'}\n"
        "    print(json.dumps({'start': head}), flush=True)\n"
        "    if place == 1: os.abort()\n"
        "    outcome = {'kind': 'identical', 'planned': True, 'xla_bytes': 4, 'bytes': 3}\n"
        "    print(json.dumps({'row': {**head, 'outcomes': [outcome]}}), flush=True)\n"
        "print(json.dumps({'end': True}))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(processes, "_WORKER", "crashing_worker")
    events = list(processes.run(processes.shares(4, 1, 0, 1.0), workers=2))
    rows = [event["row"] for event in events if "row" in event]
    assert [row["place"] for row in rows] == [0, 1, 2, 3]
    assert [row["outcomes"][0]["kind"] for row in rows].count("crashed") == 1
    (failure,) = [event["failure"] for event in events if "failure" in event]
    assert (failure["kind"], failure["case"]) == ("crashed", "case 1")
    counted = programs.Tally()
    for row in rows:
        counted.add(row)
    assert (counted.plans, counted.failures, counted.planned) == (4, 1, 3)
    assert counted.savings == [0.25] * 3
    assert programs.tally_table({"any": counted}).rows[-1][0] == "all"


def test_the_worker_speaks_lines_of_json():
    share = dataclasses.asdict(search.Share(seed=0, number=0, count=0))
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.random_programs.search", json.dumps(share)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line) for line in run.stdout.splitlines()] == [{"end": True}]


# That plans hold.


# Unrolled LSTMs and Llamas are in tests/compile/test_never_wrong.py.
def test_what_is_kept_long_and_read_from_many_places():
    body = Transformer(1, 2, 16, 32, 2, 64, activation="gelu", tied=True, recompute=True)
    plans = (QUICK, Settings(seed=1, step_limit=200, max_overhead=0.05))
    for outcome in check.check_case(Case(Program(body, donate=(0, 1)), plans)):
        assert outcome.kind == "identical" and outcome.planned, outcome


def test_random_programs_are_planned_alike():
    share = search.Share(12, 0, count=2, plans=2, shrink_seconds=60, shrinks=1, timed=False)
    events = []
    search.run_share(share, events.append)
    assert not [event["failure"] for event in events if "failure" in event]
    outcomes = [o for event in events if "row" in event for o in event["row"]["outcomes"]]
    assert len(outcomes) == 2 * 2 and {o["kind"] for o in outcomes} <= {"identical", "budget"}
    assert any(o["planned"] for o in outcomes)


@pytest.mark.tpu
def test_for_an_absent_tpu_programs_are_compiled_and_not_run():
    said = []
    share = search.Share(seed=1, number=0, count=6, plans=1, scans=True, target="v5e")
    search.run_share(share, said.append)
    outcomes = [one for event in said if "row" in event for one in event["row"]["outcomes"]]
    assert {one["kind"] for one in outcomes} <= {"compiled", "budget", "invalid"}
    assert sum(one["kind"] == "compiled" for one in outcomes) >= 4
    assert from_text(said[0]["start"]["case"]).target == "v5e"


def test_a_run_goes_on_where_its_file_ends(monkeypatch, tmp_path):
    out, asked = tmp_path / "rows.jsonl", []

    def some(work, workers):
        asked.append([(share.number, share.skip, share.count) for share in work])
        outcome = dataclasses.asdict(check.Outcome("budget"))
        row = {"share": 0, "kind": "graph: plain", "outcomes": [outcome]}
        yield {"row": {**row, "place": len(asked) - 1}}

    monkeypatch.setattr(programs, "run_shares", some)
    flags = ["benchmarks", "programs", "--count=61", f"--out={out}"]
    assert main(flags) == main([*flags, "--resume"]) == main([*flags, "--resume"]) == 0
    assert asked == [[(0, done, 60), (1, 0, 1)] for done in range(3)]
    assert [json.loads(line)["place"] for line in out.read_text().splitlines()] == [0, 1, 2]
    assert main([*flags[:-1], "--resume"]) == 2
    out.write_text("no rows\n")
    assert main([*flags, "--resume"]) == 2


def test_every_choice_of_scan_residuals_is_checked(monkeypatch):
    body = Transformer(3, 2, 16, 32, 2, 64, form="scan")
    case = Case(Program(body), ())
    (outcome,) = check.check_case(case)
    assert outcome.kind == "compiled" and outcome.stacks > 1

    def refuse(*_, loops):
        raise CheckError(f"refused with loops={loops}")

    monkeypatch.setattr(check, "check_rewrite", refuse)
    (outcome,) = check.check_case(case)
    assert outcome.kind == "refused" and outcome.reason == "choice 0: refused with loops=True"

    def break_down(*_, loops):
        raise IndexError(loops)

    monkeypatch.setattr(check, "check_rewrite", break_down)
    (outcome,) = check.check_case(case)
    assert outcome.kind == "failed" and "IndexError" in outcome.reason
