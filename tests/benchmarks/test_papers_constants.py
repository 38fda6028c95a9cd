"""Constants and defaults of the papers' parts, as they were looked at.

A limit that is twice as large, or a seed that is another, makes no result wrong, and another run:
what the documents' tables were measured with is told by these names alone.
"""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

from tests.support.outcomes import outcome

ROOT = Path(__file__).parents[2]
PLAIN = (int, float, str, bool, tuple, dict, frozenset, range)


def modules():
    """The modules in the tables of the papers' page, in the column of where."""
    page = (ROOT / "docs" / "guides" / "papers.md").read_text()
    found, folder = set(), Path()
    for line in page.splitlines():
        cells = line.split(" | ")
        for name in re.findall(r"`([\w/]+\.py)`", cells[1]) if len(cells) > 2 else ():
            path = Path(name) if (ROOT / name).exists() else folder / name
            folder = path.parent
            assert (ROOT / path).exists(), name
            found.add(".".join(path.with_suffix("").parts))
    return sorted(name for name in found if not name.startswith("examples"))


def is_plain(value):
    if isinstance(value, tuple | frozenset):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(is_plain(v) for item in value.items() for v in item)
    return value is None or type(value) in PLAIN


def defaults(thing):
    parameters = inspect.signature(thing).parameters.values()
    return [(p.name, p.default) for p in parameters if is_plain(p.default)]


def known(name):
    """Plain values by name, and of what a module defines, the values of parameters left out."""
    module = importlib.import_module(name)
    told = []
    for key, value in vars(module).items():
        if key.startswith("__"):
            continue
        if is_plain(value):
            told.append((key, value))
        elif getattr(value, "__module__", None) == name:
            if inspect.isclass(value):
                inner = [v for v in vars(value).values() if inspect.isfunction(v)]
                told += [(key, v.__name__, defaults(v)) for v in inner]
                if dataclasses.is_dataclass(value):
                    told.append((key, [(f.name, is_plain(f.default) and f.default)
                                       for f in dataclasses.fields(value)]))  # fmt: skip
            elif inspect.isfunction(value):
                told.append((key, defaults(value)))
    return outcome(told)


def test_constants_and_defaults():
    assert {name: known(name) for name in modules()} == TOLD


TOLD = {
    "benchmarks.eager.allocator": "090d8e760ab8",
    "benchmarks.eager.allocator_time": "1dc290e3c848",
    "benchmarks.eager.compiled_allocator": "fc78164fdbed",
    "benchmarks.eager.conflicts": "86cc3c65c2fc",
    "benchmarks.eager.graph": "5e62342273d0",
    "benchmarks.eager.ilp_alone": "1af02522b6ae",
    "benchmarks.eager.static": "9a90adfa1da1",
    "benchmarks.eager.unfused": "40f0f8e07102",
    "benchmarks.figures.benchmark_figures": "bd8418a53321",
    "benchmarks.figures.curves": "b8c5e99adc5b",
    "benchmarks.figures.sweep_figures": "2d1c8537fbd2",
    "benchmarks.ilp_forms.lifetimes_ilp": "a5619325bedc",
    "benchmarks.ilp_steps": "c3801f4bcc54",
    "benchmarks.place_ilp.arenas": "6f8cea4d22e8",
    "benchmarks.place_ilp.joint": "791a15fc0a46",
    "benchmarks.place_ilp.located": "f3cda4e120e2",
    "benchmarks.place_ilp.locations": "1c361ca8f681",
    "benchmarks.place_ilp.pyramid": "3aee5361da78",
    "benchmarks.profile_replay.profile": "e11866cb2c68",
    "benchmarks.profile_replay.replay": "057b1c3b2611",
    "benchmarks.profiles": "f1f7a4d994e1",
    "benchmarks.recordings.torch_trace": "bdf79cb59710",
    "benchmarks.sublinear_training": "4319677e43d1",
    "olla_xla.memory.lifetimes": "33eb1993216e",
    "olla_xla.place.placer": "0998544f0669",
    "olla_xla.place.rules.best_fit": "c8db9db64369",
    "olla_xla.planner.ilp": "9b8538d15914",
    "olla_xla.problem.to_networkx": "f8d682ee0420",
    "olla_xla.remat.segments.budget": "34856fc10e82",
    "olla_xla.remat.segments.mirror": "80ba3233cfda",
    "olla_xla.remat.segments.transform": "f3f26757ad50",
    "olla_xla.schedule.exact.control": "959f92f160f0",
    "olla_xla.schedule.exact.decode": "cfa6e4702391",
    "olla_xla.schedule.exact.running_ilp": "4608fc7df237",
    "olla_xla.schedule.exact.spans": "6b92f2eac601",
}
