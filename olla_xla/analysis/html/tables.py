"""What the report's script looks up: every tensor of an order, as columns, texts written once."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np

from olla_xla.analysis.category import Category
from olla_xla.analysis.live_tensor import padding_of
from olla_xla.analysis.memory_view import MemoryView, TensorSpans
from olla_xla.analysis.terminal import megabytes
from olla_xla.memory.sources import short_call, short_line

_NEIGHBOURS = 24
"""Tensors listed at most as what a tensor is made from, and as what is made from it."""


class Texts:
    """A table of distinct strings, each with a number, so that JSON has each string once."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self._number = {"": 0}

    def number(self, text: str) -> int:
        """The number of a string; a new string is added to the table."""
        if text not in self._number:
            self._number[text] = len(self.all)
            self.all.append(text)
        return self._number[text]


def view_tables(view: MemoryView, texts: Texts) -> dict[str, Any]:
    """One order's tensors as columns of a table, a dict for JSON; strings are added to `texts`.

    Columns of strings hold their numbers in `texts`. A row is a rectangle of addresses and steps:
    `start` and `stop` are the half-open steps at which it is in memory, `to` is when the last of
    its buffer ends; `made` lists the rows of tensors that its readers make; `padding` is bytes that
    only fill whole tiles, and `tighter` the shape that would take less.
    """
    memory, describer = view._occupancy, view._describer
    spans = TensorSpans(memory)
    columns: dict[str, list[Any]] = collections.defaultdict(list)
    ordered = list(Category)
    for k, value in enumerate(memory.values):
        (_, stop), last = spans.of(k)
        origin, argument = describer.origin(value), describer.argument(value)
        is_argument = value.instruction.opcode == "parameter" and bool(argument)
        columns["name"].append(value.name)
        columns["category"].append(ordered.index(describer.category(value)))
        columns["shape"].append(texts.number(value.shape.text[:80]))
        columns["op"].append(texts.number("" if is_argument else origin.op_name))
        columns["module"].append(texts.number("" if is_argument else describer.layer(origin)))
        columns["line"].append(texts.number(short_line(origin.line)))
        calls = "\n".join(short_call(call) for call in origin.chain)
        columns["calls"].append(texts.number(calls if len(origin.chain) > 1 else ""))
        columns["argument"].append(texts.number(argument))
        padding = padding_of(value)
        tighter = f"{padding.tighter} {megabytes(padding.tighter_bytes, 2)} MB"
        columns["padding"].append(padding.bytes)
        columns["tighter"].append(texts.number(tighter if padding.tighter else ""))
        columns["to"].append(stop)
        columns["holder"].append(texts.number("" if last is None else last.name))
        held_at = "" if last is None else short_line(describer.line(last))
        columns["holder_line"].append(texts.number(held_at))
    columns["made"] = _made(view)
    columns["bytes"] = memory.bytes.tolist()
    columns["start"], columns["stop"] = memory.start.tolist(), memory.stop.tolist()
    columns["offset"] = _addresses(view).tolist()
    running = [
        texts.number("" if i is None else f"{i.name} {short_line(describer.line(i))}".strip())
        for i in memory.instructions
    ]
    return {
        "order": view.name,
        "assigned": view.assigned,
        "total": view.total_bytes,
        "live": view.live_bytes,
        "peak": view.step,
        "steps": view.steps,
        "padded": any(columns["padding"]),
        "columns": dict(columns),
        "running": running,
        "unused": [
            [texts.number(t.argument or t.why), t.bytes]
            for t in view.tensors
            if t.category is Category.UNUSED
        ],
    }


def _addresses(view: MemoryView) -> np.ndarray:
    """int64 [values]: where each begins, allocations laid end to end, in bytes."""
    memory = view._occupancy
    bases = np.array([a.base for a in memory.allocations], np.int64)
    return bases[memory.allocation] + memory.offset if len(memory.values) else memory.offset


def _made(view: MemoryView) -> list[list[int]]:
    """By tensor, those that are made from it."""
    memory = view._occupancy
    by_maker = collections.defaultdict(list)
    for k, value in enumerate(memory.values):
        by_maker[value.instruction].append(k)
    result = []
    for k, value in enumerate(memory.values):
        found = [j for use in value.uses for j in by_maker[use.instruction] if j != k]
        result.append(list(dict.fromkeys(found))[:_NEIGHBOURS])
    return result
