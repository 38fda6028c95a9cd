"""Shows which tensors make the memory of B differ from that of A: `olla_xla diff A B`.

A and B are either two plan files, or each is one of: a file that `olla_xla analyze --json=FILE`
wrote; a dumped module (HLO text or proto, StableHLO), whose memory is predicted for --target; or a
version of JAX such as jax==0.11.2, under which the step of --model is compiled in a separate
environment (made with uv).
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

import olla_xla.targets as targets
from hlo.backend import platform
from olla_xla.analysis.analysis import Executable, analyze_module
from olla_xla.analysis.difference import Snapshot, difference, load_snapshot
from olla_xla.cli.commands import shared
from olla_xla.cli.report.plans import difference_line, difference_table
from olla_xla.errors import InputError, OllaError

OPERANDS = ("A", "B")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla diff` in `values`."""
    shared.define_model(values)
    shared.define_target(values, "Device for which HLO dumps and models are compiled.")
    shared.define_largest(values, 15, "Number of differences to list.")
    shared.define_format(values)


def run(values: flags.FlagValues, before: str, after: str) -> int:
    """Reads or compiles both operands, and prints how their memory differs. Returns 0.
    Raises InputError if one is of no known kind, or they are a plan and an analysis.
    """
    targets.prepare_environment(values.target)
    comparison = difference(_snapshot(values, before), _snapshot(values, after))
    shared.console().print(difference_line(comparison), markup=False, soft_wrap=True)
    shared.print_table(values, difference_table(comparison, values.largest))
    return 0


def _snapshot(values: flags.FlagValues, text: str) -> Snapshot:
    """Returns the memory of one operand: stored, a dumped module's, or --model's under some JAX."""
    version = jax_version(text)
    if version is not None:
        if values.model is None:
            raise InputError(f"{text} is a version of JAX; give a step to compile: --model=NAME")
        names = ("model", "batch_size", "optimizer", "target")
        arguments = [f"--{name}={values[name].value}" for name in names]
        gpu = not platform(targets.TARGETS[values.target]).is_host
        return Snapshot.of_analysis(analysis_under(version, arguments, gpu=gpu), text)
    if stored := load_snapshot(text):
        return stored
    module = Executable(shared.scheduled_module(values, text).data)
    analysis = analyze_module(module, targets.TARGETS[values.target])
    return Snapshot.of_analysis(analysis, text)


_VERSION = re.compile(r"jax==(\d[\w.]*)$")


def jax_version(text: str) -> str | None:
    """Returns the version in text such as "jax==0.11.2"; None if the text is something else."""
    match = _VERSION.match(text)
    return match[1] if match else None


def analysis_under(version: str, arguments: Sequence[str], *, gpu: bool) -> dict[str, Any]:
    """Runs `olla_xla analyze` under a version of JAX, in another environment; returns its JSON.
    `version`: of jax and jaxlib. `arguments`: flags of the command. `gpu`: whether its CUDA plugin
    is needed too. Raises InputError without uv, OllaError if the command fails there.
    """
    uv = shutil.which("uv")
    if uv is None:
        raise InputError("to compare versions of JAX, olla_xla needs uv; run pip install uv")
    packages = [f"jax[cuda13]=={version}" if gpu else f"jax=={version}", f"jaxlib=={version}"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "analysis.json"
        command = [uv, "run", *(f"--with={package}" for package in packages)]
        command += ["python", "-m", "olla_xla", "analyze", f"--json={path}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise OllaError(f"jax {version}: {lines[-1] if lines else 'olla_xla analyze failed'}")
        return json.loads(path.read_text())
