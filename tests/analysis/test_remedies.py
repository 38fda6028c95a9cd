"""What would help where an order does not: the remedy that is named, tried, gives its figure."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla.analysis import remedies
from olla_xla.analysis.category import Category
from olla_xla.analysis.remedy import Remedy, Trial, by_hand
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.memory.module_state import scheduled_module
from olla_xla.pieces import in_pieces
from olla_xla.tools.capture import capture
from tests.support.compiles import xla_schedule

LIMITS = {"time_limit": 5, "step_limit": 2000}


def _tried(step, arguments, **options):
    """Where a plan is in use already."""
    jitted = jax.jit(step, **options)
    return olla_xla.analyze(jitted, *arguments, plan=LIMITS, advice=True).remedy


def _total(function, *arguments):
    return function.lower(*arguments).compile().plan.assigned_bytes


def body(h, w):
    return jnp.tanh(jnp.tanh(h @ w) @ w.T) + h, None


def scanned(w, x):
    def loss(w):
        return (jax.lax.scan(body, x, w)[0] ** 2).mean()

    return w - jax.grad(loss)(w)


def test_scan_residuals():
    arguments = jnp.zeros((16, 64, 64)), jnp.zeros((2048, 64))
    found = _tried(scanned, arguments, donate_argnums=0)
    assert found is not None and found.what == Category.STACKS
    trial = next(trial for trial in found.helpful if trial.allowed < 1)
    assert trial.setting == "olla_xla.plan(max_overhead=0.2, step_limit=2000, time_limit=5)"
    again = olla_xla.plan(scanned, donate_argnums=0, max_overhead=0.2, **LIMITS)
    assert abs(trial.bytes / _total(again, *arguments) - 1) <= 0.05
    line = found.sentence()
    assert "are arrays filled by loops; " in line and "\n" not in line
    pieces = next(trial for trial in found.helpful if trial.pieces > 1)
    named = {"olla_xla.fission", f"olla_xla.fission(pieces={pieces.pieces})"}
    assert pieces.setting in named  # with their number where it is another than the usual one
    assert pieces.bytes < trial.bytes
    assert line.endswith(
        "Not tried: jax.checkpoint by hand, several of these together, offloading, a smaller batch."
    )


def stencil(body_of):
    """A step of loops that a CPU compiles together: plans keep all, or it might round otherwise."""

    def body(h, w):
        for _ in range(3):
            h = jnp.sin(h) * w + h * jnp.roll(h, 1) - 2 * h * jnp.roll(h, -1)
        return h, None

    def step(w, x):
        return jax.grad(lambda w: (jax.lax.scan(body_of(body), x, w)[0] ** 2).mean())(w)

    return step


def test_where_nothing_else_helps_checkpoints_are_tried():
    arguments = jnp.zeros((512, 1024)), jnp.zeros(1024)
    found = _tried(stencil(lambda body: body), arguments)
    assert found is not None
    (trial,) = found.helpful
    assert trial.setting == "jax.checkpoint around each scan's body (nothing_saveable)"
    by_hand = stencil(lambda body: jax.checkpoint(body, prevent_cse=False))
    assert trial.bytes == assigned_bytes(jax.jit(by_hand).lower(*arguments).compile())
    assert "by hand" not in found.sentence()


def test_where_checkpoints_of_bodies_do_not_help_segments_of_scans_are_tried():
    """Each iteration's state is the whole buffer, so only fewer states help."""
    n, d = 36, 64

    def body_of(w):
        def body(c, x):
            row = jnp.tanh((c @ x[1]) @ c / n + x[1] @ w)
            return jax.lax.dynamic_update_index_in_dim(c, row, x[0], 0), None

        return body

    def step(scan):
        def loss(w, xs):
            return (scan(body_of(w), jnp.zeros((n, d)), (jnp.arange(n), xs)) ** 2).sum()

        return lambda w, xs: jax.grad(loss)(w, xs)

    def by_hand(body, c, xs):
        def segment(c, part):
            return jax.lax.scan(jax.checkpoint(body, prevent_cse=False), c, part)

        parts = jax.tree.map(lambda a: a.reshape(6, 6, *a.shape[1:]), xs)
        return jax.lax.scan(jax.checkpoint(segment, prevent_cse=False), c, parts)[0]

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((d, d), (n, d))]
    found = _tried(step(lambda *a: jax.lax.scan(*a)[0]), shapes)
    assert found is not None
    (trial,) = found.helpful
    assert trial.setting == "jax.checkpoint around segments of each scan (nothing_saveable)"
    made = assigned_bytes(jax.jit(step(by_hand)).lower(*shapes).compile())
    assert abs(trial.bytes / made - 1) <= 0.05 and made < found.total_bytes / 2


def test_a_plan_is_tried_with_the_effort_that_its_setting_gets(monkeypatch):
    """Without a limit that is in proportion to XLA's own time; nobody hears of the plans."""
    asked = []
    planned = remedies.planned_function
    monkeypatch.setattr(
        remedies,
        "planned_function",
        lambda f, how, s: asked.append(s.options) or planned(f, how, s),
    )
    before = len(olla_xla.report().events)
    arguments = jnp.zeros((16, 64, 64)), jnp.zeros((2048, 64))
    found = olla_xla.analyze(jax.jit(scanned), *arguments, advice=True).remedy
    assert found is not None and "olla_xla.plan(max_overhead=0.2) takes" in found.sentence()
    assert [o.max_overhead for o in asked] == [0.2], "the bound says that no order helps"
    assert all(o.in_proportion for o in asked)
    assert len(olla_xla.report().events) == before


def _cut(function, trial):
    """As the setting says."""
    whole = trial.setting == "olla_xla.fission"
    assert whole or trial.setting == f"olla_xla.fission(pieces={trial.pieces})"
    return olla_xla.fission(function, pieces=None if whole else trial.pieces)


@pytest.mark.parametrize("plan", [False, LIMITS])
def test_pieces_are_tried_on_any_function(plan, monkeypatch):
    """Those of a planned step are planned too. Their time is not this machine's."""
    cost = in_pieces.compiled_cost
    monkeypatch.setattr(in_pieces, "compiled_cost", lambda lowered: (cost(lowered)[0], 1.0))

    def products(*m):
        return jnp.einsum("ij,ik,il,jk,jl,kl->ij", *m)

    shapes = [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 6
    found = olla_xla.analyze(products, *shapes, plan=plan, advice=True).remedy
    assert found is not None
    trial = next(trial for trial in found.helpful if "fission" in trial.setting)
    cut = _cut(products, trial)
    if plan:
        assert trial.bytes == _total(olla_xla.plan(cut, **LIMITS), *shapes)
        return
    compiled = jax.jit(cut).lower(*shapes).compile()
    assert trial.bytes == assigned_bytes(compiled) < found.total_bytes / 2
    line = products.__code__.co_firstlineno + 1
    assert f"at test_remedies.py:{line} in {trial.pieces} pieces" in found.sentence()


@pytest.mark.parametrize(("fewer", "added"), [([1.5], 0.5), ([2.2, 2.0], 1.0), ([2.2, 2.1], None)])
def test_pieces_that_take_more_than_twice_the_time_are_no_advice(monkeypatch, fewer, added):
    """Fewer are tried, twice."""
    seconds = iter([3.0, 1.0, *fewer])
    monkeypatch.setattr(in_pieces, "compiled_cost", lambda lowered: (1000, next(seconds)))

    def head(w, x):
        return jax.grad(lambda w: jax.nn.logsumexp(x @ w, -1).mean())(w)

    shapes = (
        jax.ShapeDtypeStruct((32, 256), jnp.float32),
        jax.ShapeDtypeStruct((8192, 32), jnp.float32),
    )
    found = olla_xla.analyze(head, *shapes, advice=True).remedy
    assert found is not None and next(seconds, None) is None, "all were compiled"
    assert [t.added for t in found.helpful if t.pieces > 1] == ([] if added is None else [added])


def test_where_a_step_cannot_be_cut_its_loss_is():
    """Each point has a minimum over the other points, which its gradient needs first."""

    def loss(x, y):
        pairs = jnp.maximum((x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T, 0.0)
        return pairs.min(0).mean() + pairs.min(1).mean()

    def step(loss):
        return lambda x, y: x - jax.grad(loss)(x, y)

    points = [jax.ShapeDtypeStruct((2048, 3), jnp.float32)] * 2
    found = olla_xla.analyze(step(loss), *points, advice=True).remedy
    assert found is not None and found.helpful[0].setting == "olla_xla.fission around the loss"
    cut = jax.jit(step(olla_xla.fission(loss))).lower(*points).compile()
    assert found.helpful[0].bytes == assigned_bytes(cut) < found.total_bytes / 4
    assert "which finds nothing to cut" not in found.sentence()


def test_recomputation_that_adds_no_time_is_not_asked_for():
    """A cache that a scan takes and returns is held once by any plan; no order does that."""

    def step(cache, x, i):
        def layer(x, rows):
            rows = jax.lax.dynamic_update_slice(rows, x[None], (i, 0))
            return jnp.tanh(x + jax.nn.softmax(rows @ x) @ rows), rows

        return jax.lax.scan(layer, x, cache)[::-1]

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 4096, 64), (64,))]
    shapes.append(jax.ShapeDtypeStruct((), jnp.int32))
    found = olla_xla.analyze(jax.jit(step, donate_argnums=0), *shapes, advice=True).remedy
    assert found is not None and [t.setting for t in found.helpful] == ["olla_xla.plan"]


def test_what_fails_is_told_and_the_analysis_goes_on(monkeypatch):
    monkeypatch.setattr(in_pieces, "compiled_cost", lambda lowered: 1 / 0)
    shapes = [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 6
    found = olla_xla.analyze(
        lambda *m: jnp.einsum("ij,ik,il,jk,jl,kl->ij", *m), *shapes, advice=True
    ).remedy
    assert found is not None
    why = "olla_xla.fission, which fails (ZeroDivisionError: division by zero)"
    assert f"Not tried: {why}, jax.checkpoint by hand" in found.sentence()


def momentum(w, m, x):
    m = 0.9 * m + jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
    return w - m, m


STATE = jnp.zeros((512, 512)), jnp.zeros((512, 512)), jnp.zeros((8, 512))


def test_state_that_nothing_makes_again():
    found = _tried(momentum, STATE, donate_argnums=(0, 1))
    assert found is not None and not found.helpful
    line = found.sentence()
    assert line.startswith("Little would help: 2.0 of 3.0 MB at the peak are parameters and optim")
    assert "time_limit=5) leaves 3.0 MB (+0.0 % predicted time). Not tried: " in line
    assert "olla_xla.fission, which finds nothing to cut, more devices" in line
    assert "jax.checkpoint" not in line


@pytest.mark.parametrize("plan", [False, LIMITS])
def test_analyze_compiles_with_what_could_be_donated(plan):
    found = olla_xla.analyze(momentum, *STATE, plan=plan, advice=True).remedy
    assert found is not None
    trial = found.helpful[0]
    assert trial.setting == "donate_argnums=(0, 1)"
    if plan:
        total = _total(olla_xla.plan(momentum, donate_argnums=(0, 1), **LIMITS), *STATE)
    else:
        total = capture(jax.jit(momentum, donate_argnums=(0, 1)).lower(*STATE)).assigned_bytes
    assert abs(trial.bytes / total - 1) <= 0.01
    assert "if the caller no longer needs them" in found.sentence()


def test_arguments_by_name_are_donated_by_name():
    found = olla_xla.analyze(
        jax.jit(lambda x, *, cache: (x + 1, cache.at[0].add(1.0))),
        jnp.zeros(4),
        cache=jnp.zeros((64, 1024)),
        advice=True,
    ).remedy
    assert found is not None and found.helpful[0].setting == "donate_argnames='cache'"


def test_analyze_tries_nothing_where_it_is_not_asked_to():
    assert olla_xla.analyze(momentum, *STATE).remedy is None


def test_where_an_order_saves_much_nothing_is_tried():
    arguments = jnp.zeros((16, 64, 64)), jnp.zeros((2048, 64))
    assert _tried(scanned, arguments) is not None
    plan = LIMITS | {"max_overhead": 0.2}
    assert olla_xla.analyze(scanned, *arguments, plan=plan, advice=True).remedy is None


def test_a_librarys_own_switch():
    nn = pytest.importorskip("flax.linen")
    layer = nn.Dense(8)
    params = layer.init(jax.random.key(0), jnp.zeros((2, 8)))
    module = xla_schedule(jax.jit(layer.apply).lower(params, jnp.zeros((2, 8))))
    assert by_hand(scheduled_module(module)) == "nn.remat"
    own = xla_schedule(jax.jit(scanned).lower(jnp.zeros((4, 8, 8)), jnp.zeros((2, 8))))
    assert by_hand(scheduled_module(own)) == "jax.checkpoint"


def test_more_time_must_save_more():
    """What takes more time is named if it saves a twentieth of what takes less."""
    plans = [Trial("olla_xla.plan", 40 << 20)]
    plans += [
        Trial(f"olla_xla.plan(max_overhead={o})", b << 20, 0.1, o) for o, b in ((0.2, 39), (0.5, 9))
    ]
    found = Remedy("arrays filled by loops", 40 << 20, False, 50 << 20, tuple(plans))
    assert [trial.bytes >> 20 for trial in found.helpful] == [9, 40]
    donated = Trial("donate_argnums=0", 45 << 20, notes=("if the caller no longer needs it",))
    found = dataclasses.replace(found, trials=(*plans[1:2], donated))
    assert found.sentence().startswith(
        "What would help: 40.0 of 50.0 MB at the peak are arrays filled by loops; "
        "olla_xla.plan(max_overhead=0.2) takes 39.0 MB (+10.0 % predicted time); "
        "donate_argnums=0 takes 45.0 MB (if the caller no longer needs it). Not tried: "
    )
