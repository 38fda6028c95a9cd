"""Faults in a module's text: XLA reads its own text back, so any substitution in it is a fault.

XLA verifies no layouts after its scheduler, and of the rest only that extents and types fit.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.mutants.draft import Draft
from hlo.module import HloError, parse_module_proto
from hlo.text import from_hlo_text, module_text

_TRIES = 8


class Fault(NamedTuple):
    """A kind of substitution.

    Attributes:
      where: regular expression of a line; its group is the part in which something changes.
      what: regular expression of that within the part.
      change: (what was found, random numbers) -> what replaces it.
    """

    where: str
    what: str
    change: Callable[[str, random.Random], str]

    def __call__(self, draft: Draft, rng: random.Random) -> str | None:
        """Puts one fault into a draft and says which; None where there is no place for it."""
        text = module_text(draft.finish(), notes=True)
        found = list(re.finditer(self.where, text, re.MULTILINE))
        for part in rng.sample(found, min(len(found), _TRIES)):
            places = list(re.finditer(self.what, part[1]))
            if not places:
                continue
            place = rng.choice(places)
            new = self.change(place[0], rng)
            start, end = (part.start(1) + k for k in place.span())
            if new == place[0]:
                continue
            try:
                draft.load(_read(text[:start] + new + text[end:], draft.finish()))
            except HloError:
                continue
            line = text[text.rfind("\n", 0, start) + 1 : text.find("\n", end)]
            return f"{place[0]} -> {new} in {line.strip()[:200]}"
        return None


def read_back(module: bytes) -> bytes:
    """A serialized module as XLA reads it from its text: without a fault."""
    return _read(module_text(module, notes=True), module)


def _read(text: str, module: bytes) -> bytes:
    """The module of a text, with the ids of the module of which it is the text, or nearly so.

    XLA numbers anew what it reads, and its buffer assignment breaks ties by these numbers.
    """
    new, old = (parse_module_proto(data) for data in (from_hlo_text(text), module))
    bodies = {c.name: c for c in old.computations}
    names = [{i.name for i in c.instructions} for c in bodies.values()]
    there = {c.name: {i.name for i in c.instructions} for c in new.computations}
    if [there.get(name) for name in bodies] != names or len(there) != len(names):
        return new.SerializeToString(deterministic=True)
    numbers = {c.id: bodies[c.name].id for c in new.computations}
    sequences = {k: list(s.instruction_ids) for k, s in new.schedule.sequences.items()}
    new.schedule.sequences.clear()
    for c in new.computations:
        known = {i.name: i.id for i in bodies[c.name].instructions}
        ids = {i.id: known[i.name] for i in c.instructions}
        if numbers[c.id] in old.schedule.sequences:
            order = [ids[k] for k in sequences[c.id]]
            new.schedule.sequences[numbers[c.id]].instruction_ids[:] = order
        for i in c.instructions:
            i.id = ids[i.id]
            for read in (i.operand_ids, i.control_predecessor_ids):
                read[:] = [ids[k] for k in read]
            i.called_computation_ids[:] = [numbers[k] for k in i.called_computation_ids]
        c.id, c.root_id = numbers[c.id], ids[c.root_id]
        places = {k: place for place, k in enumerate(known.values())}
        c.instructions.sort(key=lambda i: places[i.id])
    order = {c.id: place for place, c in enumerate(old.computations)}
    new.computations.sort(key=lambda c: order[c.id])
    new.id, new.entry_computation_id = old.id, numbers[new.entry_computation_id]
    return new.SerializeToString(deterministic=True)


def _number(old: str, rng: random.Random) -> str:
    value = int(old)
    return str(rng.choice([value + 1, max(value - 1, 0), value + 2, value // 2]))


def _real(old: str, rng: random.Random) -> str:
    return old[1:] if old.startswith("-") else f"-{old}" if rng.random() < 0.5 else f"1{old}"


def _swapped(old: str, rng: random.Random) -> str:
    """Two parts of a list, exchanged."""
    parts = re.split(r", ?", old)
    if len(parts) < 2:
        return old
    a, b = rng.sample(range(len(parts)), 2)
    parts[a], parts[b] = parts[b], parts[a]
    return (", " if ", " in old else ",").join(parts)


def _moved(old: str, rng: random.Random) -> str:
    """Bounds or padding: both numbers move by one, so that extents stay."""
    low, sign, high = re.split(r"([:_])", old)
    by = rng.choice((1, -1))
    return f"{int(low) + by}{sign}{int(high) + (by if sign == ':' else -by)}"


def _letters(old: str, rng: random.Random) -> str:
    """Two labels of dimensions, exchanged."""
    a, b = rng.sample(old, 2)
    return old.translate(str.maketrans({a: b, b: a}))


def _among(*words: str) -> Callable[[str, random.Random], str]:
    return lambda old, rng: rng.choice([word for word in words if word != old])


def _gone(old: str, rng: random.Random) -> str:
    return ""


def _words(names: str) -> tuple[str, Callable[[str, random.Random], str]]:
    """A pattern of some words, and another of them for each."""
    words = names.split()
    return rf"(?<![\w-])(?:{'|'.join(words)})(?![\w-])", _among(*words)


def _laid(opcode: str) -> Fault:
    """Another layout of an operation's result, or of an element of it."""
    return Fault(rf"^ .*? = (\S*|\([^()]*\)) (?:{opcode})\(", r"(?<=\{)\d+(?:,\d+)+", _swapped)


def _given(opcode: str) -> Fault:
    """Two operands exchanged."""
    return Fault(rf"[\]\}})] (?:{opcode})\((.*?)\)", r".+", _swapped)


def _list(attribute: str, change: Callable[[str, random.Random], str] = _swapped) -> Fault:
    what = r"\d+" if change is _number else r".+"
    return Fault(rf", {attribute}=\{{([\d,]+)\}}", what, change)


def _opcode(names: str) -> Fault:
    return Fault(r"[\]\}] ([\w-]+)\(%", *_words(names))


LAYOUTS: dict[str, Fault] = {
    "layout_parameter": _laid("parameter"),
    "layout_fusion": _laid("fusion"),
    "layout_copy": _laid("copy"),
    "layout_element": _laid("get-tuple-element"),
    "layout_state": _laid("while|tuple|conditional|call"),
    "layout_bitcast": _laid("bitcast"),
    "layout_call": _laid("custom-call|dot|convolution|reduce|sort|scatter|gather"),
    "layout_slice": _laid("dynamic-update-slice|dynamic-slice|slice|concatenate|pad"),
    "layout_root": Fault(r"^ +ROOT .*? = (\S*|\([^()]*\)) ", r"(?<=\{)\d+(?:,\d+)+", _swapped),
    "layout_any": _laid("[a-z-]+"),
    "layout_entry": Fault(r", entry_computation_layout=(.*)", r"(?<=\{)\d+(?:,\d+)+", _swapped),
}
"""Name -> kind of fault in the layout of one operation alone, so that its readers have another."""

_BINARY = "add subtract multiply divide maximum minimum power remainder and or xor atan2"
_UNARY = "negate exponential log tanh sine cosine sqrt rsqrt abs floor ceil sign logistic not"

FAULTS: dict[str, Fault] = {
    "text_operands": _given("subtract|divide|power|remainder|compare|atan2|complex"),
    "text_select": _given("select|clamp"),
    "text_fusion": _given("fusion|call"),
    "text_tuple": _given("tuple|while|conditional"),
    "text_product": _given("dot|convolution|custom-call"),
    "text_parts": _given("concatenate|dynamic-slice|dynamic-update-slice|gather|scatter|pad"),
    "text_folded": _given("reduce|reduce-window|sort|select-and-scatter"),
    "text_real": Fault(r" b?f\d+\[.* constant\((.*)\)", r"-?(?:\d[\d.]*(?:e[+-]?\d+)?|inf)", _real),
    "text_integer": Fault(r" [su]\d+\[.* constant\((.*)\)", r"\d+", _number),
    "text_truth": Fault(r" constant\((.*)\)", *_words("true false")),
    "text_direction": Fault(r", direction=(\w+)", *_words("EQ NE LT LE GT GE")),
    "text_binary": _opcode(_BINARY),
    "text_unary": _opcode(_UNARY),
    "text_shift": _opcode("shift-left shift-right-logical shift-right-arithmetic"),
    "text_moving": _opcode("copy bitcast reshape transpose reverse convert bitcast-convert"),
    "text_dimensions": _list("dimensions"),
    "text_dimension": _list("dimensions", _number),
    "text_slice": Fault(r", slice=\{(.*?)\}", r"\d+:\d+", _moved),
    "text_stride": Fault(r", slice=\{(.*?)\}", r"\d+(?=\])", _number),
    "text_sizes": _list("dynamic_slice_sizes", _number),
    "text_padding": Fault(r", padding=(\S+)", r"\d+_\d+", _moved),
    "text_iota": Fault(r", iota_dimension=(\d+)", r"\d+", _number),
    "text_index": Fault(r" get-tuple-element\(.*, index=(\d+)", r"\d+", _number),
    "text_window_size": Fault(r", window=\{(?:.* )?size=([\dx]+)", r"\d+", _number),
    "text_window_pad": Fault(r", window=\{.*pad=([\dx_-]+)", r"\d+_\d+", _moved),
    "text_window": Fault(r", window=\{.* (?:stride|[lr]hs_dilate)=([\dx]+)", r"\d+", _number),
    "text_labels": Fault(r", dim_labels=(\S+?)(?:,|$)", r"\w+", _letters),
    "text_groups": Fault(r", (?:feature|batch)_group_count=(\d+)", r"\d+", _number),
    "text_contracting": _list("[lr]hs_contracting_dims", _number),
    "text_batch": _list("[lr]hs_batch_dims"),
    "text_start_map": _list("(?:start_index_map|scatter_dims_to_operand_dims)"),
    "text_offsets": _list("(?:offset_dims|update_window_dims)", _number),
    "text_collapsed": _list("(?:collapsed_slice_dims|inserted_window_dims)", _number),
    "text_index_dim": Fault(r", index_vector_dim=(\d+)", r"\d+", _number),
    "text_slice_sizes": _list("slice_sizes", _number),
    "text_flag": Fault(r", (?:is_stable|lower|left_side|indices_are_sorted)=(\w+)", r".+",
                       _among("true", "false")),
    "text_type": Fault(r" = ([a-z]\w*)\[", *_words("f32 s32 u32")),
    "text_extents": Fault(r" = \w+\[([\d,]+)\]", r".+", _swapped),
    "text_bits": Fault(r", (?:exponent|mantissa)_bits=(\d+)", r"\d+", _number),
    "text_kind": Fault(r", kind=(\w+)", *_words("kLoop kInput kOutput")),
    "text_bound": Fault(r", output_to_operand_aliasing=\{(.*?)\)\}", r"(?<=\()\d+", _number),
    "text_donated": Fault(r"input_output_alias=\{(.*?)\) \}", r"(?<=: \()\d+", _number),
    "text_config": Fault(r", backend_config=(\{.*\})", r'(?<=")\d+(?=")', _number),
    "text_custom": Fault(r" custom-call\(.*(?:target|config)=(.*)", r"\d+", _number),
    "text_control": Fault(r"(, control-predecessors=\{.*?\})", r".+", _gone),
}  # fmt: skip
"""Name -> kind of fault by one substitution."""
