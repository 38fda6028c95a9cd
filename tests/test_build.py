"""BUILD as Bazel would read it: each test target has all files that its tests import and read."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

QUICK = pytest.mark.quick

ROOT = Path(__file__).parent.parent


def glob(patterns, exclude=()):
    """The files of this checkout; caches are none of it."""
    found = {p for pattern in patterns for p in ROOT.glob(pattern) if p.is_file()}
    found -= {p for pattern in exclude for p in ROOT.glob(pattern)}
    names = (p.relative_to(ROOT) for p in found)
    return sorted(str(n) for n in names if n.suffix != ".pyc" and "__pycache__" not in n.parts)


@functools.cache
def targets():
    """Target -> its fields and its `rule`. Starlark, as far as BUILD uses it, is Python."""
    found = {}

    def rule(kind):
        def define(*, name, **fields):
            assert name not in found, name
            found[name] = {"rule": kind, **fields}

        return define

    rules = {kind: rule(kind) for kind in ("py_binary", "py_library", "py_test")}

    def ignored(*args, **fields):
        pass

    names = dict.fromkeys(("exports_files", "licenses", "load", "package"), ignored)
    exec((ROOT / "BUILD").read_text(), {"glob": glob, **rules, **names})
    return found


@functools.cache
def files(name):
    """All files that a target sees: its own, and those of what it depends on."""
    target = targets()[name]
    own = {*target["srcs"], *target.get("data", ())}
    return frozenset(own).union(*(files(d.removeprefix(":")) for d in target.get("deps", ())))


IMPORT = re.compile(
    r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n(]+)|import ([\w., ]+))", re.MULTILINE
)


@functools.cache
def there():
    """All files of Python."""
    tops = ("hlo", "olla_xla", "benchmarks", "examples", "tests", "docs")
    return frozenset(glob(["*.py", *(f"{top}/**/*.py" for top in tops)]))


@functools.cache
def imported(path):
    """The files of the repository that a file imports, their packages included."""
    found = set()
    for module, given, plain in IMPORT.findall((ROOT / path).read_text()):
        names = re.findall(r"[\w.]+", plain) if plain else [module]
        names += [f"{module}.{name}" for name in re.findall(r"\w+", given)]
        for name in names:
            parts = name.split(".")
            for k in range(1, len(parts) + 1):
                stem = "/".join(parts[:k])
                found |= {f"{stem}.py", f"{stem}/__init__.py"} & there()
    return found


TESTS = sorted(name for name, target in targets().items() if target["rule"] == "py_test")


def test_what_targets_import_is_among_their_files():
    for seen in {files(name) for name in [*TESTS, "fuzz_readers", "main", "run_benchmarks"]}:
        assert all((ROOT / file).is_file() for file in seen)
        assert not {(f, m) for f in seen if f.endswith(".py") for m in imported(f) if m not in seen}


def test_imports_are_seen_wherever_they_stand(tmp_path):
    file = tmp_path / "made.py"
    file.write_text(
        "import hlo.wire, os\ndef f():\n    from olla_xla.problem import (\n        plan,\n    )\n"
    )
    packages = {"hlo/__init__.py", "olla_xla/__init__.py", "olla_xla/problem/__init__.py"} & there()
    assert imported(str(file)) == {"hlo/wire.py", "olla_xla/problem/plan.py"} | packages


@QUICK
def test_every_test_has_a_target_that_runs_it():
    run = {f for name in TESTS for f in targets()[name]["srcs"]}
    there = {f for f in glob(["tests/**/*.py"]) if Path(f).name.startswith("test_")}
    assert there <= run
    assert set(glob(["tests/**/*.py"])) <= {f for name in targets() for f in files(name)}


def copied(name, tree):
    """The files of a target alone, and an environment that sees no others."""
    for file in files(name):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tree / file)
    return {**os.environ, "PYTHONPATH": str(tree), "PYTEST_ADDOPTS": ""}


def ran(command, tree, environment):
    """Runs a command in a tree, where it has to exit with 0."""
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]


def test_quick_tests_pass_with_their_target_s_own_files_alone(tmp_path):
    target, environment = targets()["problem_test"], copied("problem_test", tmp_path)
    command = [target["main"], "-q", "-m", "quick", "-p", "no:cacheprovider", *target["args"]]
    ran(command, tmp_path, environment)


def test_all_tests_run_alike():
    """They see the same files, so what one target shows above holds for all."""
    assert len({files(name) for name in TESTS}) == 1
    for name in TESTS:
        main = targets()[name]["main"]
        assert main == "tests/run.py" and main in files(name)
