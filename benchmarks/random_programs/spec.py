"""The specification of a random program: frozen values whose repr rebuilds them.

Every field takes any value of its type (numbers are taken modulo the number of choices), so a
program stays valid whatever shrinking removes.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Node:
    """One operator of a graph.

    Attributes:
      op: its name in the table of operators.
      reads: numbers of the values it reads; negative ones count from the latest.
      k: what the operator makes of it: an axis, a shift, a weight's number.
      inner: the operators of a loop's body, of branches, of what is recomputed.
    """

    op: str
    reads: tuple[int, ...] = (-1,)
    k: int = 0
    inner: tuple[Node, ...] = ()


@dataclasses.dataclass(frozen=True)
class Graph:
    """Operators over values of one shape, each read by any number of later ones.

    Attributes:
      rows, cols: the shape of all values.
      leaves: trained arrays of that shape. weights: trained square matrices.
      nodes: operators, in order.
      stride: the loss reads each value whose number is a multiple of it.
    """

    rows: int
    cols: int
    leaves: int
    weights: int
    nodes: tuple[Node, ...]
    stride: int = 1


@dataclasses.dataclass(frozen=True)
class Recurrent:
    """A recurrent net.

    Attributes:
      cell: lstm, gru or plain. form: unrolled, scan, reverse, both (directions) or nested (scans).
      steps, batch, width, inputs, classes: sizes.
      read: which hidden states the loss reads: each, last, every third, or pairs far apart.
      loss: of the scores: square, picked (those of the labels) or both; or means: the variance of
        all steps' scores and the mean square of the last state. bias: whether there is one.
      recompute: `jax.checkpoint` around the cell. unroll: steps in one turn of a scan.
      jits: `jax.jit` around the cell.
    """

    cell: str
    form: str
    steps: int
    batch: int
    width: int
    inputs: int
    classes: int
    read: str = "each"
    loss: str = "square"
    bias: bool = False
    recompute: bool = False
    unroll: int = 1
    jits: bool = False


@dataclasses.dataclass(frozen=True)
class Transformer:
    """Llama-like blocks.

    Attributes:
      layers, batch, length, width, heads, classes: sizes.
      activation: silu, gelu or relu2. norm: rms or layer.
      form: unrolled or scan. recompute: `jax.checkpoint` around a block.
      rotary: rotates queries and keys. tied: the embedding is the last matrix too.
      dropout: with a random key that is threaded through the state.
      unroll: layers in one turn of a scan.
    """

    layers: int
    batch: int
    length: int
    width: int
    heads: int
    classes: int
    activation: str = "silu"
    norm: str = "rms"
    form: str = "unrolled"
    recompute: bool = False
    rotary: bool = False
    tied: bool = False
    dropout: bool = False
    unroll: int = 1


@dataclasses.dataclass(frozen=True)
class ConvNet:
    """Convolutions with running statistics.

    Attributes:
      layers, batch, size, channels: sizes. kind: plain, residual, dense (each layer reads all
        before) or depthwise.
      pool: max, mean or stride.
      recompute: `jax.checkpoint` around a layer.
    """

    layers: int
    batch: int
    size: int
    channels: int
    kind: str = "plain"
    pool: str = "max"
    recompute: bool = False


@dataclasses.dataclass(frozen=True)
class Update:
    """One change of a state array: `op` of array number `to` with array number `other`."""

    op: str
    to: int = 0
    other: int = 0
    k: int = 0


@dataclasses.dataclass(frozen=True)
class Updates:
    """A state of equal arrays changed in place, over and over, and read in between.

    Attributes:
      rows, cols: the shape of all arrays. arrays: how many.
      updates: changes, in order. loop: steps of a loop around them, or 0 for none.
    """

    rows: int
    cols: int
    arrays: int
    updates: tuple[Update, ...]
    loop: int = 0


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """Layers of products and sums of a few values.

    Attributes:
      operations: of a layer; each reads three values. rows, width, layers: sizes.
      form: scan or unrolled. unroll: layers in one turn of a scan. reverse: the last layer first.
    """

    operations: tuple[Node, ...]
    rows: int
    width: int
    layers: int
    form: str = "scan"
    unroll: int = 1
    reverse: bool = False


@dataclasses.dataclass(frozen=True)
class Layered:
    """Layers over one stack of matrices.

    Attributes:
      nodes: operators of a layer. rows, width, layers: sizes.
      layout: how the stack is kept (`layered.LAYOUTS`). form: the loop (`layered.LAYERED_FORMS`).
      branch: what a layer's work depends on (`layered.BRANCHES`).
      carries: what the loop carries beside (`layered.CARRIES`). unroll: layers in one turn.
      recompute: what a layer computes again (`layered.RECOMPUTED`).
      cast: whether each layer converts its weights for its product.
    """

    nodes: tuple[Node, ...]
    rows: int
    width: int
    layers: int
    layout: str = "plain"
    form: str = "scan"
    branch: str = ""
    carries: tuple[str, ...] = ()
    unroll: int = 1
    recompute: str = ""
    cast: bool = False


@dataclasses.dataclass(frozen=True)
class FixedPoint:
    """A fixed point, and a loss of it.

    Attributes:
      rows, cols, size: of two sets of points. steps: most iterations.
      form: how it is found and differentiated (`fixed_point.FIXED_FORMS`).
      map: what is iterated (`fixed_point.FIXED_MAPS`). jits: `jax.jit` around an iteration.
    """

    rows: int
    cols: int
    size: int
    steps: int
    form: str = "scan"
    map: str = "log"
    jits: bool = False


@dataclasses.dataclass(frozen=True)
class InnerSteps:
    """Steps of an optimizer, all in one step of the program.

    Attributes:
      rows, inputs, width, steps: sizes. form: the loop (`inner_steps.INNER_FORMS`).
      optimizer: of the inner steps (`inner_steps.INNER_OPTIMIZERS`).
      batches: whether each step has its own. saturates: whether the count of steps stops early.
    """

    rows: int
    inputs: int
    width: int
    steps: int
    form: str = "scan"
    optimizer: str = "adam"
    batches: bool = True
    saturates: bool = False


@dataclasses.dataclass(frozen=True)
class Sharded:
    """Layers over rows that are spread over devices.

    Attributes:
      layers: what each does with all devices' rows (`sharded.EXCHANGES`).
      rows: of a device. width: of a row. scanned: whether a loop runs the layers, all as the first.
    """

    layers: tuple[str, ...]
    rows: int
    width: int
    scanned: bool = False


Body = (
    Graph
    | Recurrent
    | Transformer
    | ConvNet
    | Updates
    | Arithmetic
    | Layered
    | FixedPoint
    | InnerSteps
    | Sharded
)


@dataclasses.dataclass(frozen=True)
class Term:
    """A scalar beside the body's loss.

    Attributes:
      op: its name in `terms.TERMS`. reads: numbers of the arrays it is made of.
      use: what becomes of it (`terms.USES`), or how it is kept over steps (`terms.KEPT`).
      weight: a constant that multiplies it, or part of it.
    """

    op: str
    reads: tuple[int, ...] = (0,)
    use: str = "loss"
    weight: float = 1.0


@dataclasses.dataclass(frozen=True)
class Program:
    """A train step, or a step without gradients.

    Attributes:
      body: what is computed.
      dtype: float32, bfloat16, or mixed: kept in float32, computed in bfloat16; or float64, which
        is float32 without x64.
      optimizer: none, sgd, momentum, adam or adamw. clip: gradients by their global norm.
      donate: which of the arguments (parameters, state, batch) are donated.
      extras: additional arguments and results; `training.EXTRAS` has them all.
      seed: of the arguments' values.
      optimized: whether LLVM optimizes the code, which takes longer, and decides how sums of
        products are rounded.
      terms: scalars beside the body's loss. x64: whether JAX's 64-bit types are enabled.
      host: whether the results that are no state are put into host memory.
    """

    body: Body
    dtype: str = "float32"
    optimizer: str = "sgd"
    clip: bool = False
    donate: tuple[int, ...] = ()
    extras: tuple[str, ...] = ()
    seed: int = 0
    optimized: bool = False
    terms: tuple[Term, ...] = ()
    x64: bool = False
    host: bool = False

    @property
    def draws(self) -> bool:
        """Whether the step draws random numbers, from a key in its state."""
        body = self.body
        if isinstance(body, Graph):
            draws = any(node.op in ("dropout", "noise") for node in _all_nodes(body.nodes))
        else:
            draws = isinstance(body, Transformer) and body.dropout
        return draws or "key" in self.extras

    @property
    def scans(self) -> bool:
        """Whether it loops over layers, time, or rows."""
        body = self.body
        if isinstance(body, Graph):
            names = {node.op for node in _all_nodes(body.nodes)}
            return not names.isdisjoint(_SCANS)
        if isinstance(body, Updates | ConvNet):
            return False
        if isinstance(body, Sharded):
            return body.scanned
        return not body.form.startswith("unrolled")

    @property
    def kind(self) -> str:
        """The row of the table that counts it."""
        body = self.body
        if self.host:
            return "results in host memory"
        if isinstance(body, Graph):
            return _graph_kind(body.nodes)
        if isinstance(body, Recurrent):
            return f"{body.cell} net, {_form(body)}"
        if isinstance(body, Arithmetic):
            return f"products and sums, {_form(body)}"
        if isinstance(body, Layered):
            return f"stacked layers, {'branches' if body.branch else _form(body)}"
        if isinstance(body, FixedPoint):
            return f"fixed point, {_form(body)}"
        if isinstance(body, InnerSteps):
            return f"inner steps, {_form(body)}"
        if isinstance(body, Sharded):
            return f"several devices, {'scanned' if body.scanned else 'unrolled'}"
        names = {Transformer: "transformer", ConvNet: "convolutions", Updates: "updates in place"}
        return names[type(body)]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a program is planned: options of `olla_xla.plan`.

    Attributes:
      budget: the memory budget as a part of jit's total, or None.
      others: as for `olla_xla.plan`.
    """

    seed: int = 0
    step_limit: int | None = 50_000
    time_limit: float = 60.0
    in_place: bool = True
    max_overhead: float | None = None
    budget: float | None = None
    loops: bool = True
    placement: str = "xla"


@dataclasses.dataclass(frozen=True)
class Case:
    """A program and how it is planned.

    Attributes:
      target: the device that it is compiled for; what is not a "cpu" is compiled only, not run.
    """

    program: Program
    plans: tuple[Settings, ...]
    target: str = "cpu"


_SCANS = (
    *("scan", "scan_reverse", "scan_rows", "slots", "count", "cond_turns", "switch_turns"),
    *("scalar_carry", "turned_stack", "sinkhorn", "descent", "elementwise"),
)
_KINDS = (
    ("callbacks", ("pure", "io_ordered", "io", "debug", "debug_ordered")),
    (
        "control flow",
        (
            *("scan", "scan_reverse", "scan_rows", "slots", "elementwise"),
            *("loop", "cond", "switch", "map"),
        ),
    ),
    (
        "nested",
        (
            "jit",
            "count",
            "cond_turns",
            "switch_turns",
            "scalar_carry",
            "turned_stack",
            "fft",
            "sinkhorn",
            "descent",
        ),
    ),
    ("derivatives", ("custom_vjp", "custom_jvp", "checkpoint", "inner_grad", "jvp")),
    ("types", ("int4", "int8", "mask", "complex", "bits", "dropout", "noise", "empty", "half")),
)


def _form(body: Recurrent | Arithmetic | Layered | FixedPoint | InnerSteps) -> str:
    return "unrolled" if body.form.startswith("unrolled") else "scanned"


def _graph_kind(nodes: tuple[Node, ...]) -> str:
    """The first kind of which the graph has an operator."""
    names = {node.op for node in _all_nodes(nodes)}
    for kind, ops in _KINDS:
        if names.intersection(ops):
            return f"graph: {kind}"
    return "graph: plain"


def _all_nodes(nodes: tuple[Node, ...]) -> list[Node]:
    return [each for node in nodes for each in (node, *_all_nodes(node.inner))]
