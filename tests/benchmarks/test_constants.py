"""Limits and shares of time, as they were chosen: most are too large for a test to reach.

A search that may take one pair of blocks more does nothing wrong, and no test of the result sees
it. So the numbers themselves are held to what they were; who means another writes it here.
"""

import ast
import importlib
from pathlib import Path

from tests.support.outcomes import outcome

ROOT = Path(__file__).parents[2]
PLACES = (
    "olla_xla/place",
    "olla_xla/schedule/exact",
    "olla_xla/solvers",
    "olla_xla/remat/segments",
    "benchmarks/eager",
    "benchmarks/ilp_forms",
    "benchmarks/place_ilp",
    "benchmarks/profiles.py",
    "benchmarks/ilp.py",
    "benchmarks/ilp_steps.py",
)


def constants(path):
    """Name -> value of the numbers, and tuples of them, that a module names at its top."""
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    names = [
        target.id
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and is_literal(node.value)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.strip("_").isupper()
    ]
    values = {name: getattr(module, name) for name in names}
    return {name: value for name, value in values.items() if numeric(value)}


def is_literal(value):
    """Whether it names nothing, which might be another on another machine."""
    return not any(isinstance(n, ast.Name | ast.Attribute | ast.Call) for n in ast.walk(value))


def numeric(value):
    if isinstance(value, tuple):
        return bool(value) and all(map(numeric, value))
    return isinstance(value, int | float)


def told_of(folder):
    here = ROOT / folder
    paths = [here] if here.is_file() else sorted(here.rglob("*.py"))
    return outcome([(str(p.relative_to(ROOT)), constants(p)) for p in paths if constants(p)])


CONSTANTS = {folder: lambda folder=folder: told_of(folder) for folder in PLACES}


def test_constants():
    assert {name: told() for name, told in CONSTANTS.items()} == CONSTANTS_TOLD


CONSTANTS_TOLD = {
    "olla_xla/place": "494acebc7620",
    "olla_xla/schedule/exact": "66cb944d968b",
    "olla_xla/solvers": "a42b25a239ec",
    "olla_xla/remat/segments": "e7e376a3b782",
    "benchmarks/eager": "29733914a430",
    "benchmarks/ilp_forms": "114bc7f1524b",
    "benchmarks/place_ilp": "095854d977cd",
    "benchmarks/profiles.py": "91fbe89c859a",
    "benchmarks/ilp.py": "b1cc33ecbb88",
    "benchmarks/ilp_steps.py": "d52d397343c9",
}
