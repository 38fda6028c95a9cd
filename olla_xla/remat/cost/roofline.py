"""Predicted time by roofline: an operator takes as long as its slowest resource, plus its start.

Williams, Waterman, Patterson, "Roofline" (CACM 2009): memory traffic and arithmetic overlap, so the
time is the longer of the two; every operator also costs what it takes to start it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Set

from hlo.module import Computation, Instruction, Module
from olla_xla.remat.cost import on_chip
from olla_xla.remat.cost.work import Work, run_work, touched, trips, work


@dataclasses.dataclass(frozen=True)
class Device:
    """Sustained rates of a device, by which operators are priced.

    Attributes:
      name: for reports. bytes_per_second: of its memory.
      operations_per_second: elementwise arithmetic. transcendentals_per_second: exp and the like.
      matrix_per_second: floating-point operations of dots and convolutions.
      narrow_per_second: the same for operands of at most 16 bits; None: `matrix_per_second`.
      start_seconds: overhead of each operator. transposed_bytes_per_second: read across the layout.
        depthwise_per_second: operations of convolutions without a matrix product.
      fresh_bytes_per_second: temporaries of a run that the system allocates and clears; infinite
        where an allocator keeps them.
      sent_bytes_per_second: to other devices; infinite where they share their memory.
      host_bytes_per_second: to the host's memory, and as many from it at the same time.
      near_bytes: capacity of the memory on the chip to which XLA assigns arrays; 0 without one.
      near_bytes_per_second: of that memory.
    """

    name: str
    bytes_per_second: float
    operations_per_second: float
    transcendentals_per_second: float
    matrix_per_second: float
    start_seconds: float
    transposed_bytes_per_second: float = math.inf
    depthwise_per_second: float = math.inf
    fresh_bytes_per_second: float = math.inf
    narrow_per_second: float | None = None
    sent_bytes_per_second: float = math.inf
    host_bytes_per_second: float = math.inf
    near_bytes: int = 0
    near_bytes_per_second: float = math.inf

    def seconds(self, work: Work) -> float:
        """Predicts the seconds of one operator that does this work."""
        compute = (
            work.operations / self.operations_per_second
            + work.transcendentals / self.transcendentals_per_second
            + work.matrix / self.matrix_per_second
            + work.narrow / (self.narrow_per_second or self.matrix_per_second)
            + work.depthwise / self.depthwise_per_second
        )
        memory = (
            (work.bytes - work.transposed - work.near - work.hosted) / self.bytes_per_second
            + work.transposed / self.transposed_bytes_per_second
            + work.near / self.near_bytes_per_second
        )
        exchange = work.exchanged / self.sent_bytes_per_second
        hosted = work.hosted / self.host_bytes_per_second
        return max(memory, compute, exchange, hosted) + work.kernels * self.start_seconds


# NVIDIA H100 SXM: 3.35 TB/s, 67 TFLOP/s in float32 (an eighth of that in special functions), 494
# TFLOP/s dense in TF32, which XLA uses for float32 products, 989 in 16 bits. Kernels sustain some
# 0.9 of the bandwidth and 0.6 of the tensor cores; in a CUDA graph one starts every two
# microseconds. NVLink takes 450 GB/s out of each card (datasheet: 900, both ways), of which NCCL is
# taken to sustain 0.8; that all devices are on one NVLink is an assumption, and so is the ring. PCI
# Express 5 takes 64 GB/s to the host and as many back, of which copies are taken to sustain 0.8.
H100 = Device(
    "H100",
    0.9 * 3.35e12,
    0.5 * 67e12,
    67e12 / 8,
    0.6 * 494e12,
    2e-6,
    narrow_per_second=0.6 * 989e12,
    sent_bytes_per_second=0.8 * 450e9,
    host_bytes_per_second=0.8 * 64e9,
)


@dataclasses.dataclass(frozen=True)
class CostModel:
    """Predicts the seconds of instructions on one device. `target`: "cpu", "cuda" or "tpu"."""

    device: Device
    target: str

    def work(self, i: Instruction) -> Work:
        """Counts the bytes that an instruction by itself moves and the operations it computes."""
        return self._placed(i, frozenset())

    def copied_work(self, i: Instruction) -> Work:
        """Counts the bytes and operations of a copy of `i` whose results only its neighbours read:
        they count as lying in a TPU's VMEM, if all its arrays there fit.
        """
        if not self.device.near_bytes:
            return self.work(i)
        made = {(i, index) for index, shape in i.shape.indices() if not shape.is_tuple}
        near_work = self._placed(i, made)
        return near_work if near_work.near <= self.device.near_bytes else self.work(i)

    def _placed(self, i: Instruction, made: Set[on_chip.Array]) -> Work:
        """Counts an instruction's bytes and operations; arrays in `made`, and those predicted to
        be, count as lying in VMEM.
        """
        counted = work(i, self.target)
        if not self.device.near_bytes or not counted.bytes:
            return counted
        arrays = on_chip.on_chip(i.computation, self.device.near_bytes) | made
        parts = touched(i, self.target)
        near = sum(size for (of, at), size in parts if arrays >= set(on_chip.leaves_of(of, at)))
        return dataclasses.replace(counted, near=near)

    def copied_seconds(self, i: Instruction) -> float:
        """Predicts the seconds of a copy of `i` whose results, read only nearby, may be in VMEM."""
        if not self.device.near_bytes:
            return self.seconds(i)
        return self.device.seconds(self.copied_work(i))

    def nearer_seconds(self, i: Instruction, size: int) -> float:
        """Predicts the seconds that `i` saves if `size` of its bytes are in VMEM; 0 if none is."""
        if not self.device.near_bytes:
            return 0.0
        before = self.work(i)
        near = dataclasses.replace(before, near=min(before.near + size, before.bytes))
        return self.device.seconds(before) - self.device.seconds(near)

    def seconds(self, i: Instruction) -> float:
        """Predicts the seconds of an instruction by itself."""
        return self.device.seconds(self.work(i))

    def step_seconds(self, module: Module) -> float:
        """Predicts the seconds of one run of a module, its operators one after the other."""
        return self._run_seconds(module.entry)

    def _run_seconds(self, computation: Computation) -> float:
        """Predicts the seconds of one run of a computation; of branches the longest counts."""
        total = 0.0
        for i in computation.instructions:
            inside = [self._run_seconds(c) for c in i.called_control]
            if i.opcode == "conditional":
                total += max(inside)
            elif inside:
                total += trips(i) * sum(inside)
            else:
                total += self.seconds(i)
        return total

    def run_seconds(self, module: Module, temp_bytes: int) -> float:
        """`step_seconds` plus the time to allocate `temp_bytes` of temporaries."""
        return self.step_seconds(module) + temp_bytes / self.device.fresh_bytes_per_second


def module_work(module: Module, target: str) -> Work:
    """The sum of the work of all instructions in one run of a module."""
    return sum(run_work(module.entry, lambda i: work(i, target)).values(), Work())
