"""Loops that keep every k-th of their states: as little as by hand, and the same bits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from hlo.module import module_from_bytes
from hlo.rewrite.checkpoints import Segments
from hlo.rewrite.loops import with_loops_changed
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.compile.capture import capture, compile_rewritten
from olla_xla.errors import CheckError
from olla_xla.memory.module_state import PlannedModule
from olla_xla.problem import refusals
from olla_xla.remat.cost.roofline import H100, CostModel, Device
from olla_xla.remat.loops.ladder import Ladder
from olla_xla.remat.loops.recipe import edits
from tests.support import ode_programs
from tests.support.compiles import on_h100, total_bytes
from tests.support.ode_programs import PROGRAMS
from tests.support.steps import assert_same

CPU = Device("CPU", 2e10, 2e10, 5e8, 5e10, 2e-6)


@functools.cache
def lowered(name, turns, target="cpu"):
    step, arguments = PROGRAMS[name](turns)
    if target == "cuda":
        arguments = on_h100(jax.tree.map(jnp.asarray, arguments))
    return jax.jit(step).lower(*arguments)


@functools.cache
def module_of(name, turns, target="cpu"):
    return capture(lowered(name, turns, target)).module


@functools.cache
def thinnest(name, turns, target="cpu"):
    """The choice that keeps the fewest bytes."""
    cost = CostModel(CPU if target == "cpu" else H100, target)
    found = Ladder(module_of(name, turns, target), target, cost)
    return found.rung(len(found) - 1)


@pytest.mark.parametrize("turns", [6, 7, 36, 37])
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ode_programs.NOT_ON_A_CPU])
def test_bits_stay_the_same(name, turns):
    rung = thinnest(name, turns)
    assert any(every for *_, every in rung.records)
    check_rewrite(module_of(name, turns), rung.data, "cpu", loops=True)
    check_executable(rung.data, "cpu")
    compiled = compile_rewritten(lowered(name, turns), lambda module: rung.data)
    arguments = PROGRAMS[name](turns)[1]
    assert_same(lowered(name, turns).compile()(*arguments), compiled(*arguments))
    assert total_bytes(compiled) == rung.total


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_referee_agrees_on_a_gpu(name):
    rung = thinnest(name, 37, "cuda")
    assert any(every for *_, every in rung.records)
    check_rewrite(module_of(name, 37, "cuda"), rung.data, "cuda", loops=True)
    check_executable(rung.data, "cuda")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_long_scan_takes_as_little_as_with_checkpoints_by_hand(target):
    turns = 1000
    step, arguments = ode_programs.nested(turns)
    if target == "cuda":
        arguments = on_h100(arguments)
    by_hand = capture(jax.jit(step).lower(*arguments)).module
    rung = thinnest("neural_ode", turns, target)
    assert rung.total <= 1.1 * PlannedModule(by_hand, target).simulate().total_bytes
    cost = CostModel(CPU if target == "cpu" else H100, target)
    first, second = (
        cost.step_seconds(module_from_bytes(module)) for module in (by_hand, rung.data)
    )
    assert second <= 1.25 * first
    check_rewrite(module_of("neural_ode", turns, target), rung.data, target, loops=True)
