"""Kernels that load as invariant what they must not: counted, and none where marks are shared."""

import jax
import jax.numpy as jnp
import pytest

from hlo.dumps.read import from_hlo_text
from hlo.gpu_executable import GpuExecutable, GpuThunk, read_gpu_executable
from hlo.invariant_loads import MARK, invariant_loads, shared_marks
from hlo.module import module_from_bytes
from hlo.rewrite.edit import Edit
from olla_xla.compile.accounting import final_module
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.gpu_code import serialized_executable
from olla_xla.memory.snappy import unsnapped
from tests.support.compiles import on_h100

_MARKED = """HloModule m, is_scheduled=true
fused {{
  p = f32[8] parameter(0)
  ROOT n = f32[8] negate(p)
}}
ENTRY e {{
  p = f32[8] parameter(0)
  one.1 = f32[8] fusion(p), kind=kLoop, calls=fused{first}
  ROOT two.1 = f32[8] fusion(one.1), kind=kLoop, calls=fused{second}
}}
"""


@pytest.mark.parametrize(
    "first, second, wrong",
    [("", "0", [("two.1", "one.1")]), ("0", "0", []), ("0", "", []), ("", "", [])],
)
def test_a_kernel_that_reads_as_invariant_what_it_must_not(first, second, wrong):
    marks = [
        f', frontend_attributes={{xla.no_invariant_operands="{m}"}}' if m else ""
        for m in (first, second)
    ]
    module = from_hlo_text(_MARKED.format(first=marks[0], second=marks[1]))
    thunks = tuple(GpuThunk(n, "custom_kernel", kernel="one_1") for n in ("one.1", "two.1"))
    found = invariant_loads(module, GpuExecutable(thunks, b"", {}, {}, {}, 2))
    assert list(found.wrong) == wrong and found.marked == bool(first) + bool(second)


_KIND = '{"fusion_backend_config":{"kind":"KIND"}}'
_PRODUCT = """HloModule m, is_scheduled=true
product {
  a = f32[8,8] parameter(0)
  ROOT d = f32[8,8] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
one {
  p = f32[8,8] parameter(0)
  ROOT n = f32[8,8] negate(p)
}
two {
  q = f32[8,8] parameter(0)
  ROOT n = f32[8,8] OPCODE(q)
}
ENTRY e {
  p = f32[8,8] parameter(0)
  first = f32[8,8] fusion(p), kind=kLoop, calls=one
  product = f32[8,8] fusion(first), kind=kCustom, calls=product, backend_config=CONFIG
  bits = f32[8,8] bitcast(product)
  BETWEEN
  ROOT second = f32[8,8] fusion(READ), kind=kLoop, calls=two
}
"""


def product(kind="__triton_nested_gemm_fusion", opcode="negate", read="bits", between=""):
    text = _PRODUCT.replace("CONFIG", _KIND.replace("KIND", kind)).replace("OPCODE", opcode)
    return module_from_bytes(from_hlo_text(text.replace("READ", read).replace("BETWEEN", between)))


def test_fusions_of_one_code_share_the_marks_that_any_of_them_will_get():
    assert shared_marks(product()) == {"first": "0", "second": "0"}


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "__triton"},
        {"opcode": "cosine"},
        {"read": "first"},
        {"between": "b = f32[8,8] copy(first)"},
    ],
)
def test_no_marks_where_none_comes_to_an_unmarked_kernel(changes):
    assert shared_marks(product(**changes)) == {}


def _reused(a, b, d):
    """XLA's own order gives a marked fusion the kernel of one without a mark (docs)."""
    y = a @ b
    t = jnp.tanh(y.max(axis=1))
    r = (y * t[:, None]).sum(axis=1)
    z = (a * r[:, None]) @ d
    return (z * t[:, None]).sum(axis=1).sum()


def _loads(compiled):
    executable = read_gpu_executable(serialized_executable(compiled), unsnapped)
    return invariant_loads(final_module(compiled), executable)


@pytest.mark.cuda13
def test_under_marks_that_are_shared_no_kernel_is_wrong():
    shapes = on_h100([jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 3)
    compiles = Compiles(jax.jit(_reused).lower(*shapes), None, {})
    own = _loads(compiles.own())

    def noted(module):
        view = module_from_bytes(module)
        marks = {name: {MARK: operands} for name, operands in shared_marks(view).items()}
        return Edit(view).note(marks).to_bytes()

    shared = _loads(compiles.handed_over("", lambda _, module: noted(module)))
    assert own.wrong == (("input_reduce_fusion.1", "input_reduce_fusion"),)
    assert not shared.wrong and shared.marked > own.marked
