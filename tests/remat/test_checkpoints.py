"""Loops that keep every k-th of their states: as little as by hand, and the same bits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from benchmarks.refused import collected
from benchmarks.rewritten import compile_rewritten
from hlo.module import module_from_bytes
from hlo.rewrite.checkpoints import Segments
from hlo.rewrite.loop_edit import ValueRef
from olla_xla import planner
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import CheckError
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.loops.recipe import edits
from olla_xla.tools.residual_rows import residual_rows
from tests.support import ode_programs, rates
from tests.support.compiles import on_h100, total_bytes, xla_schedule
from tests.support.ode_programs import PROGRAMS
from tests.support.plugins import CUDA
from tests.support.rewrites import with_loops_changed
from tests.support.steps import assert_same

pytestmark = pytest.mark.slow


@functools.cache
def lowered(name, turns, target="cpu"):
    step, arguments = PROGRAMS[name](turns)
    if target == "cuda":
        arguments = on_h100(jax.tree.map(jnp.asarray, arguments))
    return jax.jit(step).lower(*arguments)


@functools.cache
def module_of(name, turns, target="cpu"):
    return scheduled_module(xla_schedule(lowered(name, turns, target))).data


@functools.cache
def expected(name, turns):
    return lowered(name, turns).compile()(*PROGRAMS[name](turns)[1])


@functools.cache
def thin(name, turns, target="cpu"):
    """The choices whose turns run again."""
    found = rates.priced_choices(module_of(name, turns, target), target)
    return [found.choice(k) for k in range(found.thin, len(found))]


def thinnest(name, turns, target="cpu"):
    """The choice that keeps the fewest bytes."""
    return thin(name, turns, target)[-1]


# Segments that are even and that are not, of few turns and of many.
ON_A_CPU = [
    pytest.param(name, turns, marks=pytest.mark.optimized if turns == 37 else ())
    for name in PROGRAMS
    if name not in ode_programs.NOT_ON_A_CPU
    for turns in ((7, 36, 37) if name in ("driven", "counted") else (37,))
]


@pytest.mark.parametrize(("name", "turns"), ON_A_CPU)
def test_bits_stay_the_same(name, turns):
    """For the referee, of each choice; in a real run, of the one that keeps the fewest bytes."""
    assert thin(name, turns)
    for choice in thin(name, turns):
        assert any(record.every for record in choice.records)
        check_rewrite(module_of(name, turns), choice.module.data, "cpu", loops=True)
        check_executable(choice.module.data, "cpu")
    arguments, thinnest = PROGRAMS[name](turns)[1], thin(name, turns)[-1]
    compiled = compile_rewritten(lowered(name, turns), lambda _: thinnest.module.data)
    assert_same(expected(name, turns), compiled(*arguments))
    assert total_bytes(compiled) == thinnest.total


@pytest.mark.cuda13
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_referee_agrees_on_a_gpu(name):
    assert thin(name, 37, "cuda")
    for choice in thin(name, 37, "cuda"):
        assert any(record.every for record in choice.records)
        check_rewrite(module_of(name, 37, "cuda"), choice.module.data, "cuda", loops=True)
        check_executable(choice.module.data, "cuda")


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_a_long_scan_takes_as_little_as_with_checkpoints_by_hand(target):
    turns = 1000
    step, arguments = ode_programs.nested(turns)
    if target == "cuda":
        arguments = on_h100(arguments)
    by_hand = xla_schedule(jax.jit(step).lower(*arguments))
    choice = thinnest("neural_ode", turns, target)
    assert (
        choice.total
        <= 1.1 * PlannedModule(scheduled_module(by_hand), target).simulate().total_bytes
    )
    cost = rates.cost(target)
    first, second = (
        cost.step_seconds(module_from_bytes(module)) for module in (by_hand, choice.module.data)
    )
    assert second <= 1.25 * first
    check_rewrite(module_of("neural_ode", turns, target), choice.module.data, target, loops=True)


def off_by(method, by):
    """Segments with another slice, or turn, than the right one."""

    class Off(Segments):
        pass

    def moved(self, inner, turn):
        return inner.integer("add", getattr(Segments, method)(self, inner, turn), by)

    setattr(Off, method, moved)
    return Off


WRITER = [off_by(method, by) for method in ("kept", "since") for by in (-1, 1)]
READER = [
    off_by(method, by)
    for method in ("since", "before", "again", "after")
    for by in ((-1, 1) if method != "after" else (-1,))
]


def refused(name, turns, edit):
    after = with_loops_changed(module_of(name, turns), edit)
    with pytest.raises(CheckError, match="results"):
        check_rewrite(module_of(name, turns), after, "cpu", loops=True)


def thin_edits(name, turns, k=-1):
    view = module_from_bytes(module_of(name, turns))
    return edits(view, thin(name, turns)[k].records, "cpu")


@pytest.mark.parametrize("turns", [36, 37])
@pytest.mark.parametrize("k", range(len(WRITER)))
def test_the_referee_refuses_what_is_kept_elsewhere(monkeypatch, k, turns):
    monkeypatch.setattr("hlo.rewrite.loop_states.Segments", WRITER[k])
    refused("driven", turns, thin_edits("driven", turns))


@pytest.mark.parametrize("turns", [36, 37])
@pytest.mark.parametrize("k", range(len(READER)))
def test_the_referee_refuses_other_turns(monkeypatch, k, turns):
    monkeypatch.setattr("hlo.rewrite.checkpoints.Segments", READER[k])
    refused("driven", turns, thin_edits("driven", turns))


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("loop", ["loop_states", "checkpoints"])
def test_the_referee_refuses_another_number_of_turns_between(monkeypatch, loop, by):
    monkeypatch.setattr(
        f"hlo.rewrite.{loop}.Segments", lambda turns, every: Segments(turns, every + by)
    )
    refused("driven", 37, thin_edits("driven", 37))


def wrong(edit):
    """Changes whose turns run again in another way."""
    checkpoints = edit.checkpoints
    first, second, *others = checkpoints.kept
    held = next(one.held for one in checkpoints.kept if one.held)

    def kept(*changed):
        return dataclasses.replace(checkpoints, kept=(*changed, *others))

    yield kept(
        dataclasses.replace(first, following=second.following),
        dataclasses.replace(second, following=first.following),
    )
    yield kept(
        dataclasses.replace(first, begun=second.begun),
        dataclasses.replace(second, begun=first.begun),
    )
    yield kept(dataclasses.replace(first, following=ValueRef(made=first.begun)), second)
    yield kept(dataclasses.replace(first, following=ValueRef(made=held)), second)
    yield kept(
        dataclasses.replace(first, element=second.element),
        dataclasses.replace(second, element=first.element),
    )


def test_the_referee_refuses_what_comes_of_something_else():
    (edit,) = thin_edits("exchanged", 37, 0)
    for checkpoints in wrong(edit):
        refused("exchanged", 37, [dataclasses.replace(edit, checkpoints=checkpoints)])


def test_the_referee_refuses_residuals_of_something_else():
    (edit,) = thin_edits("wide_ode", 37, 0)
    first, second, *others = edit.checkpoints.residuals
    exchanged = (
        dataclasses.replace(first, again=second.again),
        dataclasses.replace(second, again=first.again),
    )
    kept_elsewhere = (
        dataclasses.replace(first, value=second.value),
        dataclasses.replace(second, value=first.value),
    )
    held = (
        dataclasses.replace(first, held=second.held),
        dataclasses.replace(second, held=first.held),
    )
    old = dataclasses.replace(first, again=ValueRef(made=first.held)), second
    for changed in (exchanged, kept_elsewhere, held, old):
        checkpoints = dataclasses.replace(edit.checkpoints, residuals=(*changed, *others))
        refused("wide_ode", 37, [dataclasses.replace(edit, checkpoints=checkpoints)])


@pytest.mark.parametrize("name", ["driven", "counted", "neural_ode"])
def test_the_referee_refuses_another_turn_of_what_is_read(name):
    (edit,) = thin_edits(name, 37, 0)
    begun = {k.begun: k.held for k in edit.checkpoints.kept if k.held}
    if edit.checkpoints.again:
        begun[edit.checkpoints.again] = ""
    found = 0
    for n, made in enumerate(edit.made):
        for o, (where, given) in enumerate(made.operands):
            if given.made in begun:  # it belongs to a turn that runs again
                held = begun[given.made]
                other = ValueRef(made=held) if held else ValueRef(iteration=True)
                operands = (*made.operands[:o], (where, other), *made.operands[o + 1 :])
                changed = dataclasses.replace(made, operands=operands)
                whole = (*edit.made[:n], changed, *edit.made[n + 1 :])
                bad = dataclasses.replace(edit, made=whole)
                if not held:  # nothing else may read the number of the turn
                    bad = unread(bad)
                refused(name, 37, [bad])
                found += 1
    assert found


def unread(edit):
    """A change without the number of the turn that runs again, where nothing reads it."""
    again = edit.checkpoints.again
    if any(given.made == again for made in edit.made for _, given in made.operands):
        return edit
    return dataclasses.replace(edit, checkpoints=dataclasses.replace(edit.checkpoints, again=""))


@pytest.mark.parametrize("limit", ["overhead", "budget"])
@pytest.mark.optimized
def test_a_plan_keeps_few_turns(limit):
    turns = 120
    least = thinnest("neural_ode", turns).total
    options = {"max_overhead": 1.0} if limit == "overhead" else {"memory_budget": least}
    step, arguments = PROGRAMS["neural_ode"](turns)
    planned = olla_xla.plan(step, step_limit=500, **options)
    with collected() as objections:
        compiled = planned.lower(*arguments).compile()
    assert not objections and not compiled.reason
    assert any(record.every for record in compiled.plan.loops)
    assert compiled.plan.assigned_bytes == compiled.plan.predicted_bytes
    assert_same(expected("neural_ode", turns), compiled(*arguments))


def test_no_turns_run_again_by_default():
    step, arguments = PROGRAMS["neural_ode"](36)
    plan = olla_xla.plan(step, step_limit=500).lower(*arguments).compile().plan
    assert not any(record.every for record in plan.loops)


def test_what_is_kept_of_stacks_is_listed():
    module, (first, last) = module_of("wide_ode", 37), thin("wide_ode", 37)
    plan = planner.plan_module(module, PlanOptions(step_limit=200), target="cpu")
    view = module_from_bytes(module)
    rows = [residual_rows(view, dataclasses.replace(plan, loops=r.records)) for r in (first, last)]
    assert {row.slices for row in rows[0]} == {0, first.records[0].every}
    assert {row.slices for row in rows[1]} == {0, last.records[0].every}
