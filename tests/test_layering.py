"""Dependencies point one way: BUILD says which layer may import which, and this holds it to it."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

from tests.test_budgets import SATELLITES

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
PACKAGES = ("hlo", "olla_xla", "examples", "benchmarks")
SOURCES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))
XLA_PROTO = "hlo.xla_pb2"


def _files(node: ast.expr) -> set[str]:
    """The files of a `srcs`: lists, globs and sums of them."""
    if isinstance(node, ast.BinOp):
        return _files(node.left) | _files(node.right)
    if isinstance(node, ast.List):
        return {element.value for element in node.elts if isinstance(element, ast.Constant)}
    assert isinstance(node, ast.Call)
    patterns = ast.literal_eval(node.args[0])
    excluded = {k.arg: ast.literal_eval(k.value) for k in node.keywords}.get("exclude", [])
    found = {p for pattern in patterns for p in ROOT.glob(pattern)}
    found -= {p for pattern in excluded for p in ROOT.glob(pattern)}
    return {str(p.relative_to(ROOT)) for p in found}


@functools.cache
def targets() -> dict[str, tuple[set[str], set[str]]]:
    """Target -> (its files, the targets it names) of the package's py_library rules."""
    found = {}
    for statement in ast.parse((ROOT / "BUILD").read_text()).body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        if call.func.id == "py_library" and "testonly" not in {k.arg for k in call.keywords}:
            fields = {k.arg: k.value for k in call.keywords}
            deps = ast.literal_eval(fields["deps"]) if "deps" in fields else []
            name = ast.literal_eval(fields["name"])
            found[name] = _files(fields["srcs"]), {d.removeprefix(":") for d in deps}
    return found


@functools.cache
def reach(name: str) -> set[str]:
    """A target and all below it."""
    return {name}.union(*(reach(below) for below in targets()[name][1]))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def owner() -> dict[str, str]:
    """Module -> the target that holds it."""
    return {module_of(ROOT / f): name for name, (files, _) in targets().items() for f in files}


@functools.cache
def modules() -> frozenset[str]:
    """All of the project's."""
    return frozenset(module_of(p) for p in SOURCES)


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Of a file's syntax tree, all that are asked about here."""
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.Compare
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, kinds)]


@functools.cache
def imports(path: Path) -> set[str]:
    """The project's modules that a file imports: at its top, in a function, for types alone."""
    known, found = modules(), set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & known or {node.module}
    return found & known


def test_layers_form_no_cycle():
    def visit(name, above):
        assert name not in above, f"{name} depends on itself"
        for below in targets()[name][1]:
            visit(below, (*above, name))

    for name in targets():
        visit(name, ())


def packages(path: Path) -> set[str]:
    """What a file's `from package import module` loads too: the packages."""
    return {n.module for n in nodes(path) if isinstance(n, ast.ImportFrom) and n.module} & modules()


def test_files_form_no_cycle():
    graph = {module_of(p): (imports(p) | packages(p)) - {module_of(p)} for p in SOURCES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_files_and_functions_are_short():
    held = [p for p in SOURCES if not p.name.endswith("_pb2.py") and "benchmarks" not in p.parts]
    long = [module_of(p) for p in held if p.read_text().count("\n") > 450]
    for path in held:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.end_lineno - node.lineno >= 80:
                    long.append(f"{module_of(path)}.{node.name}")
    assert not long


def test_every_file_has_one_target():
    held = [f for files, _ in targets().values() for f in files]
    assert len(held) == len(set(held))
    missing = {str(p.relative_to(ROOT)) for p in SOURCES} - set(held)
    assert not missing, "name these files in BUILD"


def test_every_test_is_in_a_target():
    """Folders of tests are those of the package, and each is named in BUILD."""
    folders = {p.parent.name for p in ROOT.glob("tests/*/test_*.py")}
    text = (ROOT / "BUILD").read_text()
    assert folders | {"budgets", "build", "layering"} == set(
        re.findall(r'^    "(\w+)",$', text, re.M)
    )
    assert folders - {"benchmarks", "examples"} <= {
        p.name for p in (ROOT / "olla_xla").iterdir()
    } | {"hlo"}
    whole = {p.name for p in ROOT.glob("tests/test_*.py")}
    assert whole == {"test_budgets.py", "test_build.py", "test_layering.py"}


def test_few_entries_at_the_root():
    entries = [p.name for p in (ROOT / "olla_xla").iterdir() if p.name != "__pycache__"]
    assert len(entries) <= 20


def test_imports_go_down():
    owners = owner()
    wrong = [
        f"{module_of(path)} imports {module} of {owners[module]}"
        for path in SOURCES
        for module in imports(path)
        if owners[module] not in reach(owners[module_of(path)])
    ]
    assert not wrong


def test_what_is_installed_imports_nothing_else():
    installed = {name for m, name in owner().items() if m.startswith(("hlo", "olla_xla"))}
    assert set().union(*map(reach, installed)) == installed


CORE = {"hlo", "errors", "problem", "check", "memory", "schedule", "remat", "planner"}
CORE.add("compile")


def test_the_core_imports_no_satellite():
    assert set().union(*map(reach, CORE)) == CORE
    # What is no satellite by `budgets.toml` is the core, the decorator or the face.
    beyond = {f for name, (files, _) in targets().items() for f in files if name not in CORE}
    satellite = tuple(f"{folder}/" for folder in SATELLITES)
    left = {f for f in beyond if f.startswith("olla_xla/") and not f.startswith(satellite)}
    doors = {"__init__", "__main__", "compile/decorator"}
    assert left == {f"olla_xla/{name}.py" for name in doors}
    assert not [f for name in CORE for f in targets()[name][0] if f.startswith(satellite)]


def test_the_lowest_layer_imports_nothing_of_ours():
    assert targets()["hlo"][1] == set()
    # A referee shares no code with what it judges.
    assert reach("check") == {"check", "errors", "hlo", "problem"}


def test_only_hlo_and_what_judges_it_touch_the_proto():
    users = {module_of(p) for p in SOURCES if XLA_PROTO in imports(p)}
    allowed = (
        "hlo.",
        "olla_xla.check.executable.",
        "benchmarks.audit.",
        "benchmarks.mutants.",
        "benchmarks.thunks.",
    )
    assert all(u.startswith(allowed) for u in users)


def test_the_referee_shares_no_analysis_with_the_planner():
    used = set().union(
        *(imports(p) for p in SOURCES if module_of(p).startswith("olla_xla.check.executable"))
    )
    own = {m for m in used if not m.startswith("olla_xla.check.executable")}
    read = {XLA_PROTO, "hlo.device_groups", "hlo.gc_pause", "hlo.late", "hlo.module", "hlo.shapes"}
    read |= {"hlo.cpu_executable", "hlo.gpu_executable", "hlo.gpu_thunks"}
    read |= {"hlo.slices", "hlo.wire"}
    assert own <= {*read, "olla_xla.errors"}


def test_a_wrong_import_is_seen(tmp_path):
    file = tmp_path / "lifetimes.py"
    file.write_text("def f():\n    from olla_xla import planner\n")
    assert imports(file) == {"olla_xla.planner"}
    assert owner()["olla_xla.planner"] not in reach(owner()["olla_xla.memory.lifetimes"])


BY_NAME = (
    "olla_xla/check/",
    "olla_xla/tools/measure/measure",
    "olla_xla/tools/doctor/",
    "olla_xla/tools/measure/",
)
"""The referee has XLA's rules a second time, by the platform's name; what runs a step in a process
of its own is told by name where."""


def test_platforms_are_told_apart_by_their_objects():
    """What differs from platform to platform is a field of `hlo.backend.Platform`."""
    names, wrong = {"cpu", "cuda", "gpu"}, []
    for path in SOURCES:
        if "benchmarks" in path.parts or str(path.relative_to(ROOT)).startswith(BY_NAME):
            continue
        for node in nodes(path):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                named = {s.value for s in sides if isinstance(s, ast.Constant)} & names
                asked = ast.unparse(node)
                if named and "environ" not in asked and "values.target" not in asked:
                    wrong.append(f"{module_of(path)}: {asked}")
    assert not wrong
