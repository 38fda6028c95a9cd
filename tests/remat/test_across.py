"""Predicted times on a CPU with caches: reading across a layout, exponentials, temporaries."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from hlo.module import module_from_bytes
from olla_xla.compile.accounting import final_module
from olla_xla.remat.cost import across, calibrate
from olla_xla.remat.cost.across import Across, AcrossCost, cost_in_pieces, rows_across
from olla_xla.remat.cost.roofline import CostModel, Device
from olla_xla.remat.cost.work import transposes

CPU = Device("CPU", 1e10, 1e10, 1e9, 1e11, 0.0, 1e8, fresh_bytes_per_second=1e9)
COST = AcrossCost(CPU, "cpu", Across(1e9, 4e9, 4e9))


def operators(function, *shapes):
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    compiled = jax.jit(function, donate_argnums=0).lower(*args).compile()
    return module_from_bytes(final_module(compiled)).entry.instructions


def reading(rows):
    """The operator that computes with an array of so many rows of 512, column by column."""

    def function(kept, x):
        return jnp.minimum(kept, jnp.maximum(x * x + x, 0).T)

    found = operators(function, (512, rows), (rows, 512))
    return next(i for i in found if COST.work(i).transposed)


def test_rows_are_what_is_touched_before_a_line_is_again():
    assert [rows_across(reading(rows)) for rows in (64, 4096)] == [64, 4096]
    (moved,) = (
        i
        for i in operators(lambda x: x.transpose(2, 0, 1), (4, 6, 128))
        if i.opcode == "fusion" or transposes(i)
    )
    assert rows_across(moved) == 24


def test_the_more_rows_the_slower():
    few, some, many, most = (
        COST.seconds(i) / COST.work(i).bytes for i in map(reading, (64, 2048, 12_544, 30_000))
    )
    assert few < some < many == pytest.approx(most, rel=1e-3)
    i = reading(64)
    size = COST.work(i).transposed
    assert COST.seconds(i) == pytest.approx((COST.work(i).bytes - size) / 1e10 + size / 1e9)
    plain = CostModel(CPU, "cpu")
    assert COST.seconds(reading(12_544)) == pytest.approx(plain.seconds(reading(12_544)))


def test_what_only_moves_is_priced_by_itself():
    moved = next(i for i in operators(lambda x: x.T, (4096, 512)) if COST.work(i).transposed)
    assert COST.seconds(moved) == pytest.approx(4096 * 512 * 4 * (1 / 1e10 + 1 / 4e9))


def test_exponentials_have_a_rate_of_their_own():
    (exp,) = (i for i in operators(jnp.exp, (1 << 16,)) if COST.work(i).bytes)
    (tanh,) = (i for i in operators(jnp.tanh, (1 << 16,)) if COST.work(i).bytes)
    assert COST.seconds(exp) == pytest.approx(2**16 * 8 / 1e10)  # memory takes longer
    assert COST.seconds(tanh) == CostModel(CPU, "cpu").seconds(tanh) == pytest.approx(2**16 / 1e9)


def test_few_temporaries_are_kept_between_runs():
    compiled = jax.jit(jnp.sin).lower(jax.ShapeDtypeStruct((8,), jnp.float32)).compile()
    module = module_from_bytes(final_module(compiled))
    own = COST.step_seconds(module)
    assert COST.run_seconds(module, 1 << 20) == own
    assert COST.run_seconds(module, 1 << 30) == pytest.approx(own + 2**30 / 1e9)


def test_rates_are_measured_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "_MOMENT", 0.001)
    monkeypatch.setattr(calibrate, "measure_cpu", lambda: CPU)
    for name, value in (("_COLUMNS", 16), ("_SOME", 64)):
        monkeypatch.setattr(across, name, value)
    for cached in (calibrate._calibrated, across._measured):
        cached.cache_clear()
    try:
        found = cost_in_pieces("cpu")
        assert isinstance(found, AcrossCost)
        rates = dataclasses.asdict(found.across)
        assert all(0 < rate < math.inf for rate in rates.values())
        across._measured.cache_clear()
        monkeypatch.setattr(calibrate, "_busy", lambda: True)  # then what is kept is taken
        assert cost_in_pieces("cpu") == found
        assert type(cost_in_pieces("cuda", "NVIDIA H100 80GB HBM3")) is CostModel
    finally:
        for cached in (calibrate._calibrated, across._measured):
            cached.cache_clear()
