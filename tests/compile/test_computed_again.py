"""XLA:GPU computes things again after our hook where memory is short, and reads what is there."""

import contextlib

import jax
import jax.numpy as jnp
import pytest

from hlo.module import module_from_bytes
from olla_xla.check.executable import check_executable
from olla_xla.compile.accounting import final_module
from olla_xla.compile.compiles import Compiles
from olla_xla.errors import CheckError
from tests.support.compiles import on_h100
from tests.support.rewrites import with_guards, with_schedule

SHORT = {"xla_gpu_memory_limit_slop_factor": 1}
"""Compiler options that leave about 650 MB of the card."""


def step(p, x, y):
    """Reads p for what is needed early and late, and replaces it in between; then takes 768 MB."""
    a = p @ x
    q = p - jnp.sin(a).sum()
    c = jnp.cos(y.T @ y)
    d = jnp.tanh(c @ c)
    e = jnp.tanh(d @ c)
    return q, a @ e


def early(module):
    """The module with what replaces the argument written as soon as it may be."""
    view = module_from_bytes(module)
    assert view.entry.root is not None and view.entry.schedule is not None
    writer, order = view.entry.root.operands[0], view.entry.schedule
    readers = [i for i in order if i.opcode == "fusion" and view.entry.parameters[0] in i.operands]
    needed, waiting = set(), [writer, *readers]
    while waiting:
        i = waiting.pop()
        if i not in needed:
            needed.add(i)
            waiting += i.operands
    first = [i for i in order if i in needed and i is not writer]
    rest = [i for i in order if i not in needed]
    names = [i.name for i in (*first, writer, *rest)]
    return with_schedule(module, {view.entry.name: names})


def compiled(rewrite):
    shapes = (
        jax.ShapeDtypeStruct((512, 512), jnp.float32),
        jax.ShapeDtypeStruct((512, 8192), jnp.float32),
        jax.ShapeDtypeStruct((128, 8192), jnp.float32),
    )
    lowered = jax.jit(step, donate_argnums=0).lower(*on_h100(shapes))
    with contextlib.closing(Compiles(lowered, SHORT, {})) as compiles:
        return final_module(compiles.handed_over("", lambda _, module: rewrite(module)))


@pytest.mark.cuda13
def test_a_clone_reads_no_argument_that_was_replaced():
    unguarded = compiled(early)
    assert b".remat" in unguarded
    with pytest.raises(CheckError, match=r"\.remat\S* reads .*has written over it"):
        check_executable(unguarded, "cuda")
    guarded = compiled(lambda module: with_guards(early(module), "cuda"))
    check_executable(guarded, "cuda")
