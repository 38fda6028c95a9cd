"""A step's analysis under another version of JAX, in an environment of its own made by uv."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olla_xla.errors import InputError, OllaError

_VERSION = re.compile(r"jax==(\d[\w.]*)$")


def jax_version(text: str) -> str | None:
    """The version in "jax==0.11.2", or None where the text is something else."""
    match = _VERSION.match(text)
    return match[1] if match else None


def analysis_under(version: str, arguments: Sequence[str], *, gpu: bool) -> dict[str, Any]:
    """What `olla_xla analyze` with these flags says under a version of JAX.

    Args:
      version: of jax and jaxlib. arguments: flags of the command.
      gpu: whether the CUDA plugin of that version is needed too.

    Raises:
      InputError: uv is not installed.
      OllaError: the command failed there.
    """
    uv = shutil.which("uv")
    if uv is None:
        raise InputError("to compare versions of jax, olla_xla needs uv; pip install uv")
    packages = [f"jax[cuda13]=={version}" if gpu else f"jax=={version}", f"jaxlib=={version}"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "analysis.json"
        command = [uv, "run", *(f"--with={package}" for package in packages)]
        command += ["python", "-m", "olla_xla.cli", "analyze", f"--json={path}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise OllaError(f"jax {version}: {lines[-1] if lines else 'olla_xla analyze failed'}")
        return json.loads(path.read_text())
