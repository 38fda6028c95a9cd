"""One word a thing: names and docstrings use the field's own terms."""

import ast
import functools
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


DEFINES = ast.FunctionDef | ast.ClassDef | ast.arg


@functools.cache
def said(folder):
    """(file, line, kind, text) of the strings and names in a folder's files; kinds are "text",
    "name", and "defined" for one that is defined, assigned or a parameter there.
    """
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue
        file = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            fields = vars(node)
            text = fields.get("name") or fields.get("id") or fields.get("arg")
            kind = "defined" if isinstance(node, DEFINES) else "name"
            if isinstance(fields.get("value"), str):
                kind, text = "text", fields["value"]
            elif isinstance(fields.get("ctx"), ast.Store):
                kind = "defined"
            if isinstance(text, str):
                found.append((file, fields.get("lineno"), kind, text))
    return found


def spoken(*folders):
    """(place, text) of what folders say, in small letters; names are taken apart."""
    for folder in folders:
        for path, line, kind, text in said(folder.split("/")[0]):
            if path.startswith(f"{folder}/"):
                if kind != "text":
                    text = re.sub(r"([a-z])([A-Z])", r"\1 \2", text).replace("_", " ")
                yield f"{path}:{line}", text.lower()


def test_loops_have_iterations():
    """What loops do is told in the field's words where loops are changed."""
    names = ("turn", "turn.loop", "other turn counter")  # of instructions; what is hashed
    other = re.compile(r"\bturns?\b(?! (?:around|into|out|it))(?<!in turns)(?<!in turn)")
    folders = ("hlo/rewrite", "olla_xla/remat/loops", "olla_xla/check")
    found = [place for place, t in spoken(*folders) if other.search(t) and t not in names]
    assert not found, "\n".join(found)


def test_loops_keep_scan_residuals():
    """What one loop keeps for another has one name where recomputation across loops is planned."""
    kept = ("least stack bytes", "stack shape")  # a field of plan files; of arrays of any kind
    found = [
        f"{place}: {text}"
        for place, text in spoken("olla_xla/remat/loops", "olla_xla/check")
        if re.search(r"\bstacks?\b", text) and text not in kept
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["hlo", "olla_xla", "benchmarks"])
def test_words_and_names(folder):
    found = [
        f"{place}: {word} -> {INSTEAD[word]}"
        for place, text in spoken(folder)
        for word in (" ".join(w.split()) for w in _WORD.findall(text))
    ]
    found += [
        f"{path}:{line}: {name} -> {NAMES_INSTEAD[name]}"
        for path, line, kind, name in said(folder)
        if kind == "defined" and name in NAMES_INSTEAD
    ]
    assert not found, "\n".join(found)
