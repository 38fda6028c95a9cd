"""Synthetic modules and graphs for benchmarks: train steps of any depth, small random graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from hlo.dumps.read import with_program_order
from hlo.text import from_hlo_text
from olla_xla.check.graph import lifetime_peak
from olla_xla.errors import InputError
from olla_xla.problem.graph import Operator, Tensor, TensorGraph

_STATE = 3  # arrays of state for each weight: itself and Adam's two moments


@dataclasses.dataclass(frozen=True)
class _Value:
    """An f32 matrix of an HLO text."""

    name: str
    shape: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class _Applied:
    """A forward instruction, recorded for differentiation."""

    opcode: str
    result: _Value
    operands: tuple[_Value, ...]


class _Step:
    """Builds the HLO text of a train step, one instruction at a time."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.parameters: list[_Value] = []
        self.tape: list[_Applied] = []

    def parameter(self, shape: tuple[int, int]) -> _Value:
        value = self._add("parameter", str(len(self.parameters)), shape)
        self.parameters.append(value)
        return value

    def apply(self, opcode: str, *operands: _Value) -> _Value:
        """An elementwise instruction, or `dot` of an [a, b] and a [b, c]."""
        if opcode == "dot":
            return self._dot(*operands, contract=(1, 0))
        return self._add(opcode, ", ".join(f"%{o.name}" for o in operands), operands[0].shape)

    def forward(self, opcode: str, *operands: _Value) -> _Value:
        """As `apply`, and records the instruction for `backward`."""
        result = self.apply(opcode, *operands)
        self.tape.append(_Applied(opcode, result, operands))
        return result

    def backward(self, gradient: _Value) -> dict[str, _Value]:
        """Name of a value -> its gradient, by reverse-mode differentiation of what was noted."""
        gradients = {self.tape[-1].result.name: gradient}
        for applied in reversed(self.tape):
            given = gradients[applied.result.name]
            for operand, part in self._parts(applied, given):
                known = gradients.get(operand.name)
                gradients[operand.name] = part if known is None else self.apply("add", known, part)
        return gradients

    def _parts(self, applied: _Applied, given: _Value) -> list[tuple[_Value, _Value]]:
        if applied.opcode == "add":
            return [(operand, given) for operand in applied.operands]
        if applied.opcode == "multiply":
            a, b = applied.operands
            return [(a, self.apply("multiply", given, b)), (b, self.apply("multiply", given, a))]
        if applied.opcode == "tanh":
            slope = self.apply("multiply", applied.result, applied.result)
            return [(applied.operands[0], self.apply("multiply", given, slope))]
        a, b = applied.operands
        return [
            (a, self._dot(given, b, contract=(1, 1))),
            (b, self._dot(a, given, contract=(0, 0))),
        ]

    def _dot(self, a: _Value, b: _Value, *, contract: tuple[int, int]) -> _Value:
        left, right = contract
        dims = f"lhs_contracting_dims={{{left}}}, rhs_contracting_dims={{{right}}}"
        shape = (a.shape[1 - left], b.shape[1 - right])
        return self._add("dot", f"%{a.name}, %{b.name}", shape, dims)

    def _add(self, opcode: str, arguments: str, shape: tuple[int, int], more: str = "") -> _Value:
        value = _Value(f"{opcode}.{len(self.lines)}", shape)
        tail = f", {more}" if more else ""
        self.lines.append(f"%{value.name} = {_type(value)} {opcode}({arguments}){tail}")
        return value

    def text(self, outputs: list[_Value], donated: list[int]) -> str:
        """The module's text; output k takes the buffer of parameter number donated[k]."""
        aliases = ", ".join(f"{{{k}}}: ({p}, {{}}, may-alias)" for k, p in enumerate(donated))
        names = ", ".join(f"%{o.name}" for o in outputs)
        types = ", ".join(map(_type, outputs))
        return "\n".join(
            [
                f"HloModule train_step, input_output_alias={{ {aliases} }}",
                "ENTRY %main {",
                *self.lines,
                f"ROOT %outputs = ({types}) tuple({names})",
                "}",
            ]
        )


def _type(value: _Value) -> str:
    return f"f32[{value.shape[0]},{value.shape[1]}]"


def train_step(layers: int, *, tokens: int = 32, width: int = 128) -> bytes:
    """A transformer's train step with Adam and donated state, as a scheduled HloModuleProto.

    Attention is per token, so that all activations are matrices; about 200 instructions a layer.
    Instructions stand in program order: forward, backward, all updates, which is also the
    module's schedule.

    Args:
      layers: how many. tokens, width: rows and columns of an activation.
    """
    if layers < 1:
        raise InputError(f"layers={layers} must be positive")
    step = _Step()
    shapes = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
    state = [
        [[step.parameter(shape) for _ in range(_STATE)] for shape in shapes] for _ in range(layers)
    ]
    x = step.parameter((tokens, width))
    target = step.parameter((tokens, width))
    for weights in state:
        x = _layer(step, x, [w for w, _, _ in weights])
    gradients = step.backward(step.apply("subtract", x, target))
    outputs = [
        new
        for weights in state
        for w, m, v in weights
        for new in _adam(step, w, m, v, gradients[w.name])
    ]
    donated = list(range(len(outputs)))
    return with_program_order(from_hlo_text(step.text(outputs, donated)))


def _layer(step: _Step, x: _Value, weights: list[_Value]) -> _Value:
    """Gated attention and a perceptron, each with a residual connection."""
    q, k, v, out, up, down = weights
    f = step.forward
    normal = f("multiply", x, f("tanh", x))
    query, key, value = f("dot", normal, q), f("dot", normal, k), f("dot", normal, v)
    scores = f("tanh", f("multiply", query, key))
    mixed = f("multiply", f("multiply", scores, scores), value)
    gate = f("tanh", f("add", mixed, normal))
    x = f("add", x, f("dot", f("multiply", mixed, gate), out))
    normal = f("multiply", x, f("tanh", x))
    hidden = f("dot", normal, up)
    cube = f("multiply", hidden, f("multiply", hidden, hidden))
    active = f("multiply", hidden, f("tanh", f("add", hidden, cube)))
    active = f("multiply", active, f("tanh", active))
    return f("add", x, f("dot", active, down))


def _adam(step: _Step, w: _Value, m: _Value, v: _Value, g: _Value) -> list[_Value]:
    """The new weight and moments; constants are left out."""
    a = step.apply
    new_m = a("add", a("multiply", m, m), a("multiply", g, m))
    square = a("multiply", g, g)
    new_v = a("add", a("multiply", v, v), a("multiply", square, v))
    rate = a("divide", new_m, a("sqrt", a("add", new_v, new_v)))
    decayed = a("add", rate, a("multiply", w, rate))
    return [a("subtract", w, a("multiply", decayed, decayed)), new_m, new_v]


def random_graph(seed: int, most: int = 8) -> TensorGraph:
    """A random graph of up to `most` operators: arguments, donation, in-place pairs, control edges.

    Operator ids are a topological order.
    """
    random = np.random.default_rng(seed)
    n = int(random.integers(2, most + 1))
    arguments = int(random.integers(0, min(2, n - 1) + 1))
    operators, tensors = [], []
    for v in range(n):
        free = v < arguments
        transient = 0 if free else int(random.choice([0, 0, 0, 3]))
        operators.append(Operator(f"op{v}", "parameter" if free else "fusion", transient, free))
        for k in range(1 if free else int(random.integers(0, 3))):
            later = np.arange(v + 1, n)
            sinks = random.choice(later, min(int(random.integers(0, 4)), len(later)), replace=False)
            tensors.append(
                Tensor(
                    f"op{v}{{{k}}}",
                    int(random.integers(0, 7)),
                    v,
                    tuple(sorted(sinks.tolist())),
                    len(tensors),
                    live_in=free,
                    live_out=bool(random.random() < 0.2),
                )
            )
    alias_edges = _reuse_buffers(tensors, random)
    inplace = [
        (b, a)
        for b, out in enumerate(tensors)
        for a, dying in enumerate(tensors)
        if out.source in dying.sinks and out.bytes == dying.bytes and random.random() < 0.5
    ]
    upward = [(u, v) for u in range(n) for v in range(u + 1, n) if random.random() < 0.1]
    graph = TensorGraph(
        f"random{seed}",
        tuple(operators),
        tuple(tensors),
        tuple(upward),
        tuple(sorted(alias_edges)),
        tuple(inplace),
    )
    graph.validate()
    return graph


def _reuse_buffers(tensors: list[Tensor], random: np.random.Generator) -> set[tuple[int, int]]:
    """Gives some tensors the buffer of an earlier one; returns the precedence that this needs."""
    edges: set[tuple[int, int]] = set()
    continued: set[int] = set()
    for b, late in enumerate(tensors):
        if late.live_in or random.random() < 0.5:
            continue
        for a, early in enumerate(tensors[:b]):
            readers = {*early.sinks, early.source}
            fits = max(readers) <= late.source and early.source < late.source
            if fits and a not in continued and not early.live_out:
                continued.add(a)
                edges |= {(u, late.source) for u in readers if u != late.source}
                tensors[b] = dataclasses.replace(late, buffer=early.buffer)
                break
    return edges


def brute_force(graph: TensorGraph) -> int:
    """The least lifetime peak in bytes, by trying every order."""
    return min(lifetime_peak(graph, order) for order in all_orders(graph))


def all_orders(graph: TensorGraph) -> Iterator[list[int]]:
    """Every topological order."""
    before = [set(b) for b in graph.predecessors]

    def extend(order: list[int], done: set[int]) -> Iterator[list[int]]:
        if len(order) == len(before):
            yield order
        for v, needs in enumerate(before):
            if v not in done and needs <= done:
                yield from extend([*order, v], done | {v})

    return extend([], set())
