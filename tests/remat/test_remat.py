"""Recomputation: what may be cloned, what evictions lead to, fits to budgets, real runs."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import olla_xla
from examples.zoo import common, gpt, load
from hlo.dumps.read import with_program_order
from hlo.module import HloError, module_from_bytes
from hlo.rewrite.clones import Clone
from hlo.text import from_hlo_text
from olla_xla import planner
from olla_xla.compile import plan_store
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.errors import BudgetError, CheckError, InputError, LimitError
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.problem import plan as plan_file
from olla_xla.problem.options import PlanOptions, parse_bytes
from olla_xla.remat.clones import clones
from olla_xla.remat.cost.roofline import module_work
from olla_xla.remat.evictions import expand
from olla_xla.remat.front import Front
from olla_xla.remat.purity import recomputable
from olla_xla.solvers.linear import SolverLimits
from olla_xla.solvers.programs.recomputation import choose_exactly
from tests.support.compiles import on_h100, total_bytes, xla_schedule
from tests.support.rates import CPU, cost
from tests.support.rewrites import check_cloned, with_aliases, with_clones
from tests.support.steps import STEPS, arrays, assert_same

pytestmark = pytest.mark.slow

MIB = 2**20


def small_gpt(layers=2, optimizer="adam"):
    config = gpt.GPTConfig(layers, width=64, heads=4, sequence_length=64, vocabulary_size=97)
    return common.build(gpt.network(config), batch_size=4, optimizer=optimizer)


def wide_mlp():
    return load("mlp")(batch_size=2048, optimizer="momentum")


RUNS = {"resnet": STEPS["resnet"], "gpt": small_gpt, "mlp": wide_mlp}
plan = functools.partial(olla_xla.plan, time_limit=20, step_limit=4_000)


@functools.cache
def scheduled(name):
    step, shapes, jit_options = RUNS[name]()
    return xla_schedule(jax.jit(step, **jit_options).lower(*shapes))


@functools.cache
def front(name):
    return Front(module_from_bytes(scheduled(name)), "cpu", cost(), 60, {})


def module(body, extra=""):
    """A module of one entry computation over x: f32[64]."""
    text = (
        f"HloModule m\n{extra}\nENTRY e {{\n  x = f32[64] parameter(0)\n  {body}\n"
        "  ROOT r = (f32[64]) tuple(y)\n}"
    )
    return module_from_bytes(with_program_order(from_hlo_text(text)))


# What may be cloned.

ADD = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }"
FUSED = "f {{ p = f32[64] parameter(0)\n ROOT q = f32[64] {} }}"


def fusion(operation):
    return module("y = f32[64] fusion(x), kind=kLoop, calls=f", FUSED.format(operation))


ONCE = {
    "rng": lambda: module(
        "a = f32[] constant(0)\n  b = f32[] constant(1)\n"
        "  y = f32[64] rng(a, b), distribution=rng_uniform"
    ),
    "custom_call": lambda: module('y = f32[64] custom-call(x), custom_call_target="mine"'),
    "side_effect": lambda: module(
        'y = f32[64] custom-call(x), custom_call_target="__cublas$gemm", '
        "custom_call_has_side_effect=true"
    ),
    "all_reduce": lambda: module("y = f32[64] all-reduce(x), to_apply=add", ADD),
    "infeed": lambda: module(
        "t = token[] after-all()\n  i = (f32[64], token[]) infeed(t)\n"
        "  y = f32[64] get-tuple-element(i), index=0"
    ),
    "while": lambda: module(
        "y = f32[64] while(x), condition=c, body=b",
        "b { p = f32[64] parameter(0)\n ROOT n = f32[64] negate(p) }\n"
        "c { p = f32[64] parameter(0)\n ROOT t = pred[] constant(false) }",
    ),
    "in_place": lambda: module(
        "i = s32[] constant(3)\n  u = f32[1] constant({1})\n"
        "  y = f32[64] dynamic-update-slice(x, u, i)"
    ),
    "control": lambda: module(
        "a = f32[64] negate(x)\n  y = f32[64] sine(x), control-predecessors={a}"
    ),
    "fused_rng": lambda: module(
        "y = f32[64] fusion(x), kind=kLoop, calls=f",
        "f { p = f32[64] parameter(0)\n a = f32[] constant(0)\n b = f32[] constant(1)\n"
        " ROOT q = f32[64] rng(a, b), distribution=rng_uniform }",
    ),
}


@pytest.mark.parametrize("name", ONCE)
def test_what_must_run_once_is_never_cloned(name):
    found = ONCE[name]()
    free = ("parameter", "constant", "tuple", "get-tuple-element", "after-all")
    rest = [i for i in found.entry.instructions if i.opcode not in free and i.name != "a"]
    assert rest
    assert not any(recomputable(i, t) for i in rest for t in ("cpu", "cuda"))


@pytest.mark.parametrize("operation", ["negate(p)", "exponential(p)", "multiply(p, p)"])
def test_elementwise_fusions_may_be_cloned(operation):
    (found,) = [i for i in fusion(operation).entry.instructions if i.opcode == "fusion"]
    assert recomputable(found, "cpu") and recomputable(found, "cuda")


# The evaluator against the graph of the module that has the clones.


def with_arguments_held(graph):
    """The graph in which what arguments lie in is taken at every step."""
    held = {t.buffer for t in graph.tensors if t.live_in}
    tensors = [
        dataclasses.replace(
            t,
            live_out=t.live_out or t.live_in,
            bytes=t.bytes if t.live_in or t.buffer not in held else 0,
        )
        for t in graph.tensors
    ]
    pairs = [(b, a) for b, a in graph.inplace if tensors[b].buffer not in held]
    return dataclasses.replace(graph, tensors=tuple(tensors), inplace=tuple(pairs))


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_evictions_are_priced_as_the_written_module(name, stay):
    f = front(name)
    f = (f.if_arguments_stay() or f) if stay else f
    g, random = f.graph, np.random.default_rng(0)
    able = np.flatnonzero(g.evictable)
    total = 0
    for count in (0, 1, 3, 10, 40):
        tensors = random.choice(able, min(count, len(able)), replace=False)
        moments = (2 * random.integers(0, g.arrays.n, len(tensors)) + 1) * g.arrays.n
        evictions = np.stack([tensors, moments], axis=1).astype(np.int64)
        expansion = expand(g, evictions)
        assert expansion.feasible
        made = clones(f.planned.dataflow, g, expansion)
        total += len(made)
        data = with_clones(f.module.data, made)
        check_cloned(f.module.data, data, "cpu")
        written = PlannedModule(scheduled_module(data), "cpu")
        entry = written.lowered(written.module.entry)
        seen = with_arguments_held(entry.graph) if stay else entry.graph
        assert peak_bytes(seen, range(len(entry.instructions))) == expansion.peak
        moved = (
            module_work(written.module, "cpu").bytes - module_work(f.planned.module, "cpu").bytes
        )
        assert moved == expansion.moved
    assert total >= 3


def test_one_output_of_a_fusion_is_computed_again():
    text = """HloModule m
f { p = f32[4096] parameter(0)
  q = f32[4096] exponential(p)
  s = f32[4096] negate(p)
  ROOT t = (f32[4096], f32[4096]) tuple(q, s) }
ENTRY e { x = f32[4096] parameter(0)
  y = (f32[4096], f32[4096]) fusion(x), kind=kLoop, calls=f
  a = f32[4096] get-tuple-element(y), index=0
  b = f32[4096] get-tuple-element(y), index=1
  c = f32[4096] add(a, b)
  d = f32[4096] sine(c)
  ROOT r = f32[4096] add(d, a) }"""
    data = with_program_order(from_hlo_text(text))
    f = Front(module_from_bytes(data), "cpu", cost(), 10, {})
    (tensor,) = [
        t for t, v in enumerate(f.graph.values) if f.planned.dataflow.values[v].index == (0,)
    ]
    step = [i.name for i in f.graph.instructions].index("d")
    expansion = expand(f.graph, np.array([[tensor, (2 * step + 1) * f.graph.arrays.n]], np.int64))
    made = clones(f.planned.dataflow, f.graph, expansion)
    assert [(c.name, c.original) for c in made] == [("y.remat", "y"), ("a.remat", "a")]
    written = with_clones(data, made)
    check_cloned(data, written, "cuda")
    order = [i.name for i in module_from_bytes(written).entry.schedule]
    assert order[-2:] == ["y.remat", "r"], "it hands its one output over without a tuple"


def two_results_a_layer(layers=4):
    """Results of fusions are read again from the last to the first: sines before negatives."""
    fusions, lines = [], ["x0 = f32[4096] parameter(0)"]
    for k in range(layers):
        fusions.append(f"""f{k} {{ p = f32[4096] parameter(0)
  q = f32[4096] sine(p)
  s = f32[4096] negate(p)
  ROOT t = (f32[4096], f32[4096]) tuple(q, s) }}""")
        lines += [
            f"y{k} = (f32[4096], f32[4096]) fusion(x{k}), kind=kLoop, calls=f{k}",
            f"a{k} = f32[4096] get-tuple-element(y{k}), index=0",
            f"b{k} = f32[4096] get-tuple-element(y{k}), index=1",
            f"x{k + 1} = f32[4096] add(a{k}, b{k})",
        ]
    lines.append(f"g{layers} = f32[4096] tanh(x{layers})")
    for k in reversed(range(layers)):
        lines += [
            f"h{k} = f32[4096] multiply(g{k + 1}, a{k})",
            f"i{k} = f32[4096] sine(h{k})",
            f"g{k} = f32[4096] add(i{k}, b{k})",
        ]
    entry = "\n".join(["ENTRY e {", *lines[:-1], f"ROOT {lines[-1]} }}"])
    return "\n".join(["HloModule m", *fusions, entry])


def test_results_that_are_dropped_together_share_a_clone():
    data = with_program_order(from_hlo_text(two_results_a_layer()))
    f = Front(module_from_bytes(data), "cuda", cost("cuda"), 10, {})
    g, random = f.graph, np.random.default_rng(0)
    names = [i.name for i in g.instructions]
    results = [t for t, v in enumerate(g.values) if f.planned.dataflow.values[v].index]
    middle = (2 * names.index("g4") + 1) * g.arrays.n
    tried = [np.array([(t, middle) for t in results], np.int64)]
    for count in range(1, 40):
        keys = (2 * random.integers(0, g.arrays.n, count) + 1) * g.arrays.n
        tried.append(np.stack([random.choice(results, count), keys], axis=1).astype(np.int64))
    for k, evictions in enumerate(tried):
        expansion = expand(g, evictions)
        assert expansion.feasible
        made = clones(f.planned.dataflow, g, expansion)
        written = with_clones(data, made)
        check_cloned(data, written, "cuda")
        view = PlannedModule(module_from_bytes(written), "cuda")
        lowered = view.lowered(view.module.entry)
        peak = peak_bytes(lowered.graph, range(len(lowered.instructions)))
        assert peak <= expansion.peak  # what is written leaves results out that nothing reads
        assert k or peak == expansion.peak
        again = [c.original for c in made if c.original.startswith("y")]
        assert k or sorted(again) == ["y0", "y1", "y2", "y3"], "one clone for two results"
    together = f.selector.point(tried[0])
    found = f.selector.reduce(tried[0][:0], together.peak)
    assert found.peak <= together.peak and found.seconds <= together.seconds


def test_a_bound_result_moves_no_fewer_bytes():
    text = """HloModule m
f { p = f32[4096] parameter(0)
  ROOT q = f32[4096] negate(p) }
ENTRY e { x = f32[4096] parameter(0)
  a = f32[4096] exponential(x)
  y = f32[4096] fusion(a), kind=kLoop, calls=f
  ROOT r = f32[4096] sine(y) }"""
    data = with_program_order(from_hlo_text(text))
    plain = module_work(module_from_bytes(data), "cpu")
    bound = module_work(module_from_bytes(with_aliases(data, {"y": [((), 0)]})), "cpu")
    assert plain == bound and plain.bytes == 3 * 2 * 4 * 4096
    assert plain.transcendentals == 2 * 4096 and plain.operations == 4096


TRANSPOSED = """HloModule m
f {{ p = f32[64,32]{{1,0}} parameter(0)
  v = f32[32]{{0}} parameter(1)
  b = f32[32,64]{{1,0}} broadcast(v), dimensions={{0}}
  t = f32[32,64]{{{}}} transpose(p), dimensions={{1,0}}
  ROOT a = f32[32,64]{{{}}} add(t, b) }}
ENTRY e {{ x = f32[64,32]{{1,0}} parameter(0)
  v = f32[32]{{0}} parameter(1)
  ROOT r = f32[32,64]{{{}}} fusion(x, v), kind=kLoop, calls=f }}"""


@pytest.mark.parametrize(("layout", "across"), [("1,0", 4 * 64 * 32), ("0,1", 0)])
def test_what_is_read_across_the_layout_is_counted_apart(layout, across):
    text = TRANSPOSED.format(layout, layout, layout)
    view = module_from_bytes(with_program_order(from_hlo_text(text)))
    work = module_work(view, "cpu")
    assert work.transposed == across and work.bytes == 4 * (2 * 64 * 32 + 32)
    assert module_work(view, "cuda").transposed == 0
    slow = dataclasses.replace(CPU, transposed_bytes_per_second=CPU.bytes_per_second / 10)
    added = slow.seconds(work) - CPU.seconds(dataclasses.replace(work, transposed=0))
    assert added == pytest.approx(9 * across / CPU.bytes_per_second)


def test_a_convolution_by_channel_is_no_matrix_product_on_a_cpu():
    text = """HloModule m
ENTRY e { x = f32[1,8,8,16] parameter(0)
  k = f32[3,3,1,16] parameter(1)
  ROOT c = f32[1,8,8,16] convolution(x, k), window={size=3x3 pad=1_1x1_1},
    dim_labels=b01f_01io->b01f, feature_group_count=16 }"""
    view = module_from_bytes(with_program_order(from_hlo_text(text)))
    count = 2 * 8 * 8 * 16 * 9
    on_cpu, on_gpu = module_work(view, "cpu"), module_work(view, "cuda")
    assert (on_cpu.depthwise, on_cpu.operations, on_cpu.matrix) == (count, 0, 0)
    assert (on_gpu.depthwise, on_gpu.operations, on_gpu.matrix) == (0, count, 0)
    dense = text.replace("8,8,16]", "8,8,1]", 1).replace(", feature_group_count=16", "")
    view = module_from_bytes(with_program_order(from_hlo_text(dense)))
    work = module_work(view, "cpu")
    assert (work.depthwise, work.operations, work.matrix) == (0, 0, count)


# Choices.


@pytest.mark.parametrize("name", RUNS)
def test_more_budget_never_costs_more_time(name):
    f = front(name)
    peak = f.start.peak
    prices = []
    for part in (1.0, 0.95, 0.9, 0.85, 0.8, 0.7):
        found = f.below(int(part * peak))
        if not found:
            break
        assert all(p.peak <= part * peak for p in found)
        assert all(a.peak > b.peak for a, b in zip(found, found[1:], strict=False))
        prices.append(found[0].seconds)
    assert len(prices) > 2 and prices == sorted(prices)


def small_chain():
    """Seven tensors, of which some are read again late; sizes and prices differ."""
    text = """HloModule m
ENTRY e { x = f32[4096] parameter(0)
  a = f32[4096] exponential(x)
  b = f32[4096] negate(a)
  c = f32[2048] slice(b), slice={[0:2048]}
  d = f32[4096] sine(b)
  s = f32[1024] slice(d), slice={[0:1024]}
  t = f32[1024] tanh(s)
  u = f32[1024] add(t, s)
  g = f32[4096] concatenate(c, u, u), dimensions={0}
  h = f32[4096] multiply(g, d)
  i = f32[4096] add(h, a)
  ROOT r = f32[4096] add(i, b) }"""
    return with_program_order(from_hlo_text(text))


@functools.cache
def every_choice():
    """The graph of `small_chain`, and (peak, seconds) of whatever can be evicted from it."""
    g = Front(module_from_bytes(small_chain()), "cpu", cost(), 10, {}).graph
    gaps = [
        (t, (2 * first + 1) * g.arrays.n + 1)
        for t in np.flatnonzero(g.evictable)
        for first in range(int(g.arrays.source[t]), g.arrays.n)
    ]
    readers = {
        t: [
            v
            for v in range(g.arrays.n)
            if t in g.arrays.in_idx[g.arrays.in_ptr[v] : g.arrays.in_ptr[v + 1]]
        ]
        for t, _ in gaps
    }
    useful = [
        (t, k)
        for t, k in gaps
        if k // (2 * g.arrays.n) in (int(g.arrays.source[t]), *readers[t][:-1])
    ]
    sets = {(): expand(g, np.zeros((0, 2), np.int64))}
    for gap in useful:  # parts of what can be evicted can be evicted as well
        for chosen in [(*kept, gap) for kept in sets]:
            e = expand(g, np.array(chosen, np.int64))
            if e.feasible and not e.removed.any():
                sets[chosen] = e
    return g, [(e.peak, e.seconds) for e in sets.values()]


@pytest.mark.parametrize("part", [0.95, 0.85, 0.75, 0.65, 0.55])
def test_the_program_finds_the_optimum_of_a_small_graph(part):
    g, choices = every_choice()
    budget = int(part * expand(g, np.zeros((0, 2), np.int64)).peak)
    best = min((seconds for peak, seconds in choices if peak <= budget), default=np.inf)
    found = choose_exactly(g, budget, SolverLimits(time_limit=20), small=0)
    if found.evictions is None:
        assert best == np.inf
        return
    e = expand(g, found.evictions)
    assert e.feasible and e.peak <= budget
    assert e.seconds <= found.result.value + 1e-12
    assert e.seconds <= best + 1e-12


@pytest.mark.parametrize("name", RUNS)
def test_the_program_agrees_with_the_evaluator(name):
    f = front(name)
    target = int(0.9 * f.start.peak)
    found = choose_exactly(f.graph, target, SolverLimits(time_limit=20))
    assert found.evictions is not None
    e = expand(f.graph, found.evictions)
    assert e.feasible and e.peak <= target
    assert e.seconds <= found.result.value * (1 + 1e-9) + 1e-12
    point, bound = f.refined(f.below(target)[0], target, 20)
    assert point.peak <= target and bound <= point.seconds + 1e-12


def test_more_overhead_never_takes_more_memory():
    f = front("gpt")
    step = cost().step_seconds(f.planned.module)
    peaks = [f.within(part * step)[0].peak for part in (0.0, 0.02, 0.05, 0.2)]
    assert peaks == sorted(peaks, reverse=True) and peaks[-1] < peaks[0]


@pytest.mark.parametrize("name", ["resnet", "mlp"])
@pytest.mark.optimized
@pytest.mark.usefixtures("any_choices_will_do")
def test_runs_with_clones_are_bit_identical(name):
    step, shapes, jit_options = RUNS[name]()
    plain = jax.jit(step, **jit_options)
    compiled = plan(step, max_overhead=0.3, **jit_options).lower(*shapes).compile()
    (expected, batch), (state, _) = arrays(shapes), arrays(shapes)
    for _ in range(5):
        expected, expected_loss = plain(expected, batch)
        state, loss = compiled(state, batch)
        assert_same((expected, expected_loss), (state, loss))
    used = compiled.plan
    assert compiled.planned and used.clones and 0 < used.overhead <= 0.3
    assert used.assigned_bytes == total_bytes(compiled) < used.xla_bytes
    final = module_from_bytes(final_module(compiled._stage))
    names = {i.name for i in final.entry.instructions}
    made = [name for name, *_ in used.clones if not name.startswith(("get-tuple", "bitcast."))]
    assert made and names.issuperset(made), "all clones reach the executable"


@functools.cache
def within(budget):
    """The small GPT, compiled within a budget of bytes."""
    step, shapes, jit_options = small_gpt()
    return plan(step, memory_budget=budget, **jit_options).lower(*shapes).compile()


@functools.cache
def free_plan():
    options = PlanOptions(time_limit=10, step_limit=2000)
    return planner.plan_module(scheduled("gpt"), options, target="cpu"), options


def test_a_budget_is_met():
    data = scheduled("gpt")
    free, options = free_plan()
    assert free.clones == () and free.overhead == 0, "by default nothing is cloned"
    roomy = dataclasses.replace(options, memory_budget=free.predicted_bytes)
    assert planner.plan_module(data, roomy, target="cpu").clones == ()
    budget = int(0.9 * free.predicted_bytes)
    tight = within(budget)
    assert tight.plan.clones and assigned_bytes(tight._stage) <= budget
    with pytest.raises(BudgetError, match="max_overhead=0"):
        none = dataclasses.replace(options, memory_budget=budget, max_overhead=0.0)
        planner.plan_module(data, none, target="cpu")


def test_a_budget_out_of_reach_names_the_least():
    step, shapes, jit_options = wide_mlp()
    planned = plan(step, memory_budget="1KiB", **jit_options)
    with pytest.raises(BudgetError, match="cannot be met.*MiB' or more") as caught:
        planned(*arrays(shapes))
    assert 1024 < caught.value.least_bytes < 2**30


@pytest.mark.cuda13
@pytest.mark.usefixtures("any_choices_will_do")
def test_clones_reach_an_h100_executable():
    step, shapes, jit_options = small_gpt(layers=1, optimizer="sgd")
    planned = plan(step, max_overhead=0.2, **jit_options)
    compiled = planned.lower(*on_h100(shapes)).compile()
    assert compiled.planned, compiled.reason
    used = compiled.plan
    assert len(used.clones) > 5 and used.assigned_bytes < used.xla_bytes
    assert abs(used.predicted_bytes / used.assigned_bytes - 1) < 0.005


def test_plans_with_clones_are_kept():
    data = scheduled("gpt")
    made = within(int(0.9 * free_plan()[0].predicted_bytes)).plan
    assert made.clones
    assert plan_file.loads(plan_file.dumps(made)) == made
    assert plan_store.plan_digest(made) != plan_store.plan_digest(
        dataclasses.replace(made, clones=())
    )
    written = planner.module_order(planner.apply_plan(data, made))
    assert written == made.order


# The referee.


def tampered(change):
    """A module with one clone, changed; (before, after)."""
    text = """HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }
f { p = f32[64] parameter(0)
  ROOT q = f32[64] sine(p) }
g { p = f32[64] parameter(0)
  ROOT q = f32[64] cosine(p) }
ENTRY e { x = f32[64] parameter(0)
  w = f32[64] parameter(1)
  y = f32[64] fusion(x), kind=kLoop, calls=f
  z = f32[64] fusion(w), kind=kLoop, calls=g
  a = f32[64] add(y, z)
  n = f32[64] add(x, a)
  b = f32[64] multiply(w, y)
  ROOT r = (f32[64], f32[64]) tuple(n, b) }"""
    before = with_program_order(from_hlo_text(text))
    made = Clone("y.remat", "y", ("x",), (("b", 1),))
    return before, change(before, made)


DAMAGE = {
    "other values": lambda m, c: with_clones(m, [Clone("z.remat", "z", ("x",), (("a", 1),))]),
    "another operation": lambda m, c: with_clones(m, [dataclasses.replace(c, original="z")]),
    "overwritten": lambda m, c: with_clones(m, [c]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_referee_rejects(damage):
    before, after = tampered(DAMAGE[damage])
    complaint = "has written over it" if damage == "overwritten" else "results are not those"
    with pytest.raises(CheckError, match=complaint):
        check_cloned(before, after, "cpu")


def test_the_referee_accepts_an_early_clone():
    before, after = tampered(
        lambda m, c: with_clones(m, [dataclasses.replace(c, readers=(("a", 0),))])
    )
    check_cloned(before, after, "cpu")


def test_the_referee_rejects_a_clone_of_random_state():
    before = with_program_order(
        from_hlo_text(
            "HloModule m\nENTRY e { k = u64[2] rng-get-and-update-state(), delta=1\n"
            "  a = u64[2] negate(k)\n  ROOT r = (u64[2], u64[2]) tuple(k, a) }"
        )
    )
    made = [Clone("k.remat", "k", (), (("a", 0),))]
    with pytest.raises(CheckError, match="."):
        check_cloned(before, with_clones(before, made), "cpu")


@pytest.mark.parametrize(
    ("clone", "complaint"),
    [
        (Clone("y", "y", ("x",), (("b", 1),)), "already"),
        (Clone("c", "nowhere", ("x",), (("b", 1),)), "no instruction nowhere"),
        (Clone("c", "y", ("x",), ()), "nothing reads"),
        (Clone("c", "y", ("x",), (("b", 7),)), "no operand 7"),
    ],
)
def test_clones_that_cannot_be_written(clone, complaint):
    before, _ = tampered(lambda m, c: m)
    with pytest.raises(HloError, match=complaint):
        with_clones(before, [clone])


# Options.


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GiB", 10 * 2**30),
        ("10G", 10 * 2**30),
        ("512MiB", 512 * MIB),
        ("1.5GB", 1_500_000_000),
        ("7", 7),
        (9, 9),
    ],
)
def test_budgets_are_parsed(text, size):
    assert parse_bytes(text) == size
    assert PlanOptions(memory_budget=text).budget_bytes == size


@pytest.mark.parametrize("text", ["lots", "10 apples", "-1GB", "", 1.5, True])
def test_bad_budgets_show_the_right_form(text):
    with pytest.raises(InputError, match="512MiB"):
        parse_bytes(text)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "5%", True])
def test_bad_overheads_show_the_right_form(value):
    with pytest.raises(InputError, match="0.05 for 5%"):
        PlanOptions(max_overhead=value)


def test_a_budget_must_be_positive():
    with pytest.raises(LimitError, match="positive"):
        PlanOptions(memory_budget=0)


def test_a_cpu_computes_what_has_several_results_once():
    """Left with some of them it would be other code."""
    text = """HloModule m
f { p = f32[64] parameter(0)
  s = f32[64] sine(p)
  ROOT t = (f32[64], f32[64]) tuple(s, p) }
ENTRY e { x = f32[64] parameter(0)
  y = (f32[64], f32[64]) fusion(x), kind=kLoop, calls=f
  a = f32[64] get-tuple-element(y), index=0
  b = f32[64] get-tuple-element(y), index=1
  ROOT r = f32[64] add(a, b) }"""
    (found,) = (
        i
        for i in module_from_bytes(with_program_order(from_hlo_text(text))).entry.instructions
        if i.name == "y"
    )
    assert recomputable(found, "cuda") and not recomputable(found, "cpu")
