"""Matrix products that are timed: their form, what is timed in their place, and which are."""

import math
import time

import jax
import jax.numpy as jnp
import pytest

from hlo.module import module_from_bytes
from olla_xla.compile.accounting import final_module
from olla_xla.pieces import timed_products as products
from olla_xla.pieces.timed_products import Product, heaviest, measure_products, product_of, timed
from olla_xla.remat.cost import calibrate, cpu_benchmarks
from olla_xla.remat.cost.work import work

F32 = ("f32", "f32", "f32")

FORMS = {
    "plain": ("ik,kj->ij", (48, 80), (80, 32)),
    "first transposed": ("ki,kj->ij", (80, 48), (80, 32)),
    "second transposed": ("ik,jk->ij", (48, 80), (32, 80)),
    "both transposed": ("ki,jk->ij", (80, 48), (32, 80)),
    "batched": ("bik,bkj->bij", (4, 48, 80), (4, 80, 32)),
    "two batches": ("abik,abjk->abij", (2, 3, 24, 40), (2, 3, 32, 40)),
    "two summed": ("ikl,klj->ij", (48, 10, 8), (10, 8, 32)),
}


def compiled(function, *shapes, dtype=jnp.float32):
    args = [jax.ShapeDtypeStruct(s, dtype) for s in shapes]
    return module_from_bytes(final_module(jax.jit(function).lower(*args).compile()))


def instructions(module):
    return [i for c in module.control_computations for i in c.instructions]


def found_in(module):
    return [p for i in instructions(module) if (p := product_of(i)) is not None]


@pytest.mark.parametrize("form", FORMS)
def test_a_product_is_timed_in_its_own_form(form):
    text, *shapes = FORMS[form]
    module = compiled(lambda x, y: jnp.einsum(text, x, y), *shapes)
    ((i, product),) = ((i, p) for i in instructions(module) if (p := product_of(i)) is not None)
    assert 2 * product.operations == work(i, "cpu").matrix
    again = compiled_bench(product)
    assert set(found_in(again)) == {product}


def compiled_bench(product):
    """The module of a product's benchmark."""
    bench = product.bench()
    lowered = bench._jitted.lower(*bench._arguments)
    return module_from_bytes(final_module(lowered.compile()))


def test_what_is_no_product_of_floating_point_numbers_is_not_timed():
    assert not found_in(compiled(jnp.sin, (64, 64)))
    assert not found_in(compiled(jnp.matmul, (64, 64), (64, 64), dtype=jnp.int32))


def test_of_a_large_product_a_part_is_timed():
    large = Product((1 << 14, 1 << 12, 1 << 10), 2, (2, 0), (1, 2), ("bf16", "bf16", "f32"))
    part = large.part()
    assert part.operations <= products._OPERATIONS
    assert part.operations > products._OPERATIONS // 4
    assert (part.first, part.second, part.dtypes) == (large.first, large.second, large.dtypes)
    assert part.part() == part
    thin = Product((1 << 20, 64), 1, (0, 1), (1,), F32)
    assert thin.part().sizes == (1 << 19, 64)


def test_the_heaviest_count_the_trips_of_loops():
    def function(x, w, v):
        def body(x, _):
            return jnp.tanh(x @ w), None

        return jax.lax.scan(body, x, None, 10)[0] @ v

    module = compiled(function, (256, 128), (128, 128), (128, 512))
    first, *rest = heaviest(module)
    assert first.sizes == (256, 128, 128)
    assert [p.sizes for p in rest] == [(256, 512, 128)]
    small = compiled(function, (256, 128), (128, 128), (128, 64))
    assert [p.sizes for p in heaviest(small)] == [(256, 128, 128)]  # 95.2 % of the operations


def test_times_are_measured_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_benchmarks, "_ROUNDS", 2)
    monkeypatch.setattr(products, "_MOMENT", 0.001)
    asked = heaviest(compiled(lambda x, y, z: (x @ y) @ z, (128, 128), (128, 128), (128, 8)))
    with calibrate.LOCK:
        found = timed(asked)
        assert list(found) == asked
        assert all(0 < seconds < math.inf for seconds in found.values())
        monkeypatch.setattr(products, "measure_products", lambda _: pytest.fail("measured again"))
        monkeypatch.setattr(calibrate, "_others", lambda work: (work(), 1.0))
        assert timed(asked) == found
        assert timed([]) == {}


def test_a_measured_time_is_that_of_a_run(monkeypatch):
    monkeypatch.setattr(cpu_benchmarks, "_ROUNDS", 3)
    product = Product((512, 512, 512), 2, (0, 2), (2, 1), F32)
    (found,) = measure_products([product])
    x = jnp.full((512, 512), 0.5)
    run = jax.jit(jnp.matmul)
    run(x, x).block_until_ready()
    took = []
    for _ in range(20):
        started = time.perf_counter()
        run(x, x).block_until_ready()
        took.append(time.perf_counter() - started)
    assert found / 5 < min(took) < 5 * found
