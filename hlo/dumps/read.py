"""Reads scheduled modules from files of HLO protos, HLO text or StableHLO.

Files may be compressed by gzip.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hlo import xla_pb2
from hlo.dumps.calls import flatten, is_shared
from hlo.files import read_regular, unpacked
from hlo.gc_pause import without_collection
from hlo.graph import MutableComputation, MutableModule
from hlo.instructions import instruction
from hlo.module import HloError, Module, module_from_bytes, module_from_proto, parse_module_proto
from hlo.rewrite.apart import CopySite, conflicts
from hlo.shapes import TUPLE, ShapeIndex
from hlo.text import from_hlo_text, from_stablehlo
from hlo.values import Dataflow, Value, analyse


def read_module(path: str | Path, target: str = "cpu") -> bytes:
    """Reads a file as `read_view` does; returns the scheduled module as a serialized proto."""
    return read_view(path, target).data


def read_view(path: str | Path, target: str = "cpu") -> Module:
    """Reads a scheduled module from a file of HLO text, StableHLO or an HLO proto.

    A module without a schedule (StableHLO, HLO before scheduling) is made `runnable`, and runs in
    program order. Raises HloError if the file cannot be read or is none of these.

    Args:
      path: of the file. target: "cpu" or "cuda", what the module is for.
    """
    data = read_file(path)
    try:
        return _in_program_order(runnable(to_hlo(data), target))
    except HloError as error:
        raise HloError(f"{path}: {error}") from error
    except RecursionError as error:
        raise HloError(f"{path}: computations call each other too deeply") from error


def read_file(path: str | Path) -> str | bytes:
    """Reads and decompresses a file: str if it is text, else bytes. Raises HloError."""
    try:
        data = unpacked(read_regular(path))
    except OSError as error:
        raise HloError(f"cannot read {path}: {error.strerror or error}") from error
    if not data:
        raise HloError(f"{path} is empty; dump the module again")
    text = _text(data)
    return data if text is None else text


def to_hlo(data: str | bytes) -> bytes:
    """Converts HLO text, StableHLO text or an HLO proto to a serialized HloModuleProto.
    Raises HloError if `data` is none of these.
    """
    if isinstance(data, bytes):
        return parse_module_proto(data).SerializeToString(deterministic=True)
    if data.lstrip().startswith("HloModule"):
        return from_hlo_text(data)
    if "module" in data and ("stablehlo" in data or "func.func" in data):
        return from_stablehlo(data)
    raise HloError("not HLO text, StableHLO or an HLO proto; pass a dump of XLA's")


def _text(data: bytes) -> str | None:
    """Decodes UTF-8 text; None if the bytes are no such text, or have control characters."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if any(c < " " and c not in "\t\n\r\f" for c in text) else text


def runnable(module: bytes, target: str = "cpu") -> bytes:
    """Brings a module into the form that XLA's own pipeline gives it before it schedules.

    Each computation that control flow runs is called from one place (`hlo.dumps.calls`). If the
    module has no schedule, values that must have one buffer are copied where they are alive
    together (`insert_copies`). A scheduled module without shared calls is returned as it came.
    Raises HloError if the module cannot be read.

    Args:
      module: serialized. target: "cpu" or "cuda", whose in-place rules say which values these are.
    """
    proto = parse_module_proto(module)
    scheduled = proto.entry_computation_id in proto.schedule.sequences
    if scheduled and not is_shared(proto):
        return module
    module_from_proto(proto)  # refuses what refers to nothing
    with without_collection():
        flatten(proto)
        if not scheduled:
            insert_copies(proto, target)
    return proto.SerializeToString(deterministic=True)


def with_program_order(module: bytes) -> bytes:
    """Returns a serialized module with a schedule, by instruction id, where one was missing."""
    return _in_program_order(module).data


def _in_program_order(module: bytes) -> Module:
    view = module_from_bytes(module)
    missing = [c for c in view.control_computations if c.schedule is None]
    if not missing:
        return view
    proto = parse_module_proto(module)
    for computation in missing:
        # Ids are given in program order, so operands precede their users.
        ids = sorted(i.id for i in computation.instructions)
        proto.schedule.sequences[computation.id].CopyFrom(
            xla_pb2.HloScheduleProto.InstructionSequence(instruction_ids=ids)
        )
    return module_from_bytes(proto.SerializeToString(deterministic=True))


# Before XLA's copy insertion one value may be a loop's first state, a donated argument and what an
# update overwrites, and be read later. XLA copies wherever that might be, and removes what it can;
# here values join one buffer by one; of two alive at once in program order one is copied.

_Instruction = xla_pb2.HloInstructionProto

_ROUNDS = 16
"""Copies can be in each other's way at first (two loop states that change places)."""


def insert_copies(proto: xla_pb2.HloModuleProto, target: str) -> None:
    """Adds a copy wherever two values that must share a buffer are live at the same time.
    Raises HloError if copies are still missing after 16 rounds.

    Args:
      proto: a module without a schedule, changed in place; instructions run as they are listed.
        Each computation that control flow runs must have one caller (`hlo.dumps.calls.flatten`).
      target: "cpu" or "cuda", whose in-place rules count: on a GPU all-reduces are in place.
    """
    for _ in range(_ROUNDS):
        module = module_from_proto(proto)
        dataflow = analyse(module, target)
        sites = [*_doubtful_outputs(dataflow)] or conflicts(dataflow, target)
        if not sites:
            return
        wanted: dict[int, dict[tuple[int, int], list[ShapeIndex]]] = {}
        for site in sites:
            where = (-1 if site.user is None else site.user.id, site.operand)
            wanted.setdefault(site.computation.id, {}).setdefault(where, []).append(site.index)
        changed = MutableModule(proto)
        for number, places in wanted.items():
            _Copier(changed, changed.body(number)).write(places)
        changed.finish()
        for number in wanted:
            _renumber(changed.computations[number])
    raise HloError("it is not known which values share a buffer; pass the compiled module instead")


def _doubtful_outputs(dataflow: Dataflow) -> Iterator[CopySite]:
    """Yields results of the entry that need a copy to have a buffer of their own.
    Those are constants, arguments that are not donated for them, and values returned twice.
    """
    module = dataflow.module
    root = module.entry.root
    assert root is not None
    seen: set[Value] = set()
    for index, shape in root.shape.indices():
        value = dataflow.at[root, index]
        if shape.is_tuple:
            continue
        i = value.instruction
        own = module.aliases.get(index) == (i.parameter_number, value.index)
        argument = i.opcode == "parameter" and i.computation is module.entry
        if value in seen or i.opcode == "constant" or (argument and not own):
            yield CopySite(value, value, module.entry, None, 0, index)
        seen.add(value)


class _Copier:
    """Adds copies to one computation."""

    def __init__(self, module: MutableModule, computation: MutableComputation) -> None:
        self._names = module.names
        self._computation = computation

    def write(self, places: dict[tuple[int, int], list[ShapeIndex]]) -> None:
        """Makes instructions read copies of parts of their operands; removes unread tuples and
        get-tuple-elements.

        Args:
          places: (reader's id, operand number) -> shape indices to copy; id -1 is for the root.
        """
        computation = self._computation
        for i in computation.instructions():
            for number, operand in enumerate(computation.operands(i)):
                if (i.id, number) in places:
                    i.operand_ids[number] = self._copied(operand, places[i.id, number], i).id
        if (-1, 0) in places:
            root = self._copied(computation.root, places[-1, 0], None)
            computation.computation.root_id = root.id
        handing = ("tuple", "get-tuple-element")
        computation.sweep(computation.instructions(), handing)

    def _copied(
        self, old: _Instruction, indices: Sequence[ShapeIndex], before: _Instruction | None
    ) -> _Instruction:
        """Returns a value with copies of the parts of `old` at `indices`, and with its other parts.
        Instructions are added before `before`; None: last.
        """
        if old.shape.element_type != TUPLE:
            return self._add("copy", old.shape, [old], old, before)
        elements = []
        for k, shape in enumerate(old.shape.tuple_shapes):
            inner = [index[1:] for index in indices if index[0] == k]
            if old.opcode == "tuple":
                element = self._computation.operands(old)[k]
            else:
                element = self._add("get-tuple-element", shape, [old], old, before, k)
            elements.append(self._copied(element, inner, before) if inner else element)
        return self._add("tuple", old.shape, elements, old, before)

    def _add(
        self,
        opcode: str,
        shape: xla_pb2.ShapeProto,
        operands: Sequence[_Instruction],
        origin: _Instruction,
        before: _Instruction | None,
        element: int = 0,
    ) -> _Instruction:
        stem = origin.name if origin.opcode == opcode else f"{opcode}.{origin.name}"
        new = instruction(opcode, self._names.new(stem), shape, operands, tuple_index=element)
        new.metadata.CopyFrom(origin.metadata)
        return self._computation.add(new, before=before)


def _renumber(computation: xla_pb2.HloComputationProto) -> None:
    """Gives the instructions of a computation new ids, in the order in which they are listed."""
    new = {i.id: computation.id << 32 | k for k, i in enumerate(computation.instructions)}
    for i in computation.instructions:
        i.id = new[i.id]
        i.operand_ids[:] = [new[k] for k in i.operand_ids]
        i.control_predecessor_ids[:] = [new[k] for k in i.control_predecessor_ids]
    computation.root_id = new[computation.root_id]
