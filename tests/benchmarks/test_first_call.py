"""First calls are timed in processes of their own, and both kinds give totals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from benchmarks import dropout_steps, first_call
from benchmarks.__main__ import main
from benchmarks.commands.first_call import first_call_table
from benchmarks.first_call import Row, measure
from benchmarks.schedule import Case
from olla_xla.errors import OllaError
from olla_xla.tools import models


def test_a_step_is_timed_with_and_without_a_plan():
    row = measure(Case("mlp", 64, "adam", "cpu"), turns=1)
    assert row.turns == 1 and row.jit_seconds > 0 and row.plan_seconds > 0
    assert 0 < row.planned_bytes <= row.xla_bytes
    assert [line[0] for line in first_call_table([row]).rows] == ["mlp/64/adam/cpu", "median"]


def test_caches_are_filled_before(monkeypatch):
    turns, found = [], {"seconds": 1.0, "bytes": 2, "search_seconds": 0.0}
    monkeypatch.setattr(first_call, "_turn", lambda *turn: turns.append(turn) or found)
    measure(Case("mlp", 64, "adam", "cpu"), turns=1, cached=True)
    assert [planned for _, planned, _, _ in turns] == [True, True, False, False, True]
    assert len({folder for _, _, folder, _ in turns}) == 1 and turns[0][2]


def test_what_a_process_says_last_is_the_error():
    with pytest.raises(OllaError, match="no_such_model"):
        measure(Case("no_such_model", 1, "adam", "cpu"), turns=1)


def test_ratio_and_saving():
    row = Row("a", 2.0, 3.0, 100, 75, 0.5, 3)
    assert (row.ratio, row.saving) == (1.5, 0.25)


def test_steps_with_dropout_give_jits_results():
    given = dropout_steps.CASES[0]
    model = models.build(given.model, batch_size=given.batch_size, optimizer=given.optimizer)
    results = [
        make(model.step, **model.jit_options)(*jax.tree.map(jnp.copy, model.arguments))
        for make in (jax.jit, olla_xla.plan)
    ]
    for expected, found in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(expected, found)


def test_one_kind_of_steps_at_a_time(capsys):
    assert main(["benchmarks", "first_call", "--libraries", "--dropout"]) == 2
    assert "one of them" in capsys.readouterr().err
