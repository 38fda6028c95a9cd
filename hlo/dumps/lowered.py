"""Reads modules dumped before XLA's pipeline, and converts them to StableHLO to be compiled.

XLA's dumps are HLO, but its clients take only StableHLO. jaxlib converts one to the other, except
for what StableHLO lacks (`copy`) and what the conversion drops (donation without an alias). Only
the first line of a module's text says how many devices it is for.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path

from hlo import xla_pb2
from hlo.dumps.read import read_file, to_hlo
from hlo.graph import MutableModule
from hlo.module import HloError, module_from_proto, parse_module_proto
from hlo.text import hlo_bindings, message, mlir_bindings

_PARTITIONED = "_spmd"
"""What XLA's partitioner adds to the name of the entry computation."""

_COUNT = {
    "partitions": re.compile(r"\bnum_partitions ?= ?(\d+)"),
    "replicas": re.compile(r"\b(?:replica_count|num_replicas) ?= ?(\d+)"),
}
_GROUPS = re.compile(
    r"\b(?:replica_groups|source_target_pairs)=(\{[\d{},]*\}|\[[\d,]+\]<=|mesh\[[^\]]*\])"
)
_TILES = re.compile(r"\bsharding=\{+(?:devices=\[([\d,]+)\]|(mesh\[[^\]]*\]))")
_MESHES = re.compile(r"#sdy\.mesh<\[([^\]]*)\]")
_SHARDY = re.compile(r"\bxla\.sdy\.|\bsharding=\{+(?:mesh\[|maximal_mesh)")
"""Shardings by the names of axes, which XLA's older partitioner does not know."""
_AXIS = re.compile(r"=(\d+)")
_PROPAGATED = re.compile(r"allow_spmd_sharding_propagation_to_(\w+)=\{([a-z,]*)\}")
_CALLBACK = "CustomSPMDPartitioning"
"""Custom calls that are partitioned by Python code of the process that made the module."""


@dataclasses.dataclass(frozen=True)
class LoweredModule:
    """A module in StableHLO that XLA has not compiled yet, and for how many devices it is.

    Attributes:
      name: the module's.
      stablehlo: text or bytecode.
      partitions, replicas: their product is the number of devices.
      is_partitioned: whether it is the program of one device; else of all devices together.
      uses_shardy: whether its shardings are Shardy's.
      propagates: by "parameters" and "output", for each whether XLA may choose its sharding.
      donors: numbers of arguments whose memory XLA may reuse, which `stablehlo` does not say.
    """

    name: str
    stablehlo: str | bytes
    partitions: int = 1
    replicas: int = 1
    is_partitioned: bool = False
    uses_shardy: bool = False
    propagates: dict[str, list[bool]] = dataclasses.field(default_factory=dict)
    donors: tuple[int, ...] = ()

    @property
    def devices(self) -> int:
        """The number of devices that the module is for: partitions times replicas."""
        return self.partitions * self.replicas


def read_lowered(path: str | Path) -> LoweredModule | None:
    """Reads a module from a file of HLO text, StableHLO or an HLO proto, also compressed by gzip.

    Returns:
      The module; None if it has a schedule, as XLA's pipeline has run.

    Raises:
      HloError: the file cannot be read, is of another kind, or cannot be compiled from a file.
    """
    data = read_file(path)
    try:
        if isinstance(data, str) and not data.lstrip().startswith("HloModule"):
            return _from_stablehlo(data)
        proto = parse_module_proto(data if isinstance(data, bytes) else to_hlo(data))
        if proto.entry_computation_id in proto.schedule.sequences:
            return None
        module_from_proto(proto)  # refuses what refers to nothing
        return _from_hlo(proto, data.lstrip() if isinstance(data, str) else _text(proto))
    except HloError as error:
        raise HloError(f"{path}: {error}") from error
    except RecursionError as error:
        raise HloError(f"{path}: computations call each other too deeply") from error


def _from_stablehlo(text: str) -> LoweredModule:
    to_hlo(text)  # refuses what XLA cannot convert
    head = text[: text.find("\n", text.find("func.func"))]
    name = re.search(r"module @([\w.$-]+)", head)
    return LoweredModule(
        name=name.group(1) if name else "module",
        stablehlo=text,
        partitions=_count("partitions", head),
        replicas=_count("replicas", head),
        uses_shardy="sdy." in text,
    )


def _from_hlo(proto: xla_pb2.HloModuleProto, text: str) -> LoweredModule:
    """Converts an unscheduled HLO module to a LoweredModule; changes `proto`.

    Args:
      proto: of the module. text: the module as text, whose first line tells its devices.
    """
    head = text[: text.find("\n")]
    is_partitioned = proto.entry_computation_name.endswith(_PARTITIONED)
    partitions, replicas = _devices(text, head)
    for computation in proto.computations:
        for i in computation.instructions:
            if i.custom_call_target == _CALLBACK and partitions > 1 and not is_partitioned:
                raise HloError(
                    f"{i.name} is partitioned by code of the process that made the module "
                    f"({_CALLBACK}), which no dump holds; dump it after XLA's partitioner"
                )
            if is_partitioned or partitions == 1:
                i.ClearField("sharding")  # of the whole, where shapes are those of a part
    _replace_copies(proto)
    return LoweredModule(
        name=proto.name,
        stablehlo=_converted(proto),
        partitions=partitions,
        replicas=replicas,
        is_partitioned=is_partitioned,
        uses_shardy=_SHARDY.search(text) is not None and not is_partitioned,
        propagates={
            what: [flag == "true" for flag in flags.split(",")]
            for what, flags in _PROPAGATED.findall(head)
        },
        donors=_donors(proto),
    )


def _text(proto: xla_pb2.HloModuleProto) -> str:
    """Prints a proto as XLA does; a missing number of partitions is derived from shardings."""
    try:
        module = hlo_bindings().HloModule.from_serialized_hlo_module_proto(
            proto.SerializeToString()
        )
        head, _, body = module.to_string().partition("\n")
    except Exception as error:
        raise HloError(f"not a module that XLA can read: {message(error)}") from error
    if "num_partitions" in head or proto.entry_computation_name.endswith(_PARTITIONED):
        return f"{head}\n{body}"
    # A proto has not the number, so shardings that nobody needs for one device must tell it.
    counts = [_product(tiles or _AXIS.findall(mesh)) for tiles, mesh in _TILES.findall(body)]
    return f"{head}, num_partitions={max(counts, default=1)}\n{body}"


def _count(what: str, head: str) -> int:
    """Reads the number of "partitions" or "replicas" in a module's first line; 1 if absent."""
    match = _COUNT[what].search(head)
    return int(match.group(1)) if match else 1


def _devices(text: str, head: str) -> tuple[int, int]:
    """Finds (partitions, replicas) of a module in its first line, or in meshes and collectives."""
    partitions, replicas = _count("partitions", head), _count("replicas", head)
    if partitions * replicas > 1:
        return partitions, replicas
    meshes = [_product(_AXIS.findall(axes)) for axes in _MESHES.findall(head)]
    partitions = max(meshes, default=1)
    for line in text.splitlines():
        for groups in _GROUPS.findall(line):
            if groups.startswith("mesh"):
                count = _product(_AXIS.findall(groups))
            elif groups.startswith("["):
                count = _product(groups[1:-3])
            else:
                count = 1 + max(map(int, re.findall(r"\d+", groups)), default=0)
            # Those without a channel are between replicas.
            if "channel_id=" in line:
                partitions = max(partitions, count)
            else:
                replicas = max(replicas, count)
    return partitions, 1 if partitions > 1 else replicas


def _product(numbers: str | Sequence[str]) -> int:
    return math.prod(map(int, numbers.split(",") if isinstance(numbers, str) else numbers))


def _replace_copies(proto: xla_pb2.HloModuleProto) -> None:
    """Replaces each `copy` by a "Sharding" custom call if it has a sharding, else by its operand.
    Before XLA has chosen layouts a copy computes nothing; its own pipeline puts in those it needs.
    """
    module = MutableModule(proto)
    for computation in proto.computations:
        body = module.body(computation.id)
        copies = [i for i in body.instructions() if i.opcode == "copy"]
        for i in copies:
            if i.HasField("sharding"):
                i.opcode, i.custom_call_target = "custom-call", "Sharding"
            else:
                body.replace(i, *body.operands(i))
        body.remove({i.id for i in copies if i.opcode == "copy"})
    module.finish()


def _donors(proto: xla_pb2.HloModuleProto) -> tuple[int, ...]:
    """Lists the numbers of arguments in `buffer_donor`; each leaf of a tuple counts as one."""
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    shapes = {i.parameter_number: i.shape for i in entry.instructions if i.opcode == "parameter"}
    first, begins = 0, {}
    for number in sorted(shapes):
        begins[number] = first
        first += _leaves(shapes[number])
    donors = set()
    for donor in proto.buffer_donor.entries:
        shape, at = shapes[donor.parameter_number], begins[donor.parameter_number]
        for k in donor.parameter_shape_index:
            at += sum(map(_leaves, shape.tuple_shapes[:k]))
            shape = shape.tuple_shapes[k]
        donors.add(at)
    return tuple(sorted(donors))


def _leaves(shape: xla_pb2.ShapeProto) -> int:
    return sum(map(_leaves, shape.tuple_shapes)) if shape.tuple_shapes else 1


def _converted(proto: xla_pb2.HloModuleProto) -> bytes:
    try:
        return mlir_bindings().hlo_to_stablehlo(proto.SerializeToString())
    except Exception as error:
        raise HloError(f"XLA cannot convert the module to StableHLO: {message(error)}") from error
