"""Lowered text of nested steps: one caller for every computation, copies, the same results."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import compiler  # pyright: ignore
from jax._src.lib import hlo  # pyright: ignore
from jaxlib import _jax

from examples import zoo
from hlo import xla_pb2
from hlo.dumps.calls import flatten, is_shared
from hlo.dumps.read import read_module, runnable, with_program_order
from hlo.module import HloError, module_from_bytes, parse_module_proto
from hlo.text import from_hlo_text, from_stablehlo
from hlo.values import analyse
from olla_xla.check.graph import check_schedule
from olla_xla.planner import apply_plan, graphs, plan_module
from olla_xla.problem.options import PlanOptions
from tests.examples.test_zoo import SMALL

X = jnp.linspace(-1, 1, 16 * 16).reshape(16, 16)
W = jnp.cos(X)
XS = jnp.stack([X, W, X + W])


@jax.jit
def squash(a):
    return jnp.tanh(a) * 2


@jax.jit
def twice(a):
    return squash(squash(a) + 1)


def scan(c, xs):
    return lax.scan(lambda c, x: (squash(c) + x, squash(x) @ c), c, xs)


def scans(c, xs):
    def outer(c, x):
        final, ys = lax.scan(lambda d, y: (squash(d) + y * c, d.sum()), c, jnp.stack([x, x * 2]))
        return final, (ys, c)

    return lax.scan(outer, c, xs)


def loop(c):
    return lax.while_loop(
        lambda s: (squash(s[1]).sum() < 1e6) & (s[0].sum() < 99),
        lambda s: (s[0] + 1, squash(s[1]) + s[1], s[1]),
        (c, c, c),
    )


def branch(flag, c):
    return lax.cond(flag, lambda c: (squash(c), c), lambda c: (c, twice(c)), c)


def branches(k, c):
    return lax.switch(k, [squash, twice, lambda c: c @ c, lambda c: c], c) + c


def checkpointed(w, xs, c):
    @jax.checkpoint
    def body(c, x):
        hidden = jnp.tanh(c @ w + x)
        return hidden, squash(hidden).sum()

    def loss(w):
        final, ys = lax.scan(body, c, xs)
        return ys.sum() + final.sum()

    return jax.value_and_grad(lambda w: loss(w))(w)


def dropout(key, c):
    @jax.jit
    def drop(key, c):
        return jnp.where(jax.random.bernoulli(key, 0.5, c.shape), c * 2, 0)

    first, second = jax.random.split(key)
    return drop(second, squash(drop(first, c)))


def places_change(a, b):
    return lax.fori_loop(0, 5, lambda _, s: (s[1], s[0]), (a, b))


def one_start(c):
    return lax.fori_loop(0, 4, lambda _, s: (s[0] @ s[1], s[1] * 2, s[2]), (c, c, c)), c


def repeated(a):
    b = a + 1
    return a, a, b, b, jnp.zeros(3)


def updates(c):
    return c.at[0].set(1.0), c.sum(), c.at[1].set(2.0)


def deep(a):
    def body(k, s):
        return lax.cond(
            k % 2 == 0,
            lambda s: lax.fori_loop(0, 2, lambda _, t: (squash(t[0]), t[0]), s),
            lambda s: lax.while_loop(
                lambda t: t[0].sum() < 3, lambda t: (t[0] + t[1] + 1, t[1]), s
            ),
            s,
        )

    return lax.fori_loop(0, 3, body, (a, a))


def skipped(k, a):
    """A branch in the middle changes what its neighbours hand on."""
    steps = [lambda s: s, lambda s: s + jnp.sin(s @ s), lambda s: s]
    return lax.fori_loop(0, 3, lambda _, s: lax.switch(k, steps, s), a)


def barrier(a, b):
    a, b = lax.optimization_barrier((a, b))
    return squash(a) + b, lax.optimization_barrier(a)


def placed(a):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    return squash(lax.with_sharding_constraint(a, spec))


def factorised(a):
    return lax.map(squash, a), jnp.linalg.cholesky(a @ a.T + 2 * jnp.eye(16)), jnp.sort(a)


CASES = {
    "scan": (scan, (X, XS), ()),
    "scan, donated": (scan, (X, XS), (0, 1)),
    "nested scans": (scans, (X, XS), ()),
    "while": (loop, (X,), ()),
    "while, donated": (loop, (X,), (0,)),
    "cond": (branch, (True, X), (1,)),
    "switch": (branches, (1, X), ()),
    "skipped": (skipped, (1, X), (1,)),
    "checkpoint": (checkpointed, (W, XS, X), ()),
    "calls": (twice, (X,), (0,)),
    "dropout": (dropout, (jax.random.PRNGKey(0), X), ()),
    "places change": (places_change, (X, W), (0, 1)),
    "outputs change places": (lambda a, b: (b, a), (X, W), (0, 1)),
    "one start": (one_start, (X,), ()),
    "one start, donated": (one_start, (X,), (0,)),
    "updates": (updates, (X,), (0,)),
    "repeated outputs": (repeated, (X,), (0,)),
    "identity": (lambda a: a, (X,), ()),
    "identity, donated": (lambda a: a, (X,), (0,)),
    "deep": (deep, (X,), (0,)),
    "barrier": (barrier, (X, W), ()),
    "placed": (placed, (X,), ()),
    "custom calls": (factorised, (X,), ()),
}


def opcodes(view):
    return collections.Counter(i.opcode for c in view.control_computations for i in c.instructions)


def results(module, lowered, arguments):
    """(results, arguments afterwards) of an unscheduled module, run as XLA's compiler makes it."""
    device = jax.devices("cpu")[0]
    mlir = _jax.mlir.xla_computation_to_mlir_module(hlo.XlaComputation(module))
    options = compiler.get_compile_options(1, 1)
    executable = device.client.compile_and_load(mlir, _jax.DeviceList((device,)), options)
    kept = sorted(lowered._lowering.compile_args["kept_var_idx"])  # unused arguments are dropped
    given = [jnp.array(a, copy=True) for a in arguments]
    return executable.execute([given[k] for k in kept]), given


def planned(module, seconds=0.1):
    """A plan, whose orders the referee accepts once more as they were written."""
    plan = plan_module(module, PlanOptions(time_limit=seconds), target="cpu")
    for graph in graphs(apply_plan(module, plan), "cpu"):
        graph.validate()
        check_schedule(graph, range(len(graph.operators)))
    assert plan.lower_bound_bytes <= plan.peak_bytes <= plan.predicted_bytes
    assert plan.predicted_bytes <= plan.xla_predicted_bytes
    return plan


def overlapping(view):
    """Values of one buffer that one computation needs at the same time, in its order."""
    flow, found = analyse(view), []
    for computation in view.control_computations:
        step = {i: k for k, i in enumerate(computation.schedule)}
        for buffer in flow.buffers:
            lives = []
            for value in buffer:
                seen = [step[i] for i, _ in value.positions if i in step]
                seen += [step[u.instruction] for u in value.uses if u.instruction in step]
                if seen and not value.shape.is_tuple:
                    first = step.get(value.instruction, min(seen))
                    result = any(i.is_root for i, _ in value.positions if i in step)
                    lives.append((first, len(step) if result else max(seen), value))
            lives.sort(key=lambda life: life[:2])
            for (_, end, a), (start, _, b) in itertools.pairwise(lives):
                if end > start:
                    found.append((computation, a, b))
    return found


@pytest.mark.parametrize("name", CASES)
def test_lowered_steps_are_planned(name, tmp_path):
    step, arguments, donated = CASES[name]
    lowered = jax.jit(step, donate_argnums=donated).lower(*arguments)
    path = tmp_path / "step.mlir"
    path.write_text(lowered.as_text())
    module = read_module(path)
    view = module_from_bytes(module)
    assert not is_shared(parse_module_proto(module))
    assert opcodes(view)["call"] == 0
    assert overlapping(view) == []
    planned(module)
    # The same program still: equal bits, the arguments unharmed unless they are donated.
    again, given = results(runnable(from_stablehlo(lowered.as_text())), lowered, arguments)
    expected = jax.tree.leaves(jax.jit(step)(*arguments))
    for one, other in zip(again, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    for k, (one, other) in enumerate(zip(arguments, given, strict=True)):
        if k not in donated:
            np.testing.assert_array_equal(one, other)


def test_values_that_overlap_are_seen():
    """A loop whose state changes places needs copies, which `runnable` makes."""
    step, arguments, donated = CASES["places change"]
    text = jax.jit(step, donate_argnums=donated).lower(*arguments).as_text()
    assert overlapping(module_from_bytes(with_program_order(from_stablehlo(text))))


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        ("calls", 0),  # one chain
        ("identity", 1),  # an output is no argument
        ("identity, donated", 0),
        ("outputs change places", 3),
        ("repeated outputs", 1 + 1),  # the second of each two
        ("updates", 2 + 1),  # x updated twice and read; donated to the first
        ("barrier", 1),  # an argument is an output
    ],
)
def test_copies_are_few(name, copies):
    step, arguments, donated = CASES[name]
    text = jax.jit(step, donate_argnums=donated).lower(*arguments).as_text()
    assert opcodes(module_from_bytes(runnable(from_stablehlo(text))))["copy"] == copies


SHARED = """HloModule shared, is_scheduled=true

leaf {
  p = f32[8] parameter(0)
  ROOT n = f32[8] reverse(p), dimensions={0}
}

ENTRY main {
  a = f32[8] parameter(0)
  x = f32[8] call(a), to_apply=leaf
  s = f32[8] sine(x)
  ROOT y = f32[8] call(s), to_apply=leaf
}
"""


def test_a_schedule_is_kept_and_what_it_shares_cloned():
    data = from_hlo_text(SHARED)
    view = module_from_bytes(runnable(data))
    order = view.entry.schedule or ()
    assert [i.opcode for i in order] == ["parameter", "call", "sine", "call"]
    first, second = (i.called[0] for i in order if i.opcode == "call")
    assert first.name != second.name
    one, other = first.schedule or (), second.schedule or ()
    assert [i.opcode for i in one] == [i.opcode for i in other] == ["parameter", "reverse"]
    assert [i.name for i in one] == ["p", "n"]
    assert not {i.name for i in one} & {i.name for i in other}
    planned(runnable(data))


def test_a_schedule_that_shares_nothing_stays_as_it_came():
    data = from_hlo_text(SHARED.replace("y = f32[8] call(s), to_apply=leaf", "y = f32[8] sine(s)"))
    assert runnable(data) == data


def test_what_has_an_effect_is_kept_and_what_has_none_is_not():
    text = """HloModule effects
noisy {
  t = (token[], f32[8]) parameter(0)
  k = token[] get-tuple-element(t), index=0
  v = f32[8] get-tuple-element(t), index=1
  o = token[] outfeed(v, k), outfeed_shape=f32[8]
  ROOT r = (token[], f32[8]) tuple(o, v)
}
never {
  t = (token[], f32[8]) parameter(0)
  ROOT c = pred[] constant(false)
}
ENTRY main {
  a = f32[8] parameter(0)
  unused = f32[9] parameter(1)
  k = token[] after-all()
  start = (token[], f32[8]) tuple(k, a)
  loop = (token[], f32[8]) while(start), condition=never, body=noisy
  dead = f32[8] negate(a)
  deader = f32[8] sine(dead)
  ROOT out = f32[8] cosine(a)
}
"""
    view = module_from_bytes(runnable(from_hlo_text(text)))
    assert opcodes(view)["outfeed"] == 1
    kept = {i.opcode for i in view.entry.instructions}
    assert kept >= {"while", "parameter", "cosine", "after-all"}
    assert not kept & {"negate", "sine"}
    assert len(view.entry.parameters) == 2


def test_a_circle_is_an_error():
    proto = parse_module_proto(from_hlo_text(SHARED.replace(", is_scheduled=true", "")))
    entry = proto.computations[-1].instructions
    entry[1].control_predecessor_ids.append(entry[3].id)
    with pytest.raises(HloError, match="depends on itself"):
        flatten(proto)


@pytest.mark.parametrize("name", ["llama_scan", "lstm", "vit_b16"])
def test_lowered_train_steps_are_planned(name, tmp_path):
    step, arguments, options = zoo.load(name)(batch_size=2, optimizer="adam", **SMALL.get(name, {}))
    path = tmp_path / "step.mlir"
    path.write_text(jax.jit(step, **options).lower(*arguments).as_text())
    module = read_module(path)
    assert overlapping(module_from_bytes(module)) == []
    plan = planned(module, seconds=0.5)
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arguments))
    assert state <= plan.predicted_bytes


@pytest.mark.parametrize(
    "opcode, field",
    [
        ("while", "called_computation_ids"),
        ("fusion", "called_computation_ids"),
        ("call", "called_computation_ids"),
        ("while", "operand_ids"),
    ],
)
def test_an_operation_that_calls_too_little_is_refused(opcode, field):
    """Found by tests/fuzz: a loop without a body."""
    text = """HloModule m
f {
  p = f32[8] parameter(0)
  ROOT n = f32[8] negate(p)
}
c {
  p = f32[8] parameter(0)
  ROOT t = pred[] constant(true)
}
ENTRY e {
  p = f32[8] parameter(0)
  a = f32[8] while(p), condition=c, body=f
  b = f32[8] fusion(a), kind=kLoop, calls=f
  ROOT d = f32[8] call(b), to_apply=f
}"""
    proto = parse_module_proto(from_hlo_text(text))
    for computation in proto.computations:
        for i in computation.instructions:
            if i.opcode == opcode:
                del getattr(i, field)[:]
    with pytest.raises(HloError, match=f"{opcode} .*dump the module again"):
        module_from_bytes(proto.SerializeToString())


@pytest.mark.parametrize("field", ["called_computation_ids", "operand_ids"])
def test_a_module_that_refers_to_nothing_is_refused(field):
    """Found by tests/fuzz: such a dump must not end in a KeyError."""
    text = """HloModule m
f {
  p = f32[8] parameter(0)
  ROOT n = f32[8] negate(p)
}
ENTRY e {
  p = f32[8] parameter(0)
  ROOT c = f32[8] call(p), to_apply=f
}"""
    proto = parse_module_proto(from_hlo_text(text))
    for computation in proto.computations:
        for i in computation.instructions:
            if i.opcode == "call":
                getattr(i, field)[:] = [12345]
    with pytest.raises(HloError, match="unknown id"):
        runnable(proto.SerializeToString())


def test_a_tuple_of_fewer_operands_than_its_shape_is_refused():
    """Found by tests/fuzz: such a dump must not end in a KeyError."""
    text = """HloModule m
ENTRY e {
  p = f32[8] parameter(0)
  n = f32[8] negate(p)
  ROOT t = (f32[8], f32[8]) tuple(p, n)
}"""
    proto = parse_module_proto(from_hlo_text(text))
    for i in proto.computations[0].instructions:
        if i.opcode == "tuple":
            del i.operand_ids[1]
    with pytest.raises(HloError, match="t does not have its operands' shape"):
        runnable(proto.SerializeToString())


def test_an_array_whose_shape_has_parts_is_read_as_an_array():
    """Found by tests/fuzz: such a dump must not end in an IndexError."""
    proto = parse_module_proto(
        from_hlo_text("HloModule m\nENTRY e { ROOT p = f32[8] parameter(0) }")
    )
    for i in proto.computations[0].instructions:
        part = xla_pb2.ShapeProto.FromString(i.shape.SerializeToString())
        i.shape.tuple_shapes.append(part)
    read = parse_module_proto(runnable(proto.SerializeToString()))
    assert [i.opcode for i in read.computations[0].instructions] == ["parameter", "copy"]


TWO_SUMS = """HloModule m, num_partitions=2

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}

ENTRY main_spmd {
  a = f32[64] parameter(0)
  b = f32[64] sine(a)
  c = f32[64] all-reduce(b), channel_id=1, replica_groups={{0,1}}, to_apply=sum
  d = f32[64] add(a, c)
  e = f32[64] all-reduce(b), channel_id=2, replica_groups={{0,1}}, to_apply=sum
  ROOT f = f32[64] add(d, e)
}
"""


@pytest.mark.parametrize(("target", "copies"), [("cpu", 0), ("cuda", 1)])
def test_what_a_gpu_overwrites_is_copied_where_it_is_read_again(tmp_path, target, copies):
    """An all-reduce takes over its operand's memory there; planning ended in "cycle in main"."""
    path = tmp_path / "m.txt"
    path.write_text(TWO_SUMS)
    module = read_module(path, target)
    assert opcodes(module_from_bytes(module))["copy"] == copies
    plan = plan_module(module, PlanOptions(step_limit=1000), target=target)
    assert plan.predicted_bytes <= plan.xla_predicted_bytes
    for graph in graphs(apply_plan(module, plan), target):
        check_schedule(graph, range(len(graph.operators)))
