"""Steps planned to take less memory, most with results bound to operands: jit's results, always.

The first once overwrote what was still to be read, under these limits.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from benchmarks.random_programs.check import check_case
from benchmarks.random_programs.text import from_text
from tests.support.steps import assert_same
from tests.support.unrolled_nets import llama, lstm

pytestmark = pytest.mark.usefixtures("any_choices_will_do")

plan = functools.partial(olla_xla.plan, donate_argnums=0, time_limit=120)

CASES = {
    "lstm": (functools.partial(lstm, 12, 32, 64, 600), {"step_limit": 100_000, "seed": 1}),
    "llama": (llama, {"step_limit": 100_000, "seed": 1}),
}


@pytest.mark.optimized
@pytest.mark.parametrize("name", CASES)
def test_two_steps_are_those_of_jit(name):
    build, limits = CASES[name]
    step, state, batch = build()
    plain, planned = jax.jit(step, donate_argnums=0), plan(step, **limits)
    expected, got = (jax.tree.map(jnp.array, state) for _ in range(2))
    for _ in range(2):
        expected, expected_loss = plain(expected, batch)
        got, loss = planned(got, batch)
        assert_same((expected, expected_loss), (got, loss))
    (used,) = planned.plans
    assert used.assigned_bytes < used.xla_bytes
    assert used.aliases or name == "llama", "results are bound to operands"


SCANNED = """Case(program=Program(body=Graph(rows=16, cols=128, leaves=1, weights=3, nodes=(
Node(op='map', reads=(-4, 41, 2, -2, -4,), inner=(Node(op='top', reads=(18, 15, -2,), k=5),
Node(op='silu', reads=(-4, 31, 0, 10, -2,), k=2), Node(op='scan_rows', reads=(52, -1,), k=4,
inner=(Node(op='sum', reads=(-4, 3,), k=5),)),)), Node(op='scan_reverse', reads=(0, -1, 0,), k=6,
inner=(Node(op='cond', reads=(5, 3, -4, -2,), k=6, inner=(Node(op='sum', reads=(-2, 24, 2,), k=7),
Node(op='gates', reads=(1, 26, -4, 2,), k=1),)), Node(op='gates', reads=(0, 41, 1, 0, -4,), k=2),
Node(op='top', reads=(-1, 7, -4, 1, 49,)),)),)), donate=(0,)),
plans=(Settings(step_limit=1000, time_limit=60.0, in_place=False, max_overhead=2.0),))"""


@pytest.mark.optimized
def test_what_a_loop_computes_again_is_rounded_alike():
    """A copy of an elementwise fusion that also took slices was compiled by other rules."""
    (outcome,) = check_case(from_text(SCANNED))
    assert outcome.kind == "identical" and outcome.stacks >= 8, outcome


KERNELS = {
    "results of branches that all end at one place": """Case(program=Program(body=Graph(rows=8,
cols=16, leaves=1, weights=1, nodes=(Node(op='sub',
reads=(4, 32, 28, 3, -2,), k=4), Node(op='cond', reads=(1, 1, -2, -1,), inner=(Node(op='switch',
reads=(-2,), k=6, inner=(Node(op='dense', reads=(54, 2, 3, -1, 19,), k=1), Node(op='sum',
reads=(2, 60, 2, -3, 1,), k=5),)), Node(op='chain', reads=(2, 1, 54,), k=3), Node(op='gates',
reads=(2,), k=5),)),), stride=7), optimizer='adam', donate=(2,), terms=(Term(op='size',
reads=(1, 3,), weight=0.5), Term(op='square', reads=(0, 3,), weight=2.0), Term(op='most',
reads=(2, 0,), weight=2.0),)), plans=(Settings(seed=2, step_limit=None, time_limit=0.3),
Settings(seed=2, step_limit=5000, time_limit=2.0),))""",
    "optimization barriers": """Case(program=Program(body=ConvNet(layers=3, batch=1,
size=8, channels=8, pool='mean',
recompute=True), clip=True, donate=(0,), seed=1, optimized=True), plans=(Settings(seed=2,
step_limit=None, time_limit=0.6), Settings(step_limit=300, time_limit=2.0, max_overhead=0.3),))""",
    "loops that read one another's slices": """Case(program=Program(body=Recurrent(cell='plain',
form='both', steps=8, batch=32, width=32,
inputs=32, classes=128, read='third', loss='means', bias=True), extras=('key', 'empty',),
seed=1, optimized=True), plans=(Settings(seed=2, step_limit=5000, time_limit=2.0,
max_overhead=2.0), Settings(seed=2, step_limit=1000, time_limit=2.0, max_overhead=0.3),))""",
    "instructions that XLA walks otherwise without barriers": """Case(program=Program(
body=Recurrent(cell='lstm', form='unrolled', steps=3, batch=32, width=32, inputs=32, classes=32,
loss='means', bias=True, recompute=True), donate=(1,), extras=('repeat',), optimized=True,
terms=(Term(op='size', reads=(2, 1,), use='ema', weight=2.0), Term(op='sum', reads=(5, 5,),
use='running', weight=-0.01), Term(op='one', reads=(3, 4,), use='times'),)),
plans=(Settings(seed=1, step_limit=None, time_limit=0.3, max_overhead=0.3),))""",
    "an array that a loop has twice": """Case(program=Program(body=Transformer(layers=4, batch=4,
length=16, width=32, heads=2, classes=16, activation='gelu', norm='layer', form='scan', rotary=True,
tied=True, dropout=True), dtype='mixed', donate=(0,), extras=('repeat',), seed=2),
plans=(Settings(seed=2, step_limit=None, time_limit=0.3, max_overhead=2.0),))""",
    "values that lie alike by other layouts": """Case(program=Program(body=Transformer(layers=2,
batch=2, length=8, width=16, heads=4, classes=64, activation='gelu', norm='layer', form='scan',
rotary=True, dropout=True), optimizer='none', donate=(0, 1, 2,), optimized=True,
terms=(Term(op='var', reads=(4, 1,), use='least', weight=2.0),)),
plans=(Settings(step_limit=300, time_limit=2.0, max_overhead=0.3),))""",
    "a body that is compiled as one function with its loop": """Case(program=Program(
body=FixedPoint(rows=16, cols=32, size=4, steps=3, form='chunks', jits=True), optimizer='none',
donate=(0,), seed=1, optimized=True), plans=(Settings(seed=4, step_limit=5000, time_limit=1.0,
max_overhead=2.0),))""",
    "a fusion that lays out otherwise what it writes over": """Case(program=Program(body=Layered(
nodes=(Node(op='split', reads=(22,), k=6),), rows=64, width=16, layers=4, layout='shared',
branch='early', carries=('early', 'best',), unroll=2, recompute='all', cast=True), donate=(0, 1,),
extras=('gradients',), seed=1), plans=(Settings(seed=2, step_limit=5000, time_limit=2.0,
max_overhead=0.3),))""",
}
"""Where XLA assigned other buffers than was simulated, so that kernels had other memory; or where
the referee took what is the same for another thing."""


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_have_the_memory_that_was_simulated(name):
    case = from_text(KERNELS[name])
    plans = {dataclasses.replace(p, time_limit=8.0, step_limit=1000) for p in case.plans}
    for outcome in check_case(dataclasses.replace(case, plans=tuple(plans))):
        assert outcome.kind == "identical" and outcome.planned, outcome
