"""Hypothesis strategies for programs; failures shrink towards the first option of each choice."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from benchmarks.random_programs.arithmetic import OPERATIONS, SIZES
from benchmarks.random_programs.arrays import ARRAYS
from benchmarks.random_programs.callbacks import CALLBACKS
from benchmarks.random_programs.control import CONTROL, DERIVATIVES
from benchmarks.random_programs.elementwise import ELEMENTWISE
from benchmarks.random_programs.fixed_point import FIXED_FORMS, FIXED_MAPS
from benchmarks.random_programs.inner_steps import INNER_FORMS, INNER_OPTIMIZERS
from benchmarks.random_programs.layered import BRANCHES, CARRIES, LAYERED_FORMS, LAYOUTS, RECOMPUTED
from benchmarks.random_programs.linear import LINEAR
from benchmarks.random_programs.narrow import TYPES
from benchmarks.random_programs.nested import NESTED
from benchmarks.random_programs.optimizers import OPTIMIZERS
from benchmarks.random_programs.sharded import EXCHANGES
from benchmarks.random_programs.spec import (
    Arithmetic,
    Body,
    Case,
    ConvNet,
    FixedPoint,
    Graph,
    InnerSteps,
    Layered,
    Node,
    Program,
    Recurrent,
    Settings,
    Sharded,
    Term,
    Transformer,
    Update,
    Updates,
)
from benchmarks.random_programs.terms import KEPT, TERMS, USES
from benchmarks.random_programs.training import EXTRAS
from benchmarks.random_programs.updates import UPDATES

_pick = st.sampled_from
# Values made just now, the first ones, and any between: readers near and far apart.
_read = st.one_of(st.integers(-4, -1), st.integers(0, 3), st.integers(0, 60))
_PLAIN = (*ELEMENTWISE, *ARRAYS, *LINEAR)
_OFTEN = ("add", "mul", "gate", "gates", "chain", "wide", "dense", "matmul", "split", "sum")
_RICH = {
    "plain": (),
    "control": (*CONTROL, "scan"),
    "derivatives": tuple(DERIVATIVES),
    "nested": (*NESTED, "jit", "scan"),
    "types": tuple(TYPES),
    "callbacks": (*CALLBACKS, "scan"),
}


def _nodes(
    special: tuple[str, ...],
    most: int,
    least: int = 1,
    depth: int = 2,
    plain: tuple[str, ...] = _PLAIN,
) -> Any:
    """Lists of operators, one in three of them special."""
    names: Any = st.one_of(_pick(_OFTEN), _pick(plain))
    if special:
        names = st.one_of(names, names, _pick(special))
    reads = st.lists(_read, min_size=1, max_size=5).map(tuple)
    inner: Any = st.just(())
    if depth and special:
        deep = special in (_RICH["control"], _RICH["callbacks"], _RICH["nested"])
        below = special if depth > 1 and deep else ()
        inner = _nodes(below, 3, 1, depth - 1)
    k = st.integers(0, 7)

    @st.composite
    def node(draw: Any) -> Node:
        op = draw(names)
        nested = op in CONTROL or op in DERIVATIVES or op in NESTED
        return Node(op, draw(reads), draw(k), draw(inner) if nested else ())

    return st.lists(node(), min_size=least, max_size=most).map(tuple)


@st.composite
def _graph(draw: Any, rich: str, least: int = 1) -> Graph:
    rows, cols = draw(_pick([8, 16, 32, 64, 128])), draw(_pick([16, 32, 64, 128]))
    least = least if rich != "plain" else draw(_pick([1, 4, 6, 10]))
    most = least + (6 if rich == "plain" else 4)
    return Graph(
        rows,
        cols,
        leaves=draw(st.integers(1, 4)),
        weights=draw(_pick([1, 1, 2, 3])),
        nodes=draw(_nodes(_RICH[rich], most, least)),
        stride=draw(_pick([1, 1, 2, 7])),
    )


@st.composite
def _recurrent(draw: Any) -> Recurrent:
    """Often with one number for all sizes: buffers of one size, whatever is in them, are shared.

    Plain nets are unrolled for many steps, which costs little, as their kernels are alike: a long
    chain has many orders, and each moves the scalars of the loss.
    """
    width = draw(_pick([16, 32, 64]))
    cell = draw(_pick(["lstm", "gru", "plain", "plain"]))
    form = draw(_pick(["unrolled"] * 9 + ["scan", "scan", "reverse", "both", "nested"]))
    loss = draw(_pick(["means"] * 7 + ["square", "picked", "both"]))
    few = cell != "plain" or loss != "means"
    return Recurrent(
        cell=cell,
        form=form,
        steps=draw(_pick([2, 3, 3, 4] if few else [4, 6, 8, 10])),
        batch=draw(_pick([width, width, 4, 32, 64])),
        width=width,
        inputs=draw(_pick([width, width, 8, 32])),
        classes=draw(_pick([width, width, 4 * width, 32, 600])),
        read=draw(_pick(["each"] * 3 + ["last", "third", "pairs"])),
        loss=loss,
        bias=draw(st.booleans()),
        recompute=draw(_pick([False] * 5 + [True])),
        jits=draw(_pick([False] * 5 + [True])),
    )


_transformer = st.builds(
    Transformer,
    layers=_pick([1, 1, 1, 1, 1, 2]),
    batch=_pick([1, 2, 4]),
    length=_pick([8, 16]),
    width=_pick([16, 32]),
    heads=_pick([1, 2, 4]),
    classes=_pick([16, 64, 256]),
    activation=_pick(["silu", "gelu", "relu2"]),
    norm=_pick(["rms", "layer"]),
    form=_pick(["unrolled", "unrolled", "scan"]),
    recompute=_pick([False] * 5 + [True]),
    rotary=st.booleans(),
    tied=st.booleans(),
    dropout=_pick([False, False, True]),
)
_conv = st.builds(
    ConvNet,
    layers=_pick([1, 1, 2, 3]),
    batch=_pick([1, 2, 4]),
    size=_pick([8, 16]),
    channels=_pick([4, 8, 16]),
    kind=_pick(["plain", "residual", "dense", "depthwise"]),
    pool=_pick(["max", "mean", "stride"]),
    recompute=_pick([False, False, True]),
)
_update = st.builds(Update, _pick(UPDATES), st.integers(0, 5), st.integers(0, 5), st.integers(0, 7))
_updates = st.builds(
    Updates,
    rows=_pick([8, 32, 128, 512]),
    cols=_pick([16, 64, 128]),
    arrays=st.integers(1, 6),
    updates=st.lists(_update, min_size=1, max_size=24).map(tuple),
    loop=_pick([0, 0, 1, 4]),
)


@st.composite
def _arithmetic(draw: Any, forms: tuple[str, ...]) -> Arithmetic:
    """Layers of a few operations."""
    node = st.builds(
        Node,
        _pick([*OPERATIONS, "product", "thrice"]),
        st.tuples(*[st.integers(0, 99)] * 3),
    )
    rows, width, layers = draw(_pick(SIZES))
    return Arithmetic(
        operations=draw(st.lists(node, min_size=3, max_size=6).map(tuple)),
        rows=rows,
        width=width,
        layers=layers,
        form=draw(_pick(forms)),
        unroll=draw(_pick([1, 1, 1, 2])),
        reverse=draw(_pick([False] * 4 + [True])),
    )


@st.composite
def _layered(draw: Any) -> Layered:
    """Layers over a stack, one in two with a branch."""
    return Layered(
        nodes=draw(_nodes(draw(_pick([(), (), ("debug",)])), 2, plain=tuple(ELEMENTWISE))),
        rows=draw(_pick([8, 16, 64])),
        width=draw(_pick([16, 32])),
        layers=draw(_pick([3, 4, 6, 10])),
        layout=draw(_pick(["shared", *LAYOUTS])),
        form=draw(_pick(["scan", "scan", *LAYERED_FORMS])),
        branch=draw(_pick(["", "", *BRANCHES])),
        carries=draw(st.lists(_pick(CARRIES), max_size=2, unique=True).map(tuple)),
        unroll=draw(_pick([1, 1, 1, 2])),
        recompute=draw(_pick(["", "", *RECOMPUTED])),
        cast=draw(_pick([False, True])),
    )


_fixed_point = st.builds(
    FixedPoint,
    rows=_pick([16, 32, 48]),
    cols=_pick([16, 32, 40]),
    size=_pick([4, 8]),
    steps=_pick([2, 3, 4, 6]),
    form=_pick(FIXED_FORMS),
    map=_pick(["log", *FIXED_MAPS]),
    jits=_pick([False, False, True]),
)
_inner_steps = st.builds(
    InnerSteps,
    rows=_pick([8, 32]),
    inputs=_pick([8, 16]),
    width=_pick([16, 32]),
    steps=_pick([2, 3]),
    form=_pick(["scan", "scan", *INNER_FORMS]),
    optimizer=_pick(["adam", *INNER_OPTIMIZERS]),
    batches=st.booleans(),
    saturates=st.booleans(),
)


_sharded = st.builds(
    Sharded,
    layers=st.lists(_pick(tuple(EXCHANGES)), min_size=1, max_size=5).map(tuple),
    rows=_pick([8, 16, 64]),
    width=_pick([16, 32, 64]),
    scanned=st.booleans(),
)


# Shares of each kind. Most are of what went wrong most, values kept long and read from many places,
# and what is rounded by the code around it; fewer of what takes long to compile.
_SHARES = (
    *["graph plain"] * 6,
    *["recurrent"] * 16,
    *["graph nested"] * 4,
    *["graph control", "graph derivatives", "graph types"] * 2,
    *["graph callbacks"] * 3,
    *["sharded"] * 4,
    *["layered", "fixed point", "inner steps"] * 4,
    *["updates"] * 3,
    *["arithmetic"] * 4,
    *["transformer", "convolutions"],
)


def bodies() -> dict[str, Any]:
    """What each kind of body is drawn from."""
    return {
        **{f"graph {rich}": _graph(rich) for rich in _RICH},
        "recurrent": _recurrent(),
        "transformer": _transformer,
        "convolutions": _conv,
        "updates": _updates,
        "arithmetic": _arithmetic(("scan", "scan", "unrolled")),
        "layered": _layered(),
        "fixed point": _fixed_point,
        "inner steps": _inner_steps,
        "sharded": _sharded,
    }


_term = st.builds(
    Term,
    op=_pick(tuple(TERMS)),
    reads=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    use=_pick(["loss", "loss", "loss", *USES, *KEPT, "ema"]),
    weight=_pick([1.0, 0.5, 0.1, 0.3, 2.0, -0.01]),
)


@st.composite
def _terms(draw: Any) -> tuple[Term, ...]:
    """Often several: what is rounded by the code around it is a sum of several products."""
    return tuple(draw(_term) for _ in range(draw(_pick([0, 0, 0, 1, 2, 3]))))


def programs(body: Any = None) -> Any:
    """Programs, of all kinds of bodies by default."""
    return (_pick(_SHARES).flatmap(bodies().__getitem__) if body is None else body).flatmap(_with)


# Bodies of many operators, whose code LLVM takes long to optimize.
_LARGE = (Graph, Transformer, ConvNet)
_LOOPS = (Layered, InnerSteps, Arithmetic)


def _with(body: Body) -> Any:
    """Programs with this body."""
    extras = _pick([0, 0, 1, 2]).flatmap(
        lambda most: st.lists(_pick(EXTRAS), max_size=most, unique=True).map(tuple)
    )
    optimizers = [*["sgd"] * 5, *OPTIMIZERS, "none"]
    if isinstance(body, InnerSteps):  # Trained inside; a gradient through that takes a loop more.
        optimizers = ["none", "none", "sgd"]
    unoptimized = 2 if isinstance(body, _LARGE) else 1
    optimized = 1 if isinstance(body, _LARGE + _LOOPS) else 4
    return st.builds(
        Program,
        body=st.just(body),
        dtype=_pick(["float32"] * 12 + ["bfloat16", "mixed", "float64"]),
        optimizer=_pick(optimizers),
        clip=_pick([False, False, False, True]),
        donate=_pick([(), (0, 1), (0, 1), (0,), (0,), (0, 1, 2), (1,), (2,)]),
        extras=extras,
        seed=st.integers(0, 3),
        optimized=_pick([False] * unoptimized + [True] * optimized),
        terms=_terms(),
        x64=_pick([False] * 7 + [True]),
        host=_pick([False] if isinstance(body, Sharded) else [False] * 31 + [True]),
    )


@st.composite
def settings(draw: Any, timed: bool = True, scans: bool = False) -> Settings:
    """Options of a plan; without `timed` only those whose plans are the same every time.

    With `scans`, most allow much to be computed again.
    """
    by_time = timed and draw(_pick([False, False, True]))
    # Integer programs have no step limit; a plan that need not be the same again need not prove.
    steps_limit = 2.0 if timed else 60.0
    return Settings(
        seed=draw(st.integers(0, 3)),
        step_limit=None if by_time else draw(_pick([1_000, 300, 5_000])),
        time_limit=draw(_pick([0.3, 0.6, 0.1])) if by_time else steps_limit,
        in_place=draw(_pick([True] * 15 + [False])),
        max_overhead=draw(_pick([2.0, 0.3, None] if scans else [None, None, None, 0.05, 0.3])),
        budget=draw(_pick([None] * 14 + [0.95, 0.8])),
        loops=draw(_pick([True] * 7 + [scans])),
        placement=draw(_pick(["xla"] * 7 + ["own"])),
    )


def cases(plans: int = 2, timed: bool = True, scans: bool = False) -> Any:
    """Programs with as many plans each; with `scans` only such as loop over something."""

    def planned(program: Program) -> Any:
        one = settings(timed, scans or program.scans)
        return st.builds(
            Case, st.just(program), st.lists(one, min_size=plans, max_size=plans).map(tuple)
        )

    return (_scanned() if scans else programs()).flatmap(planned)


def _scanned() -> Any:
    """Programs that loop over layers, time or rows."""
    layers = st.builds(
        lambda t, more, unroll: dataclasses.replace(
            t, form="scan", layers=t.layers + more, unroll=unroll
        ),
        _transformer,
        _pick([1, 2, 3]),
        _unroll,
    )
    graphs = _graph("control").filter(lambda g: Program(g).scans)
    scans = (_over_time(), layers, graphs, _arithmetic(("scan",)), _layered(), _inner_steps)
    return st.one_of(*(programs(body).filter(lambda p: p.scans) for body in scans))


_unroll = _pick([1, 1, 2, 3])


@st.composite
def _over_time(draw: Any) -> Recurrent:
    """A recurrent net that scans, one in three over many steps."""
    net = draw(_recurrent())
    form = "scan" if net.form == "unrolled" else net.form
    net = dataclasses.replace(net, form=form, unroll=draw(_unroll))
    if draw(_pick([False, False, True])):
        # What the loss reads is not in a loop.
        net = dataclasses.replace(net, steps=draw(_pick([12, 25, 48])), read="last")
    return net
