"""Predicted times on a CPU with caches: reading across a layout, products, temporaries."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from hlo.module import module_from_bytes
from olla_xla.compile.accounting import final_module
from olla_xla.pieces import across
from olla_xla.pieces.across import Across, AcrossCost, cost_in_pieces, strides_of
from olla_xla.pieces.timed_products import product_of
from olla_xla.remat.cost import calibrate, cpu_benchmarks
from olla_xla.remat.cost.roofline import CostModel, Device

CPU = Device("CPU", 1e10, 1e10, 1e9, 1e11, 0.0, 1e8, fresh_bytes_per_second=1e9)
COST = AcrossCost(CPU, "cpu", Across(8e9, 1e9, 2e8, 4e9))


def compiled(function, *shapes, donated=(0,)):
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    executable = jax.jit(function, donate_argnums=donated).lower(*args).compile()
    return module_from_bytes(final_module(executable))


def operators(function, *shapes, donated=(0,)):
    return compiled(function, *shapes, donated=donated).entry.instructions


def reading(rows, columns=512, arrays=1):
    """The operator that computes with arrays of so many rows, column by column."""

    def function(kept, *xs):
        made = xs[0] * xs[0]
        for x in xs[1:]:
            made = made * x + x
        return jnp.minimum(kept, jnp.maximum(made + xs[0], 0).T)

    found = operators(function, (columns, rows), *[(rows, columns)] * arrays)
    return next(i for i in found if COST.work(i).transposed)


def test_an_array_that_is_broadcast_is_not_read_across():
    def function(kept, x, row):
        return jnp.minimum(kept, jnp.maximum(x * row + x, 0).T)

    found = operators(function, (512, 256), (256, 512), (512,))
    assert strides_of(next(i for i in found if COST.work(i).transposed)).arrays == 1


def test_the_more_pages_the_slower():
    def per_byte(*how):
        i = reading(*how)
        size = COST.work(i).transposed
        return (COST.seconds(i) - (COST.work(i).bytes - size) / 1e10) / size

    few, some, many, most = (per_byte(rows) for rows in (512, 2048, 8192, 30_000))
    assert few == pytest.approx(1 / 1e9)
    assert few < some < many == pytest.approx(most) == pytest.approx(1 / 2e8)
    assert per_byte(1024, 512, 2) == pytest.approx(per_byte(2048))
    assert per_byte(1000, 352) == pytest.approx(1 / 8e9)
    assert 1 / 8e9 < per_byte(32, 1024) < per_byte(64, 1024) < few


def test_a_product_takes_what_it_was_timed_at():
    (i,) = (
        i for i in operators(jnp.matmul, (256, 256), (256, 256), donated=()) if COST.work(i).matrix
    )
    product = product_of(i)
    assert product is not None
    plain = CostModel(CPU, "cpu")
    assert COST.seconds(i) == plain.seconds(i)
    slow = dataclasses.replace(COST, products={product: 2.0})
    assert slow.seconds(i) == pytest.approx(2.0)
    quick = dataclasses.replace(COST, products={product: 1e-9})
    assert quick.seconds(i) == pytest.approx(COST.work(i).bytes / CPU.bytes_per_second)


def test_what_only_moves_is_priced_by_itself():
    moved = next(i for i in operators(lambda x: x.T, (4096, 512)) if COST.work(i).transposed)
    assert COST.seconds(moved) == pytest.approx(4096 * 512 * 4 * (1 / 1e10 + 1 / 4e9))


def test_few_temporaries_are_kept_between_runs():
    compiled = jax.jit(jnp.sin).lower(jax.ShapeDtypeStruct((8,), jnp.float32)).compile()
    module = module_from_bytes(final_module(compiled))
    own = COST.step_seconds(module)
    assert COST.run_seconds(module, 1 << 20) == own
    assert COST.run_seconds(module, 1 << 30) == pytest.approx(own + 2**30 / 1e9)


def test_rates_are_measured_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_benchmarks, "_MOMENT", 0.001)
    monkeypatch.setattr(cpu_benchmarks, "measure_cpu", lambda: CPU)
    small = {"_COLUMNS": 16, "_SOME": 64}
    small |= dict.fromkeys(("_HELD", "_READ_FEW", "_READ_MANY"), (2, 8, 16))
    for name, value in small.items():
        monkeypatch.setattr(across, name, value)
    for cached in (calibrate._calibrated, across._measured):
        cached.cache_clear()
    module = compiled(jnp.sin, (64, 64))
    try:
        found = cost_in_pieces("cpu", "", module)
        assert isinstance(found, AcrossCost)
        rates = dataclasses.asdict(found.across)
        assert all(0 < rate < math.inf for rate in rates.values())
        across._measured.cache_clear()
        monkeypatch.setattr(
            calibrate, "_others", lambda work: (work(), 1.0)
        )  # what is kept is taken
        assert cost_in_pieces("cpu", "", module) == found
        on_gpu = cost_in_pieces("cuda", "NVIDIA H100 80GB HBM3", module)
        assert type(on_gpu) is CostModel
    finally:
        for cached in (calibrate._calibrated, across._measured):
            cached.cache_clear()
