"""Rounding to the precision that a value has: told by JAX's types, by planner and referee alike."""

import jax.numpy as jnp
import pytest

from hlo.dumps.read import with_program_order
from hlo.module import module_from_bytes
from hlo.rounding import keeps_precision
from hlo.text import from_hlo_text
from olla_xla.check.executable import results_digest
from olla_xla.remat.loops.pairs import pairs
from olla_xla.remat.loops.recipe_table import RecipeTable
from tests.check.test_executable_loops import module_text, reader, writer

TYPES = {
    "f16": jnp.float16,
    "bf16": jnp.bfloat16,
    "f32": jnp.float32,
    "f64": jnp.float64,
}


def rounded(kind, exponent, mantissa):
    operation = f"reduce-precision(p), exponent_bits={exponent}, mantissa_bits={mantissa}"
    return _module(kind, operation)


def _module(kind, operation):
    text = f"HloModule m\nENTRY e {{ p = {kind}[4] parameter(0)\n ROOT r = {kind}[4] {operation} }}"
    return with_program_order(from_hlo_text(text))


@pytest.mark.parametrize("kind", TYPES)
def test_a_types_own_precision(kind):
    """On a TPU it is the value itself; where bits were looked at, it is an operation."""
    own = jnp.finfo(TYPES[kind])
    handed_on = _module(kind, "copy(p)")
    for exponent, mantissa in (own.nexp, own.nmant), (own.nexp, own.nmant - 1), (4, own.nmant):
        data = rounded(kind, exponent, mantissa)
        kept = (exponent, mantissa) == (own.nexp, own.nmant)
        root = module_from_bytes(data).entry.root
        assert root is not None and keeps_precision(root) == kept
        assert (results_digest(data, "tpu") == results_digest(handed_on, "tpu")) == kept
        assert results_digest(data, "cpu") != results_digest(handed_on, "cpu")


@pytest.mark.parametrize(
    ("target", "bits", "values"), [("tpu", 23, 1), ("tpu", 22, 2), ("cpu", 23, 2)]
)
def test_a_scan_residual_of_a_rounded_value(target, bits, values):
    """Two scan residuals hold one value, if one of them was rounded to what it had."""
    update = f"reduce-precision(x), exponent_bits=8, mantissa_bits={bits}"
    both = """m = f32[1,4]{1,0} dynamic-slice(stack, k, zero), dynamic_slice_sizes={1,4}
  l = f32[1,4]{1,0} dynamic-slice(other, k, zero), dynamic_slice_sizes={1,4}
  p = f32[1,4]{1,0} subtract(m, l)"""
    data = with_program_order(from_hlo_text(module_text(writer(update=update), reader(both))))
    (pair,) = pairs(module_from_bytes(data), target)
    assert len(pair.scan_residuals) == 2
    assert len(RecipeTable(pair, collectives=False).scan_residuals) == values
