"""Platforms: found by both names, and asked nowhere by name but where devices are."""

import re
from pathlib import Path

import pytest

import hlo.backend
from hlo.backend import PLATFORMS, platform, platform_of_jax

pytestmark = pytest.mark.quick

ROOT = Path(hlo.backend.__file__).parents[2]
BY_NAME = re.compile(r"(target|platform) *(==|!=) *\"(cpu|cuda)\"")
MAY = ("olla_xla/check/", "olla_xla/cli/", "olla_xla/compile/jax_private.py")
MAY += ("olla_xla/tools/measure/measure", "olla_xla/tools/measure/")
"""Referees have XLA's rules a second time; a CPU's and a GPU's devices are measured differently."""


def test_names():
    for name, found in PLATFORMS.items():
        assert platform(name) is found is platform_of_jax(found.jax_name) is platform_of_jax(name)
        assert name == found.name and found.alignment > 0
    for find in (platform, platform_of_jax):
        with pytest.raises(KeyError, match="rocm"):
            find("rocm")


def test_rules_are_asked_of_the_platform():
    files = [p for top in ("hlo", "olla_xla") for p in (ROOT / top).rglob("*.py")]
    names = {str(p.relative_to(ROOT)) for p in files if BY_NAME.search(p.read_text())}
    assert not {name for name in names if not name.startswith(MAY)}
