"""The version of this package, and the versions of JAX that it knows; and whose `hlo` is found."""

import importlib.metadata
import importlib.util
import json
import os
import re
from pathlib import Path

from olla_xla.errors import InputError

__version__ = "0.1.0"

OLDEST_JAX, TOO_NEW_JAX = (0, 11, 2), (0, 14)
"""From the first up to the second, which is not tested: XLA's rules are those of its version."""


def versions() -> dict[str, str]:
    """Returns name -> version of jax, jaxlib and olla-xla, on which plans and executables rely."""
    jax, jaxlib = map(importlib.metadata.version, ("jax", "jaxlib"))
    return {"jax": jax, "jaxlib": jaxlib, "olla-xla": __version__}


def old_jax() -> str:
    """Says that the installed JAX is too old, and what to do; "" if it is new enough or absent."""
    try:
        installed = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return ""  # its own ImportError says that
    if tuple(map(int, re.findall(r"\d+", installed)[:3])) >= OLDEST_JAX:
        return ""
    needed = ".".join(map(str, OLDEST_JAX))
    return f"olla_xla needs jax>={needed}, not {installed}; run pip install -U jax jaxlib"


def to_install(extra: str) -> str:
    """Returns the shell command that installs an optional dependency group (extra) of olla_xla.
    It is `uv sync` in a checkout, else `pip install` from the archive, repository or index used.
    """
    if (Path(__file__).parents[1] / "pyproject.toml").is_file():
        return f"uv sync --extra {extra}"
    try:
        given = importlib.metadata.distribution("olla-xla").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        given = None
    if not given:
        return f"pip install 'olla-xla[{extra}]'"
    source = json.loads(given)
    kind = source.get("vcs_info", {}).get("vcs", "")
    return f"pip install 'olla-xla[{extra}] @ {f'{kind}+' * bool(kind)}{source['url']}'"


def _require_own_hlo() -> None:
    """Raises InputError if Python's path has another package or module `hlo` before ours."""
    spec = importlib.util.find_spec("hlo")
    where = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or [])]
    own = os.path.join(os.path.dirname(os.path.dirname(__file__)), "hlo")
    if os.path.realpath(own) not in map(os.path.realpath, where):
        other = next(filter(None, where), "nothing")
        raise InputError(
            f"olla_xla needs its own package hlo, but Python finds {other} first; rename that file "
            "or folder, or move it out of the folder of your script"
        )


_require_own_hlo()
