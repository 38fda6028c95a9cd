"""What of a function runs in pieces, by its equations alone: regions, and which are chosen."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from olla_xla.errors import InputError
from olla_xla.pieces.calls import CALLS, called_by
from olla_xla.pieces.choice import Cut, choose, pieces_for
from olla_xla.pieces.factors import SUM
from olla_xla.pieces.graph import Graph, spread
from olla_xla.pieces.region import settled
from olla_xla.segments.equations import bytes_of, scan_counts

ROWS, WIDTH = 64, 8
X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
W = jax.ShapeDtypeStruct((WIDTH, 4 * WIDTH), jnp.float32)


def graph_of(function, *arguments):
    return Graph.of(jax.make_jaxpr(function)(*arguments))


def named(graph, indices):
    return [graph.equations[i].primitive.name for i in indices]


def regions(function, *arguments, argument=0, dim=0):
    graph = graph_of(function, *arguments)
    found, ended = settled(spread(graph, {graph.inputs[argument]: dim}))
    return graph, found, ended


def test_what_keeps_the_axis_is_stacked_and_what_is_summed_over_it_is_a_sum():
    def f(x, w):
        h = jnp.tanh(x @ w)
        return h, h.sum(0), jnp.sin(w)

    graph, (region,), ended = regions(f, X, W)
    assert named(graph, region.members) == ["dot_general", "tanh", "reduce_sum"]
    assert not ended and not region.twice and region.units == ROWS
    assert [(v.aval.shape, d) for v, d in region.stacked] == [((ROWS, 4 * WIDTH), 0)]
    assert [v.aval.shape for v in region.sums] == [(4 * WIDTH,)]
    assert [(v is graph.inputs[0], d) for v, d in region.cut_inputs] == [(True, 0)]
    assert list(region.whole_inputs) == [graph.inputs[1]]
    assert named(graph, (*region.before, *region.after)) == ["sin"]


def test_what_depends_on_a_region_runs_after_it_and_all_else_before():
    def f(x, w):
        v = jnp.cos(w)
        s = jnp.exp(x @ v).sum(0)
        return jnp.sqrt(s) * jnp.abs(w).sum()

    graph, (region,), _ = regions(f, X, W)
    assert "cos" in named(graph, region.before) and "abs" in named(graph, region.before)
    assert "sqrt" in named(graph, region.after) and "mul" in named(graph, region.after)
    assert sorted((*region.members, *region.before, *region.after)) == list(
        range(len(graph.equations))
    )


def test_a_sum_that_each_piece_needs_ends_a_region_or_runs_twice():
    """What is above it: a product and its exponential."""

    def normed(x, w):
        h = jnp.exp(x @ w)
        return h / h.sum(0)

    graph, found, ended = regions(normed, X, W)
    assert named(graph, ended) and set(named(graph, ended)) <= {"broadcast_in_dim", "div"} | {
        "reduce_sum"
    }
    once, *more = found
    assert not once.twice and [bool(r.twice) for r in more] == [True]
    (again,) = more
    assert named(graph, again.twice) == ["dot_general", "exp"]
    assert set(again.twice) <= set(again.members) and set(again.twice) <= set(again.before)
    assert [v.aval.shape for v, _ in again.stacked] == [(ROWS, 4 * WIDTH)]


def test_nothing_is_cut_into_one_piece():
    one = jax.ShapeDtypeStruct((1, WIDTH), jnp.float32)
    _, found, _ = regions(lambda x, w: jnp.tanh(x @ w), one, W)
    assert found == []


def test_bytes_of_values():
    graph = graph_of(lambda x: x.astype(jnp.bfloat16), X)
    assert [bytes_of(v) for v in (graph.inputs[0], graph.outputs[0])] == [2048, 1024]


# What is chosen.


def chosen(function, *arguments, seeds=None, pieces=None):
    graph = graph_of(function, *arguments)
    if seeds is not None:
        seeds = {graph.inputs[k]: d for k, d in seeds.items()}
    return choose(graph, seeds, pieces, "f", jnp.float32)


def wide(x, w):
    return jnp.tanh(jnp.exp(x @ w)).sum(1)


def test_the_axis_through_the_largest_values_is_cut():
    large = jax.ShapeDtypeStruct((WIDTH, 64 * WIDTH), jnp.float32)
    cut = chosen(wide, X, large)
    (region,) = cut.regions
    assert {"dot_general", "exp", "tanh"} <= set(named(region.graph, region.members))
    whole = Cut(cut.graph, (cut.graph,), jnp.float32)
    assert cut.peak(16) < 0.2 * whole.peak(16)
    assert cut.peak(64) < cut.peak(4)


def test_the_fewest_pieces_after_which_more_save_little():
    large = jax.ShapeDtypeStruct((WIDTH, 64 * WIDTH), jnp.float32)
    cut = chosen(wide, X, large, seeds={0: 0})
    pieces = pieces_for(cut)
    whole = Cut(cut.graph, (cut.graph,), jnp.float32).peak(1)
    assert pieces in (2, 4, 8, 16, 32, 64)
    assert cut.peak(pieces // 2) - cut.peak(pieces) >= 0.02 * whole or pieces == 2
    assert pieces == 64 or cut.peak(pieces) - cut.peak(2 * pieces) < 0.02 * whole


def test_steps_are_all_equations_each_once_but_for_what_runs_twice():
    def f(x, w):
        h = jnp.exp(x @ w)
        return jnp.tanh(jnp.cos(w)).sum(), h.sum(1), jnp.sin(w) * 2

    cut = chosen(f, X, jax.ShapeDtypeStruct((WIDTH, 64 * WIDTH), jnp.float32), seeds={0: 0})
    equations = [id(e) for step in cut.steps for e in step.equations]
    assert sorted(equations) == sorted(map(id, cut.graph.equations))


@pytest.mark.parametrize(
    ("function", "seeds", "said"),
    [
        (lambda x, w: jnp.tanh(jnp.cumsum(x @ w, 0)).sum(1), {0: 0}, r"cumsum at .* mixes"),
        (lambda x, w: jnp.tanh(lax.sort(x @ w, dimension=0)).sum(1), {0: 0}, r"sort at .* mixes"),
        (lambda x, w: x + 1, None, "no intermediate value is large"),
    ],
)
def test_what_forbids_a_cut_is_named(function, seeds, said):
    with pytest.raises(InputError, match="f cannot be cut into pieces") as refused:
        chosen(function, X, W, seeds=seeds)
    assert refused.match(said) and ("along that axis" in str(refused.value)) == (seeds is not None)


# Calls.


def calls(function, *arguments):
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    (e,) = [e for e in jaxpr.eqns if e.primitive.name in CALLS]
    return e, called_by(e, True)


def test_a_scan_carries_and_stacks():
    def f(x, w):
        return lax.scan(lambda c, row: (c + row, (c * 2, -row)), w[0], x)

    rows = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    e, (called,) = calls(f, rows, X)
    assert scan_counts(e) == (0, 1)
    assert called.ins == ((0, 0), (1, 1)), "what is scanned has a dimension more outside"
    assert called.outs == ((0, 0), (1, 1), (2, 1)) and called.carried == ((0, 0),)


def test_a_while_belongs_to_its_state_and_a_cond_to_its_operands():
    def looped(x):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))

    _, found = calls(looped, X)
    assert any(c.carried for c in found)

    def branched(x):
        return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)

    _, found = calls(branched, X)
    assert len(found) == 2 and all(c.ins == ((1, 0),) and c.outs == ((0, 0),) for c in found)


def test_what_acts_is_no_call_that_can_be_cut():
    def noisy(x):
        return lax.scan(lambda c, row: (c, jax.debug.print("x") or row), 0.0, x)

    jaxpr = jax.make_jaxpr(noisy)(X).jaxpr
    assert not any(called_by(e, True) for e in jaxpr.eqns if e.primitive.name in CALLS)
    assert called_by(types.SimpleNamespace(effects={1}), True) == []
    assert SUM != 0 and np.isscalar(SUM)
