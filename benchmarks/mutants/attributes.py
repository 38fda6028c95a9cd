"""Faults in what an instruction computes: constants, comparisons, opcodes, slices, fusions."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from typing import Any

from benchmarks.mutants.draft import Draft
from hlo.wire import Message, read_varint, varint

_LITERAL, _DIRECTION, _SLICES = 8, 63, 17  # fields of HloInstructionProto
_PACKED_INTEGERS = (2, 4, 5, 6, 7)  # of LiteralProto: preds, s32s, s64s, u32s, u64s
_FLOATS, _DOUBLES = 8, 9
_RAW = (3, 10, 13, 15)  # u8s, f16s, bf16s, s8s
_DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")
_TURNED = {
    "add": "subtract",
    "subtract": "add",
    "multiply": "add",
    "divide": "multiply",
    "maximum": "minimum",
    "minimum": "maximum",
    "sine": "cosine",
    "exponential": "tanh",
    "tanh": "negate",
    "and": "or",
    "or": "and",
    "rsqrt": "sqrt",
    "sqrt": "rsqrt",
}


def constant(draft: Draft, rng: random.Random) -> str | None:
    """An element of a constant becomes another number."""
    found = [
        i
        for body in draft.proto.computations
        for i in body.instructions
        if i.opcode == "constant" and not i.shape.tuple_shapes
    ]
    rng.shuffle(found)
    for i in found:
        whole = Message(i.SerializeToString())
        if _other_number(whole.message(_LITERAL), rng):
            i.ParseFromString(whole.encode())
            return f"{i.name} is another number"
    return None


def _other_number(literal: Message, rng: random.Random) -> bool:
    for number in sorted(literal.numbers()):
        if number in _PACKED_INTEGERS:
            values = list(_varints(literal.blob(number)))
            k = rng.randrange(len(values))
            values[k] = 1 - values[k] if number == 2 else (values[k] + 1) % 2**31
            literal.set_blob(number, b"".join(map(varint, values)))
            return True
        if number in (_FLOATS, _DOUBLES):
            form, size = ("<f", 4) if number == _FLOATS else ("<d", 8)
            data = bytearray(literal.blob(number))
            at = rng.randrange(len(data) // size) * size
            (value,) = struct.unpack_from(form, data, at)
            other = value * 1.5 + 0.25 if abs(value) < 1e30 else 1.0
            struct.pack_into(form, data, at, other)
            literal.set_blob(number, bytes(data))
            return True
        if number in _RAW:
            data = bytearray(literal.blob(number))
            data[rng.randrange(len(data))] ^= 1
            literal.set_blob(number, bytes(data))
            return True
    return False


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        yield value


def attribute(draft: Draft, rng: random.Random) -> str | None:
    """Reverses a comparison, replaces an opcode, exchanges dimensions or moves a slice."""
    found = []
    for body in [*draft.scheduled(), *draft.fused()]:
        by_id = {i.id: i for i in body.instructions}
        for i in body.instructions:
            if i.opcode == "compare":
                found.append((_turn_comparison, i, ()))
            if i.opcode in _TURNED and i.shape.element_type != 1:
                found.append((_turn_opcode, i, ()))
            if i.opcode == "slice":
                found.append((_move_slice, i, tuple(by_id[i.operand_ids[0]].shape.dimensions)))
            if i.opcode in ("transpose", "broadcast"):
                found += [
                    (_exchange_dimensions, i, (a, b))
                    for b in range(len(i.dimensions))
                    for a in range(b)
                    if _alike(i, by_id[i.operand_ids[0]], a, b)
                ]
    rng.shuffle(found)
    for change, i, detail in found:
        text = change(i, detail, rng)
        if text:
            return text
    return None


def _alike(i: Any, operand: Any, a: int, b: int) -> bool:
    """Whether two dimensions can be exchanged without changing any shape."""
    if i.opcode == "broadcast":
        return operand.shape.dimensions[a] == operand.shape.dimensions[b] > 1
    return i.shape.dimensions[a] == i.shape.dimensions[b] > 1


def _turn_comparison(i: Any, _: tuple[int, ...], rng: random.Random) -> str:
    whole = Message(i.SerializeToString())
    old = whole.blob(_DIRECTION).decode()
    new = rng.choice([d for d in _DIRECTIONS if d != old])
    whole.set_blob(_DIRECTION, new.encode())
    i.ParseFromString(whole.encode())
    return f"{i.name} compares {new}, not {old}"


def _turn_opcode(i: Any, _: tuple[int, ...], rng: random.Random) -> str:
    old, i.opcode = i.opcode, _TURNED[i.opcode]
    return f"{i.name} is {i.opcode}, not {old}"


def _exchange_dimensions(i: Any, which: tuple[int, ...], rng: random.Random) -> str:
    a, b = which
    i.dimensions[a], i.dimensions[b] = i.dimensions[b], i.dimensions[a]
    return f"dimensions {a} and {b} of {i.name} exchanged"


def _move_slice(i: Any, extents: tuple[int, ...], rng: random.Random) -> str:
    whole = Message(i.SerializeToString())
    free: list[tuple[int, Message, int]] = []
    for k, (part, extent) in enumerate(zip(whole.messages(_SLICES), extents, strict=True)):
        if part.integer(2) < extent:
            free.append((k, part, 1))
        if part.integer(1) > 0:
            free.append((k, part, -1))
    if not free:
        return ""
    k, part, by = rng.choice(free)
    for field in (1, 2):
        part.set_integer(field, part.integer(field) + by)
    i.ParseFromString(whole.encode())
    return f"{i.name} begins {by:+d} in dimension {k}"


def remade_part(draft: Draft, rng: random.Random) -> str | None:
    """Recomputes another part of a scan residual to which one iteration writes several slices."""
    found = [
        (i, tuple(by_id[i.operand_ids[0]].shape.dimensions))
        for body in draft.fused()
        for by_id in [{i.id: i for i in body.instructions}]
        for i in body.instructions
        if i.opcode == "slice" and ".loop" in i.name
    ]
    rng.shuffle(found)
    return next((text for i, extents in found if (text := _move_slice(i, extents, rng))), None)


def configuration(draft: Draft, rng: random.Random) -> str | None:
    """Another number in the configuration of a loop, by which XLA counts its iterations."""
    found = [
        (i, match)
        for body in draft.scheduled()
        for i in body.instructions
        if i.opcode == "while"
        for match in re.finditer(rb'"(\w+)":\{"n":"(\d+)"', i.backend_config)
    ]
    if not found:
        return None
    i, match = rng.choice(found)
    old = int(match[2])
    new = rng.choice([n for n in range(max(old - 2, 0), old + 3) if n != old])
    at, end = match.span(2)
    i.backend_config = i.backend_config[:at] + str(new).encode() + i.backend_config[end:]
    return f"{match[1].decode()} of {i.name} is {new}, not {old}"


def fusion(draft: Draft, rng: random.Random) -> str | None:
    """A fusion of another kind, or that runs the computation of another with its signature."""
    fusions = [i for b in draft.scheduled() for i in b.instructions if i.opcode == "fusion"]
    if not fusions:
        return None
    by_signature: dict[tuple[bytes, ...], list[Any]] = {}
    for i in fusions:
        by_signature.setdefault(_signature(draft, i), []).append(i)
    pairs = [(a, b) for same in by_signature.values() for k, b in enumerate(same) for a in same[:k]]
    if pairs and rng.random() < 0.7:
        a, b = rng.choice(pairs)
        one, other = a.called_computation_ids[0], b.called_computation_ids[0]
        a.called_computation_ids[0], b.called_computation_ids[0] = other, one
        return f"computations of {a.name} and {b.name} exchanged"
    plain = [i for i in fusions if i.fusion_kind != "kCustom"]
    if not plain:
        return None
    i = rng.choice(plain)
    old = i.fusion_kind
    i.fusion_kind = rng.choice([k for k in ("kLoop", "kInput", "kOutput") if k != old])
    return f"{i.name} is of kind {i.fusion_kind}, not {old}"


def _signature(draft: Draft, i: Any) -> tuple[bytes, ...]:
    body = draft.bodies[i.called_computation_ids[0]]
    parameters = sorted(
        (p for p in body.instructions if p.opcode == "parameter"), key=lambda p: p.parameter_number
    )
    return tuple(x.shape.SerializeToString(deterministic=True) for x in (*parameters, i))
