"""An unfused HLO module as an eager framework would run it: one flat tensor graph.

Calls are inlined. Reshapes, transposes, slices and broadcasts are views, as in frameworks with
strided arrays: they hold on to their base and take no memory. Constants take none either. A loop or
conditional is one operator, whose inner temporaries are a tensor that lives only while it runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Sequence

from hlo.inplace import is_elementwise_on
from hlo.module import Computation, Instruction, Module
from hlo.shapes import ShapeIndex
from olla_xla.errors import InputError
from olla_xla.problem.graph import Operator, Tensor, TensorGraph

_VIEWS = frozenset("reshape broadcast transpose slice bitcast".split())
_FORWARDING = frozenset("tuple get-tuple-element opt-barrier optimization-barrier domain".split())
_UPDATES = frozenset(("dynamic-update-slice", "scatter"))
_BACKWARD = "transpose("  # how JAX names what comes of transposing a linearized function

Reference = tuple[tuple[int, bool], ...]
"""Tensors that a value keeps alive, each with whether the value is all of it, in its own order."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A tensor graph in program order, and what of it belongs to the backward pass.

    Attributes:
      graph: operator ids are the program's order; donated arguments have their results' buffers.
      backward: ids of the operators of the backward pass, by JAX's names.
      gradients: ids of the tensors that the backward pass leaves to what follows it: the gradients
        that an optimizer in the same program reads.
    """

    graph: TensorGraph
    backward: frozenset[int]
    gradients: frozenset[int]

    @property
    def argument_bytes(self) -> int:
        """Bytes of all arguments."""
        return sum(t.bytes for t in self.graph.tensors if t.live_in)

    @property
    def output_bytes(self) -> int:
        """Bytes of the results that have memory of their own: no argument's."""
        held = {t.buffer for t in self.graph.tensors if t.live_in}
        return sum(t.bytes for t in self.graph.tensors if t.live_out and t.buffer not in held)


def program(module: Module) -> Program:
    """The program of an unfused module, in its schedule's order or else in program order."""
    flat = _Flat()
    entry = module.entry
    arguments = [flat.define_all(p, flat.operator(p)) for p in entry.parameters]
    for values in arguments:
        for reference in values.values():
            flat.inputs.update(t for t, _ in reference)
    result = flat.computation(entry, arguments, backward=False)
    outputs = {t for reference in result.values() for t, _ in reference}
    return flat.finish(module, result, arguments, outputs)


def forward_only(whole: Program) -> Program:
    """The program less its backward pass and all that depends on it or serves it alone.

    Results that replace arguments, such as a count of steps, go too, and arguments that serve
    nothing else, such as an optimizer's state.

    Raises InputError if no result is left: the program returns gradients only.
    """
    graph = whole.graph
    reads = _reads(graph)
    tainted = set(whole.backward)
    for v in range(len(graph.operators)):
        if any(graph.tensors[t].source in tainted for t in reads[v]):
            tainted.add(v)
    given = {t.buffer for t in graph.tensors if t.live_in}
    kept = [
        t for t in graph.tensors
        if t.live_out and t.source not in tainted and t.buffer not in given
    ]  # fmt: skip
    if not kept:
        raise InputError("no result is left without the backward pass; estimate --mode=training")
    needed = set()
    stack = [t.source for t in kept]
    while stack:
        v = stack.pop()
        if v not in needed:
            needed.add(v)
            stack += [graph.tensors[t].source for t in reads[v]]
    return _restricted(whole, sorted(needed))


def _restricted(whole: Program, operators: Sequence[int]) -> Program:
    """The program of some operators, closed under predecessors; arguments are never overwritten."""
    graph = whole.graph
    number = {v: k for k, v in enumerate(operators)}
    ids, tensors = {}, []
    for old, t in enumerate(graph.tensors):
        if t.source in number:
            ids[old] = len(tensors)
            sinks = tuple(number[v] for v in t.sinks if v in number)
            live_out = t.live_out or t.live_in
            tensors.append(
                dataclasses.replace(
                    t, source=number[t.source], sinks=sinks, buffer=len(tensors), live_out=live_out
                )
            )
    inplace = tuple((ids[b], ids[a]) for b, a in graph.inplace if b in ids and a in ids)
    graph = TensorGraph(
        graph.name,
        tuple(graph.operators[v] for v in operators),
        tuple(tensors),
        inplace=tuple((b, a) for b, a in inplace if not tensors[a].live_out),
    )
    return Program(graph, frozenset(), frozenset())


def _reads(graph: TensorGraph) -> list[list[int]]:
    reads: list[list[int]] = [[] for _ in graph.operators]
    for number, tensor in enumerate(graph.tensors):
        for v in tensor.sinks:
            reads[v].append(number)
    return reads


ValueMap = dict[ShapeIndex, Reference]


class _Flat:
    """Operators and tensors of a computation with its calls inlined."""

    def __init__(self, inner: dict[Computation, int] | None = None) -> None:
        self.inner: dict[Computation, int] = {} if inner is None else inner
        self.operators: list[Operator] = []
        self.backward: set[int] = set()
        self.inputs: set[int] = set()
        self.names: list[str] = []
        self.bytes: list[int] = []
        self.sources: list[int] = []
        self.sinks: list[list[int]] = []
        self.inplace: list[tuple[int, int]] = []

    def operator(self, i: Instruction) -> int:
        free = i.opcode == "parameter"
        name = f"{i.name}.{len(self.operators)}"
        self.operators.append(Operator(name, i.opcode, 0, free, i.location, i.op_name))
        return len(self.operators) - 1

    def define(self, name: str, size: int, source: int) -> int:
        self.names.append(name)
        self.bytes.append(size)
        self.sources.append(source)
        self.sinks.append([])
        return len(self.names) - 1

    def define_all(
        self, i: Instruction, source: int, without: Container[ShapeIndex] = ()
    ) -> ValueMap:
        """A tensor of its own for every array in the result of `i`, less those at `without`."""
        values: ValueMap = {}
        for index, shape in i.shape.indices():
            if not shape.is_tuple and index not in without:
                suffix = f"{{{','.join(map(str, index))}}}" if index else ""
                name = self.operators[source].name + suffix
                values[index] = ((self.define(name, shape.bytes, source), True),)
        return values

    def read(self, operator: int, values: ValueMap) -> None:
        for reference in values.values():
            for tensor, _ in reference:
                sinks = self.sinks[tensor]
                if not sinks or sinks[-1] != operator:
                    sinks.append(operator)

    def computation(
        self, c: Computation, arguments: Sequence[ValueMap], backward: bool
    ) -> ValueMap:
        """Appends a computation's instructions; the references of its result."""
        maps: dict[Instruction, ValueMap] = dict(zip(c.parameters, arguments, strict=True))
        for i in c.schedule or sorted(c.instructions, key=lambda i: i.id):
            if i.opcode != "parameter":
                maps[i] = self._instruction(i, [maps[o] for o in i.operands], backward)
        assert c.root is not None
        return maps[c.root]

    def _instruction(self, i: Instruction, values: list[ValueMap], backward: bool) -> ValueMap:
        if i.opcode == "constant":
            return {(): ()}
        if i.opcode in _FORWARDING:
            return _forwarded(i, values)
        if i.opcode in _VIEWS:
            whole = i.opcode in ("reshape", "bitcast")
            return {(): tuple((t, plain and whole) for t, plain in values[0][()])}
        backward = backward or _BACKWARD in i.op_name
        if i.opcode == "call":
            return self.computation(i.called[0], values, backward)
        operator = self.operator(i)
        if backward:
            self.backward.add(operator)
        for value in values:
            self.read(operator, value)
        size = max((self._inner_bytes(c) for c in i.called_control), default=0)
        if size:
            self.define(f"{self.operators[operator].name}/inner", size, operator)
        if i.opcode == "while":
            return self._loop(i, values[0], operator)
        results = self.define_all(i, operator)
        self._share(i, values, results)
        return results

    def _loop(self, i: Instruction, state: ValueMap, operator: int) -> ValueMap:
        """Forwards elements that the body does not change; others are new, in place if possible."""
        body = i.called[0]
        root, parameter = body.root, body.parameters[0]
        assert root is not None
        kept = {
            (k,)
            for k, leaf in enumerate(root.operands if root.opcode == "tuple" else ())
            if leaf.opcode == "get-tuple-element"
            and leaf.operands[0] is parameter
            and leaf.tuple_index == k
        }
        results = self.define_all(i, operator, without=kept)
        for index, reference in results.items():
            self._pair(reference, state[index])
        return {**{index: state[index] for index in kept}, **results}

    def _share(self, i: Instruction, values: list[ValueMap], results: ValueMap) -> None:
        """Notes which operands the result may overwrite."""
        if () not in results:
            return
        views = {t for value in values for r in value.values() for t, plain in r if not plain}
        for k, value in enumerate(values):
            may = k == 0 if i.opcode in _UPDATES else is_elementwise_on(i, k)
            if may and not any(t in views for t, _ in value.get((), ())):
                self._pair(results[()], value.get((), ()))

    def _pair(self, result: Reference, operand: Reference) -> None:
        if len(result) == 1 and len(operand) == 1 and operand[0][1]:
            b, a = result[0][0], operand[0][0]
            if self.bytes[a] == self.bytes[b] and (b, a) not in self.inplace[-2:]:
                self.inplace.append((b, a))

    def _inner_bytes(self, c: Computation) -> int:
        """Peak of what a called computation allocates beyond its parameters, in program order."""
        if c not in self.inner:
            flat = _Flat(self.inner)
            arguments = [flat.define_all(p, flat.operator(p)) for p in c.parameters]
            given = len(flat.names)
            result = flat.computation(c, arguments, backward=False)
            kept = {t for reference in result.values() for t, _ in reference}
            n = len(flat.operators)
            change = [0] * (n + 1)
            for t in range(given, len(flat.names)):
                last = n - 1 if t in kept else max([flat.sources[t], *flat.sinks[t]])
                change[flat.sources[t]] += flat.bytes[t]
                change[last + 1] -= flat.bytes[t]
            self.inner[c] = max(_running(change))
        return self.inner[c]

    def finish(
        self, module: Module, result: ValueMap, arguments: list[ValueMap], outputs: set[int]
    ) -> Program:
        """The graph, with donated arguments and the results that replace them in one buffer."""
        buffer = list(range(len(self.names)))
        donated = set()
        alias_edges = []
        for index, (number, inner) in module.aliases.items():
            ((argument, _),) = arguments[number][inner]
            donated.add(argument)
            reference = result.get(index, ())
            if len(reference) != 1:
                continue
            tensor, plain = reference[0]
            last = max(self.sinks[argument], default=self.sources[argument])
            source = self.sources[tensor]
            fits = plain and self.bytes[tensor] == self.bytes[argument]
            if fits and tensor not in self.inputs and last <= source:
                buffer[tensor] = argument
                alias_edges += [(v, source) for v in self.sinks[argument] if v != source]
        tensors = []
        for t, name in enumerate(self.names):
            live_in = t in self.inputs
            live_out = t in outputs or (live_in and t not in donated)
            category = "argument" if live_in else "output" if t in outputs else "temporary"
            tensors.append(
                Tensor(
                    name, self.bytes[t], self.sources[t], tuple(self.sinks[t]), buffer[t],
                    live_in, live_out, category,
                )
            )  # fmt: skip
        gradients = {
            t for t, tensor in enumerate(tensors)
            if tensor.source in self.backward and tensor.category == "temporary"
            and any(v not in self.backward for v in tensor.sinks)
        }  # fmt: skip
        pairs = tuple((b, a) for b, a in self.inplace if not tensors[a].live_out)
        graph = TensorGraph(
            module.name,
            tuple(self.operators),
            tuple(tensors),
            alias_edges=tuple(dict.fromkeys(alias_edges)),
            inplace=pairs,
        )
        return Program(graph, frozenset(self.backward), frozenset(gradients))


def _forwarded(i: Instruction, values: list[ValueMap]) -> ValueMap:
    if i.opcode == "get-tuple-element":
        k = i.tuple_index
        return {index[1:]: r for index, r in values[0].items() if index[:1] == (k,)}
    if i.opcode == "tuple" or len(values) > 1:
        return {(k, *index): r for k, v in enumerate(values) for index, r in v.items()}
    return values[0]


def _running(change: Sequence[int]) -> Iterator[int]:
    total = 0
    for delta in change:
        total += delta
        yield total
