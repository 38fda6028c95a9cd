"""JAX's own tests, by jax.jit and with olla_xla.plan in its place, side by side.

    git clone --depth=1 --branch=jax-v0.11.2 https://github.com/jax-ml/jax
    uv run python -m tests.jax_files jax/tests aot_test ode_test

The tests should be of the version of JAX that is installed. Each file runs in a process of its own,
as often as there are ways; what is compared are the tests that both came to in --seconds. Exit code
1 if one passes under jax.jit only.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

WAYS = ("jit", "plan")
_WAY, _RESULTS = "OLLA_XLA_TESTS_WAY", "OLLA_XLA_TESTS_RESULTS"
_OVERHEAD = "OLLA_XLA_TESTS_MAX_OVERHEAD"


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin of pytest: jax.jit is olla_xla.plan from here on, of whatever there is."""
    if os.environ[_WAY] != "plan":
        return
    import jax

    import olla_xla

    overhead = float(os.environ[_OVERHEAD])

    @functools.wraps(jax.jit)  # libraries ask for its name
    def planned(*functions: Any, **options: Any) -> Any:
        return olla_xla.plan(*functions, time_limit=0.3, max_overhead=overhead, **options)

    jax.jit = planned


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """As a plugin of pytest: notes each test's outcome, so that one that is cut off loses none."""
    if report.when == "call" or report.failed or report.skipped:
        name = report.nodeid.split("::", 1)[-1]
        with open(os.environ[_RESULTS], "a") as out:
            out.write(json.dumps([name, report.outcome, str(report.longrepr or "")[-2000:]]) + "\n")


def outcomes(path: Path, way: str, seconds: float, more: list[str]) -> dict[str, tuple[str, str]]:
    """Test -> outcome and message, of one file; where it is cut off, of those that it came to."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        results.touch()
        environment = {**os.environ, _WAY: way, _RESULTS: str(results)}
        environment["XDG_CACHE_HOME"] = str(Path(folder) / "cache")  # a machine not measured
        here = Path(__file__).parent.parent
        environment["PYTHONPATH"] = f"{here}:{environment.get('PYTHONPATH', '')}"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.jax_files", "-c", os.devnull]
        with open(Path(folder) / "log", "w") as log:
            process = subprocess.Popen(
                [*command, "--rootdir", path.parent, path, *more],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        found: dict[str, tuple[str, str]] = {}
        for line in results.read_text().splitlines():
            name, outcome, message = json.loads(line)
            found[name] = outcome, message
        if not found:
            print((Path(folder) / "log").read_text()[-2000:], file=sys.stderr)
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the files, prints a line for each and one for each test that differs."""
    parser = argparse.ArgumentParser(description="JAX's own tests, by jax.jit and planned.")
    parser.add_argument("tests", type=Path, help="folder of JAX's tests")
    parser.add_argument("files", nargs="+", help="names of files without .py")
    parser.add_argument("--seconds", type=float, default=600, help="of each run")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--max_overhead", type=float, default=0.0, help="of every plan")
    parser.add_argument("--select", default="", help="tests to run, as pytest's -k")
    given = parser.parse_args(argv)
    more = ["-k", given.select] if given.select else []
    os.environ[_OVERHEAD] = str(given.max_overhead)
    rows, worse = [], 0
    for name in given.files:
        path = (given.tests / f"{name}.py").absolute()
        jit, plan = (outcomes(path, way, given.seconds, more) for way in WAYS)
        both = jit.keys() & plan.keys()
        passed = [sum(by[t][0] == "passed" for t in both) for by in (jit, plan)]
        differ = {t: plan[t] for t in both if jit[t][0] == "passed" != plan[t][0]}
        cut = "" if jit.keys() == plan.keys() else f", of {len(jit | plan)} that either came to"
        print(f"{name}: jit {passed[0]}, plan {passed[1]} of {len(both)}{cut}", flush=True)
        for test, (_, message) in differ.items():
            print(f"  {test}: {message.strip().splitlines()[-1:]}", flush=True)
        worse += len(differ)
        rows.append({"file": name, "jit": jit, "plan": plan})
        if given.out:
            given.out.write_text(json.dumps(rows, indent=1))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
