"""What the code may measure: `budgets.toml` has a number for each folder, and none may rise.

What needs more takes out as much elsewhere, or says in its line of the file what capability it is.
`python -m tests.test_budgets` writes lower numbers where something was taken out.
"""

import ast
import collections
import functools
import re
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("budgets.toml")
SLACK = {"lines": 40, "files": 0, "words": 200}
"""How far below its number a folder may be; further, and the number is to be lowered."""
SATELLITES = (
    "hlo/dumps", "olla_xla/analysis", "olla_xla/cli", "olla_xla/pieces", "olla_xla/place",
    "olla_xla/segments", "olla_xla/solvers", "olla_xla/targets",
    "olla_xla/tools",
)  # fmt: skip
"""What a reader of the planner need not know: the core imports none (test_layering.py)."""
LONG = 60
"""Lines of a function."""


def files(folder):
    found = sorted((ROOT / folder).rglob("*.py"))
    return [path for path in found if path.name != "xla_pb2.py" and "__pycache__" not in path.parts]


@functools.cache
def measured():
    """Kind -> name -> how much of it there is."""
    lines, count = collections.Counter(), collections.Counter()
    classes, long = collections.Counter(), 0
    for top in ("hlo", "olla_xla", "benchmarks", "tests", "examples"):
        for path in files(top):
            inside = path.relative_to(ROOT).parent.parts
            folder = "/".join(inside[: 2 if top != "tests" else 1])
            text = path.read_text("utf-8")
            lines[folder] += text.count("\n")
            if top not in ("hlo", "olla_xla"):
                continue
            count[top] += 1
            if not any(path.is_relative_to(ROOT / folder) for folder in SATELLITES):
                lines["core"] += text.count("\n")
            tree = ast.parse(text)
            classes.update(
                {i.name for i in ast.walk(tree) if isinstance(i, ast.ClassDef) and i.name[0] != "_"}
            )
            functions = (i for i in ast.walk(tree) if isinstance(i, ast.FunctionDef))
            long += sum((i.end_lineno or 0) - i.lineno >= LONG for i in functions)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = sum(len(page.read_text("utf-8").split()) for page in pages)
    several = sum(n > 1 for n in classes.values())
    names = {"class names with several meanings": several, "functions over 60 lines": long}
    return {"lines": dict(lines), "files": dict(count), "words": {"docs": words}, "names": names}


@pytest.mark.parametrize("kind", ["lines", "files", "words", "names"])
def test_nothing_is_above_its_budget_or_far_below(kind):
    budgets, found = tomllib.loads(FILE.read_text("utf-8"))[kind], measured()[kind]
    above = [
        f"{name} has {n:,} {kind}, {budgets.get(name, 0):,} allowed: take out as much, or say in "
        f"{FILE.name} which capability needs it"
        for name, n in found.items()
        if n > budgets.get(name, 0)
    ]
    below = [
        f"{name} has {found.get(name, 0):,} {kind}, {n:,} allowed: python -m tests.test_budgets"
        for name, n in budgets.items()
        if found.get(name, 0) < n - SLACK.get(kind, 0)
    ]
    assert not above + below


def lower():
    """Writes the numbers that are lower now; other lines, and what they say, stay."""
    text, kind, found = [], "", measured()
    for line in FILE.read_text("utf-8").splitlines(keepends=True):
        kind = line.strip("[]\n") if line.startswith("[") else kind
        if row := re.match(r'"(.+)" = (\d+)', line):
            n = min(int(row[2]), found[kind].get(row[1], 0))
            line = line.replace(row[0], f'"{row[1]}" = {n}', 1) if n else ""
        text.append(line)
    FILE.write_text("".join(text), "utf-8")


if __name__ == "__main__":
    lower()
