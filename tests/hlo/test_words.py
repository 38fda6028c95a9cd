"""One word a thing: names and docstrings use the field's own terms."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]

INSTEAD = {
    "anneal": "late_acceptance_search",
    "climb": "select",
    "dear": "expensive",
    "dearer": "more expensive",
    "dearest": "most expensive",
    "goal": "target_height",
    "goals": "targets",
    "homeless": "in the heap",
    "homes": "allocations",
    "in vain": "without improvement",
    "ladder": "ResidualChoices",
    "midst": "inside",
    "loops do without": "are recomputed",
    "of what is asked": "options",
    "placed anew": "repacked",
    "programme": "program, model",
    "reading loop": "backward loop",
    "rung": "ResidualChoice",
    "stick out": "exceed the target height",
    "sticks out": "exceeds the target height",
    "what is asked of": "options of",
    "writing loop": "forward loop",
}
"""Words that say nothing to a newcomer, and what is said in their place."""

NAMES_INSTEAD = {
    "_Work": "OrderCandidates, or what it holds",
    "MoreOrders": "AlternativeOrders",
    "Stack": "ScanResidual",
    "Ways": "PlanSettings, StepVariants",
    "told": "on_progress",
}
"""Names, whole; as words of a sentence they may stand."""

_WORD = re.compile(r"\b(" + "|".join(INSTEAD).replace(" ", r"\s+") + r")\b")


def spoken(tree):
    """(line, text) of all names and docstrings of a file; names taken apart at underscores."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        name = (
            getattr(node, "name", None) or getattr(node, "id", None) or getattr(node, "arg", None)
        )
        if isinstance(name, str):
            yield node.lineno, re.sub(r"([a-z])([A-Z])", r"\1 \2", name).replace("_", " ")


def test_loops_have_iterations():
    """What loops do is told in the field's words where loops are changed."""
    said = ("turn", "turn.loop", "other turn counter")  # names of instructions, what is hashed
    other = re.compile(r"\bturns?\b(?! (?:around|into|out|it))(?<!in turns)(?<!in turn)")
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("hlo/rewrite", "olla_xla/remat/loops", "olla_xla/check")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in spoken(ast.parse(path.read_text()))
        if other.search(text.lower()) and text not in said
    ]
    assert not found, "\n".join(found)


def test_loops_keep_scan_residuals():
    """What one loop keeps for another has one name where recomputation across loops is planned."""
    kept = ("least stack bytes", "stack shape")  # a field of plan files; of arrays of any kind
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for folder in ("olla_xla/remat/loops", "olla_xla/check")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in spoken(ast.parse(path.read_text()))
        if re.search(r"\bstacks?\b", text.lower()) and text not in kept
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["hlo", "olla_xla", "benchmarks"])
def test_words(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word} -> {INSTEAD[word]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.name.endswith("_pb2.py")
        for line, text in spoken(ast.parse(path.read_text()))
        for word in (" ".join(w.split()) for w in _WORD.findall(text.lower()))
    ]
    assert not found, "\n".join(found)


def names(tree):
    """(line, name) of what a file defines, assigns or takes as a parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


@pytest.mark.parametrize("folder", ["hlo", "olla_xla", "benchmarks"])
def test_names(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name} -> {NAMES_INSTEAD[name]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.name.endswith("_pb2.py")
        for line, name in names(ast.parse(path.read_text()))
        if name in NAMES_INSTEAD
    ]
    assert not found, "\n".join(found)
