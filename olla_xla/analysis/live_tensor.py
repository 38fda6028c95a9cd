"""One tensor, or unused part, in memory at one step of a schedule, and where it comes from."""

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from hlo.module import Instruction
from hlo.values import Dataflow, Value
from olla_xla.analysis.arguments import arguments
from olla_xla.analysis.categories import categories
from olla_xla.analysis.category import Category
from olla_xla.analysis.op_names import module_path
from olla_xla.analysis.origins import Origin, Origins


@dataclasses.dataclass(frozen=True)
class LiveTensor:
    """One tensor in memory at some step, or a part of an allocation that nothing uses.

    Attributes:
      name: the instruction that makes it, with a tuple index when it has one; "" for unused memory.
      bytes: its size. category: its role in a train step.
      shape: such as "f32[8,128]"; "" for unused memory.
      operator: what makes it: an HLO opcode, with a fusion's kind or a custom call's target.
      op_name: JAX's name of the operation that makes it, or "".
      module: the model modules that the op name leads through, such as "ResNet/Conv_0"; where it
        names none, the layers' classes or the functions in the call stack; or "".
      argument: the path of the argument that it is, or whose memory it has; or "".
      line: "file:line" of the step's own code, or a library's, that makes or first reads it; or "".
      caller: "file:line" of the user's code, where `line` is in an installed package; or "".
      chain: the calls from `caller` to `line`, each "file:line function".
      via: how `line` was found, such as "read by NAME"; "" if it is this tensor's own.
      why: why there is no line, or "".
      start, stop: half-open steps of the schedule at which it has memory; of a bound, operators.
      holder: the last instruction that reads it, as "fusion.7"; "" if none, or it lives to the end.
      holder_line: the source line of `holder`, or "".
      padding: bytes of it that only fill whole tiles; none but on a TPU.
      tighter: the same dimensions in the order with the least padding, such as "f32[128,3]"; "" if
        that is no better. tighter_bytes: its size with padding.
    """

    name: str
    bytes: int
    category: Category
    shape: str = ""
    operator: str = ""
    op_name: str = ""
    module: str = ""
    argument: str = ""
    line: str = ""
    via: str = ""
    why: str = ""
    start: int = 0
    stop: int = 0
    holder: str = ""
    holder_line: str = ""
    caller: str = ""
    chain: tuple[str, ...] = ()
    padding: int = 0
    tighter: str = ""
    tighter_bytes: int = 0

    @property
    def is_found(self) -> bool:
        """Whether the source line, or the argument, that the tensor comes from is known."""
        return bool(self.line or self.argument)

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument of the step, not an output in an argument's memory."""
        return self.operator == "parameter" and bool(self.argument)

    def to_dict(self) -> dict[str, Any]:
        """Returns the tensor's fields by name, as a dict for JSON."""
        return {**dataclasses.asdict(self), "category": str(self.category)}


def by_category(tensors: Iterable[LiveTensor]) -> dict[Category, int]:
    """Returns category that occurs -> bytes of its tensors, in the order of `Category`."""
    sums: collections.Counter[Category] = collections.Counter()
    for tensor in tensors:
        sums[tensor.category] += tensor.bytes
    return {category: sums[category] for category in Category if category in sums}


class Describer:
    """Describes the values of one module: category, source line, argument, model module.

    Args:
      dataflow: the module's values. target: "cpu", "cuda" or "tpu".

    Attributes:
      arguments: of the module. paths: (parameter number, index) -> path of that argument.
    """

    def __init__(self, dataflow: Dataflow, target: str) -> None:
        self._origins = Origins(dataflow)
        self.arguments = arguments(dataflow)
        self._category = categories(dataflow, self._origins, self.arguments, target)
        self._paths = {a.value: a.path for a in self.arguments}
        self._by_buffer = {dataflow.values[a.value.id].buffer: a.path for a in self.arguments}
        self.paths = {(a.number, a.index): a.path for a in self.arguments}

    def category(self, value: Value) -> Category:
        """Returns the category of a value: its role in a train step."""
        return self._category(value)

    def origin(self, value: Value) -> Origin:
        """Returns the JAX op name and source line of the operation that makes a value."""
        return self._origins.of(value)

    def maker(self, i: Instruction) -> Origin:
        """Returns the JAX op name and source line of an instruction."""
        return self._origins.at(i)

    def line(self, i: Instruction) -> str:
        """Returns the "file:line" of the source that an instruction comes from, or ""."""
        return self.maker(i).line

    def layer(self, origin: Origin) -> str:
        """Returns the model modules that an origin names, such as "ResNet/Conv_0", or ""."""
        return module_path(origin.op_name) or origin.layer

    def argument(self, value: Value) -> str:
        """Returns the path of the argument that a value is, or as an output replaces; or ""."""
        if value in self._paths:
            return self._paths[value]
        return self._by_buffer.get(value.buffer, "") if value.live_out else ""

    def tensor(self, value: Value, span: tuple[int, int], last: Instruction | None) -> LiveTensor:
        """Describes a value in memory in steps [span[0], span[1]), last read by `last` if any."""
        origin, argument = self.origin(value), self.argument(value)
        why = origin.why
        if value.shape.is_tuple:
            why = "a table of pointers to the elements of a tuple"
        padding = padding_of(value)
        return LiveTensor(
            name=value.name,
            bytes=value.bytes,
            category=self.category(value),
            shape=value.shape.text if len(value.shape.text) < 80 else value.shape.text[:77] + "...",
            operator=operator_kind(value.instruction),
            op_name="" if value in self._paths else origin.op_name,
            module="" if value in self._paths else self.layer(origin),
            argument=argument,
            line=origin.line,
            via=origin.via,
            why="" if origin.line else why,
            start=span[0],
            stop=span[1],
            holder="" if last is None else last.name,
            holder_line="" if last is None else self.line(last),
            caller=origin.caller,
            chain=origin.chain,
            padding=padding.bytes,
            tighter=padding.tighter,
            tighter_bytes=padding.tighter_bytes,
        )


class Padding(NamedTuple):
    """The bytes that a tensor takes beyond its elements, and a shape that would take fewer.

    Attributes:
      bytes: that only fill whole tiles; none but on a TPU.
      tighter: the same dimensions in the order with the least padding, such as "f32[128,3]"; ""
        if that is no better. tighter_bytes: its size with padding, or 0.
    """

    bytes: int
    tighter: str
    tighter_bytes: int


def padding_of(value: Value) -> Padding:
    """The bytes that pad a value to whole tiles of a TPU, and the order of dimensions with fewest.
    Both sizes are 0 where there are no tiles. If no other order takes fewer bytes, `tighter` is ""
    and `tighter_bytes` 0.
    """
    shape = value.shape
    if not shape.tiles:
        return Padding(0, "", 0)
    padding = max(value.bytes - shape.unpadded_bytes, 0)
    size, order = shape.least_padded()
    if size == shape.bytes:
        return Padding(padding, "", 0)
    tighter = f"{shape.dtype}[{','.join(str(shape.dimensions[d]) for d in order)}]"
    return Padding(padding, tighter, size)


def operator_kind(i: Instruction) -> str:
    """What an instruction is, for reports: its opcode, "loop fusion", or a custom call's target."""
    if i.opcode == "fusion" and i.fusion_kind:
        return f"{i.fusion_kind.removeprefix('k').lower()} fusion"
    return i.custom_call_target or i.opcode
