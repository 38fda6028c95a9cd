"""Predicted time of a module on a GPU's streams: in order, except for asynchronous operations.

By default XLA issues thunks to one stream in their order (ThunkExecutor). In command buffers each
command follows the last one that is no start (CommandExecutor, mode LHS). So overwriting memory
that was read before costs nothing, however buffers share memory.

Only what has a start and a done overlaps with other work: transfers between devices on a stream
that all of them share, and so copies to the host's memory and copies from it; anything else on one
of its own (ExecutionStreamAssignment). Each of these three streams has a link that nothing else
uses. Anything else takes memory bandwidth and cores from what runs meanwhile, so that only its
start overhead is hidden.
"""

from collections.abc import Iterable, Mapping, Sequence, Set

from hlo.backend import platform
from hlo.module import Computation, Instruction, Module
from hlo.shapes import Shape
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.cost.work import trips

_TRANSFERS = (
    "all-gather all-reduce all-to-all collective-broadcast collective-permute ragged-all-to-all "
    "reduce-scatter send recv"
).split()


def path_seconds(
    module: Module, cost: CostModel, order: Mapping[str, Sequence[str]] | None = None
) -> float:
    """Predicted seconds of one run of a scheduled module on a GPU's streams. `order`: computation
    name -> instruction names in execution order, instead of the module's own; names that the module
    does not have are passed over.
    """
    return _seconds(module.entry, cost, order or {})


def run_seconds(
    module: Module, cost: CostModel, order: Mapping[str, Sequence[str]] | None = None
) -> float:
    """Predicted seconds of one run: by `path_seconds`, but on a CPU the sum over operators."""
    beside = platform(cost.target).runs_beside
    return path_seconds(module, cost, order) if beside else cost.step_seconds(module)


def is_transfer(opcode: str) -> bool:
    """Whether an opcode is a transfer between devices, or the start of one."""
    return opcode.removesuffix("-start") in _TRANSFERS


def transfers(sequence: Iterable[Instruction]) -> list[tuple[Instruction, Instruction]]:
    """(done, start) pairs of the asynchronous transfers in a sequence, in the order of dones."""
    pairs = ((i, _start(i)) for i in sequence if i.opcode.endswith("-done"))
    return [(done, start) for done, start in pairs if _is_sent(start)]


def alone_seconds(
    i: Instruction, cost: CostModel, order: Mapping[str, Sequence[str]] | None = None
) -> float:
    """Predicts the seconds of an instruction by itself, with all iterations or the longest branch
    that it runs, in the orders that `order` has (as for `path_seconds`) or else their own.
    """
    inside = [_seconds(c, cost, order or {}) for c in i.called_control]
    if i.opcode == "conditional":
        return max(inside)
    return trips(i) * sum(inside) if inside else cost.seconds(i)


def host_waits(computation: Computation, cost: CostModel) -> float:
    """The part, 0 to 1, of the time of a computation's copies to and from the host for which it
    waits, as no other work hides it; 0 if there are none.
    """
    starts = (i for i in computation.instructions if i.opcode in ("async-start", "copy-start"))
    copies = frozenset(i for i in starts if is_hosted(i))
    own = sum(alone_seconds(i, cost) for i in copies)
    waited = _seconds(computation, cost, {}) - _seconds(computation, cost, {}, copies)
    return min(max(waited / own, 0.0), 1.0) if own else 0.0


def is_hosted(start: Instruction) -> bool:
    """Whether the start of an asynchronous operation copies to or from the host's memory."""
    return _link(start).endswith("the host")


class Streams:
    """Simulates a GPU's streams: a main one, and others that run beside it. `now` is when, in
    seconds, all that was issued to the main stream has ended.
    """

    def __init__(self, start_seconds: float) -> None:
        self.now = 0.0
        self._start_seconds = start_seconds
        self._free: dict[str, float] = {}  # link -> when its last transfer has ended
        self._ends: dict[object, float] = {}
        self._beside: dict[object, tuple[float, float]] = {}

    def run(self, seconds: float) -> None:
        """Issues an operation of `seconds` to the simulated main stream."""
        self.now += seconds

    def start(self, key: object, seconds: float, *, link: str = "") -> None:
        """Starts an operation beside the main stream, known to `done` by `key`. Those over one
        `link` run one after the other.
        """
        if link:
            self._free[link] = max(self.now, self._free.get(link, 0.0)) + seconds
            self._ends[key] = self._free[link]
        else:
            self._beside[key] = self.now, seconds

    def done(self, key: object) -> None:
        """Makes the main stream wait for the end of the operation that `start` began as `key`."""
        if key in self._ends:
            self.now = max(self.now, self._ends.pop(key))
        elif key in self._beside:
            begun, seconds = self._beside.pop(key)
            starting = min(self._start_seconds, seconds)
            self.now = max(self.now, begun + starting) + seconds - starting

    def finish(self) -> float:
        """Makes the main stream wait for all that was started; returns that time, in seconds."""
        for key in (*self._ends, *self._beside):
            self.done(key)
        return self.now


def _seconds(
    computation: Computation,
    cost: CostModel,
    order: Mapping[str, Sequence[str]],
    free: Set[Instruction] = frozenset(),
) -> float:
    sequence = _sequence(computation, order)
    started = {_start(i) for i in sequence if i.opcode.endswith("-done")}
    streams = Streams(cost.device.start_seconds)
    for i in sequence:
        if i.opcode.endswith("-done"):
            streams.done(_start(i))
            continue
        seconds = 0.0 if i in free else alone_seconds(i, cost, order)
        if i in started:
            streams.start(i, seconds, link=_link(i))
        else:
            streams.run(seconds)
    return streams.finish()


def _sequence(
    computation: Computation, order: Mapping[str, Sequence[str]]
) -> Iterable[Instruction]:
    names = order.get(computation.name)
    if names is None:
        return computation.schedule or tuple(computation.instructions)
    own = {i.name: i for i in computation.instructions}
    return [own[name] for name in names if name in own]


def _is_sent(start: Instruction) -> bool:
    inside = (k for c in start.called_control for k in c.instructions)
    return is_transfer(start.opcode) or any(is_transfer(k.opcode) for k in inside)


def _link(start: Instruction) -> str:
    """What an asynchronous operation moves data over: "devices" (to others), "to the host", "from
    the host", or "" for the device's own memory bus.
    """
    if _is_sent(start):
        return "devices"
    # A start's shape is (operands, results, context), that of a copy (result, operand, context).
    results = start.shape.at((0 if start.opcode == "copy-start" else 1,))
    if _on_host(results):
        return "to the host"
    return "from the host" if any(_on_host(o.shape) for o in start.operands) else ""


def _on_host(shape: Shape) -> bool:
    return any(part.is_host for _, part in shape.indices())


def _start(done: Instruction) -> Instruction:
    """The start of an asynchronous operation's done, through updates, tuples and bitcasts."""
    return done.operands[0].behind("async-update", "get-tuple-element", "bitcast")
