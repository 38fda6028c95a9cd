"""Fusions that XLA:GPU makes Triton's after our hook, in its own module as in the planned one."""

import re

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from hlo import xla_pb2
from olla_xla.check.executable import check_executable, results_digest
from olla_xla.compile.accounting import final_module
from olla_xla.compile.compiles import Compiles
from olla_xla.errors import ResultsError
from tests.support.compiles import on_h100
from tests.support.steps import branches

MORE = jnp.zeros((8, 16, 16, 3)), jnp.zeros((64, 128), jnp.int32), jnp.zeros((64, 128))


def moved(wide, n, y):
    """A transpose that XLA's loop emitter is slow at."""
    return jnp.transpose(wide, (3, 1, 2, 0))


def counted(wide, n, y):
    """A sum of integers."""
    return jnp.sum(jnp.where(n > 3, n * n, 0), -1)


def compared(wide, n, y):
    """How many floats are large."""
    return jnp.sum(y > 0.5, -1)


def rounded(wide, n, y):
    """How many are large of what is computed in the same fusion."""
    return jnp.sum(jnp.tanh(y * 0.37 + 1) > 0.5, -1)


def later(compiled):
    """Opcodes at the end of fusions that are Triton's by blocks."""
    module = xla_pb2.HloModuleProto.FromString(final_module(compiled))
    bodies = {c.id: c for c in module.computations}
    fusions = [i for c in module.computations for i in c.instructions if i.opcode == "fusion"]
    found = set()
    for fusion in fusions:
        if b"block_level_fusion_config" in fusion.backend_config:
            body = bodies[fusion.called_computation_ids[0]]
            found |= {i.opcode for i in body.instructions if i.id == body.root_id}
    return found


@pytest.mark.cuda13
@pytest.mark.parametrize(
    "more, opcode, owns",
    [
        (moved, "transpose", 0),
        (counted, "reduce", 0),
        (compared, "reduce", 0),
        (rounded, "reduce", 1),
    ],
)
def test_no_objection_to_what_xla_does_to_its_own(more, opcode, owns, monkeypatch):
    made, own = [], Compiles.own

    def noted(self, *arguments):
        made.append(1)
        return own(self, *arguments)

    monkeypatch.setattr(Compiles, "own", noted)
    square = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    arguments = on_h100(([square] * 6, square, *MORE))
    planned = olla_xla.plan(lambda p, x, *others: (branches(p, x), more(*others)), step_limit=2000)
    compiled = planned.lower(*arguments).compile()
    assert compiled.planned, compiled.reason
    assert opcode in later(compiled)
    assert len(made) == owns, "XLA's own is compiled where the code could change a bit"


def _exchanged(body):
    """A transpose of two dimensions the other way round."""
    for i in body.instructions:
        if i.opcode == "transpose":
            i.dimensions[1], i.dimensions[2] = i.dimensions[2], i.dimensions[1]


def _compared_otherwise(body):
    for i in body.instructions:
        if i.opcode == "compare":
            i.comparison_direction = "GE"


def _maximum(body):
    """The greatest in place of the sum."""
    for i in body.instructions:
        if i.opcode == "add":
            i.opcode = "maximum"


@pytest.mark.cuda13
@pytest.mark.parametrize(
    "more, change", [(moved, _exchanged), (compared, _compared_otherwise), (counted, None)]
)
def test_other_triton_code_is_found(more, change):
    shapes = on_h100(MORE)
    final = final_module(jax.jit(more).lower(*shapes).compile())
    module = xla_pb2.HloModuleProto.FromString(final)
    bodies = {c.id: c for c in module.computations}
    (fusion,) = (i for c in module.computations for i in c.instructions if i.opcode == "fusion")
    assert b"block_level_fusion_config" in fusion.backend_config
    body = bodies[fusion.called_computation_ids[0]]
    if change is None:
        (reduce,) = (i for i in body.instructions if i.opcode == "reduce")
        change, body = _maximum, bodies[reduce.called_computation_ids[0]]
    change(body)
    check_executable(final, "cuda", results=results_digest(final, "cuda"))
    with pytest.raises(ResultsError):
        check_executable(module.SerializeToString(), "cuda", results=results_digest(final, "cuda"))


@pytest.mark.cuda13
def test_rounded_code_by_other_blocks_is_found():
    final = final_module(jax.jit(rounded).lower(*on_h100(MORE)).compile())
    other = re.sub(rb'"num_warps":"\d"', rb'"num_warps":"9"', final)
    assert other != final
    with pytest.raises(ResultsError):
        check_executable(other, "cuda", results=results_digest(final, "cuda"))
