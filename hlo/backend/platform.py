"""Properties in which XLA's platforms differ, as far as plans depend on them."""

import dataclasses
from collections.abc import Mapping

from hlo.shapes import HOST_MEMORY_SPACE

HOST_MEMORY = "host memory"
"""Its name in reports."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Platform:
    """Properties of one of XLA's backends (CPU, CUDA, TPU) on which plans depend; constants.

    Referees do not read these: they have XLA's rules a second time, by the platform's name.

    Attributes:
      name: XLA's, as in `Plan.target`. jax_name: of JAX's devices (`device.platform`).
      is_host: whether its devices are this machine's own processors, with its memory.
      alignment: bytes to which XLA aligns buffers inside one allocation.
      pointer_bytes: of an entry in a tuple's index table. table_multiple: divides a table's bytes.
      places_as_they_come: whether XLA puts each temporary into the smallest gap that is free when
        that is defined; else it places all of them by size, or by how long they live.
      temporaries_multiple: bytes of which XLA's figure for temporaries is a multiple.
      memory_spaces: XLA's numbers for the memory that totals count; None: all but the host's.
      other_memories: its number for another memory that no total counts -> the name of that.
      all_reduces_in_place: whether an all-reduce must write over its operand.
      moves_nothing: opcodes through which XLA looks for the operand that a fusion updates in place.
      has_fusion_rule: whether the backend has a rule of its own for which operand a fusion's result
        may take over; else HloDataflowAnalysis's holds.
      knows_sharing: whether XLA's public sources say over which operands its fusions may write.
      runs_beside: whether other work runs between the start and the end of a collective.
      has_tiles: whether some fusions are compiled by tiles, to the same code wherever buffers lie.
      keeps_code: whether a fusion rounds as before only if all of it stays as it is, as its
        compiler makes one piece of code of it.
      keeps_results: whether a fusion of several results may round otherwise, as other code, where
        only some of them are left.
      keeps_arrays: whether a fusion may round otherwise where its arrays lie in other memory, or
        where it puts what it computes, unless element by element, into another array.
      keeps_precision: whether rounding to the precision of a type leaves its values as they are.
        XLA:CPU makes one NaN of all of bf16.
      emits_any_fusion: whether any fusion can be compiled; else only such as XLA's own passes make,
        in which a slice's array comes before its index, and the index is an operand.
      allocating_call: target of the custom call that gives memory as it is; "": there is none.
      joins_calls: whether some calls are compiled as one function with all that they run.
      has_dots: whether products of matrices are dots to its code generator; else convolutions.
      pays_for_layout: whether transposed reads and depthwise convolutions take extra time.
      has_measured_rates: whether its rates are measured on this machine, not listed by device.
      has_tested_bits: whether our tests compare results of plans with XLA's own, bit for bit; else
        the first plans of an installation do.
      compile_factor: by what XLA's whole compile time, divided by its time up to the schedule, is
        larger than on other platforms: code is generated after that.
      least_gain: fraction of XLA's total; a smaller predicted gain may be none, as assigned totals
        differ that much from predicted ones.
      renames: whether XLA replaces scheduled instructions by ones of other names.
      changes_loops: whether XLA adds elements to the states of loops after its scheduler.
      trims_results: whether XLA removes unread results of fusions after its scheduler.
      computes_again: whether XLA may rematerialise after its scheduler, so that control edges must
        keep a plan's order of reads and writes.
      memory_scheduler: compiler options of XLA's scheduler for memory, if that is not the default.
      lists_thunks: whether a serialized executable lists its thunks and the bytes they access.
      autotunes: whether compiling tries kernels on a device unless an option forbids it.
      compiles_parts: whether XLA compiles a module that is partitioned already.
      mocks_calls: compiler options with which XLA accepts custom calls whose code is missing.
      refuses_what_does_not_fit: whether compiling fails where the total exceeds the device memory.
      memory_limit_flag: the compiler option that makes XLA rematerialise within a share of the
        device, in percent; "": there is none.
      memory_part: the part of a device's memory that JAX's allocator takes by default.
    """

    name: str
    jax_name: str
    is_host: bool
    alignment: int
    pointer_bytes: int
    table_multiple: int
    places_as_they_come: bool
    temporaries_multiple: int
    memory_spaces: frozenset[int] | None
    other_memories: Mapping[int, str]

    all_reduces_in_place: bool
    moves_nothing: tuple[str, ...]
    has_fusion_rule: bool
    knows_sharing: bool
    runs_beside: bool

    has_tiles: bool
    keeps_code: bool
    keeps_results: bool
    keeps_precision: bool
    emits_any_fusion: bool
    keeps_arrays: bool
    allocating_call: str
    joins_calls: bool
    has_dots: bool
    pays_for_layout: bool
    has_measured_rates: bool
    has_tested_bits: bool

    compile_factor: float
    least_gain: float
    renames: bool
    changes_loops: bool
    trims_results: bool
    computes_again: bool
    memory_scheduler: Mapping[str, str] | None
    lists_thunks: bool
    autotunes: bool
    compiles_parts: bool
    mocks_calls: Mapping[str, bool]
    refuses_what_does_not_fit: bool
    memory_limit_flag: str
    memory_part: float

    def counts(self, space: int) -> bool:
        """Whether totals of memory include buffers in the memory space with this number."""
        if self.memory_spaces is None:
            return space != HOST_MEMORY_SPACE
        return space in self.memory_spaces

    def table_bytes(self, entries: int) -> int:
        """Returns the padded bytes of the index table of a tuple with so many elements."""
        return -(-entries * self.pointer_bytes // self.table_multiple) * self.table_multiple
