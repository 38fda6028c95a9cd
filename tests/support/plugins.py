"""JAX's plugins for targets that are not here, by the names of the extras that install them.

A test that needs one is marked with its name: it is skipped where the plugin is missing, and
`-m "cuda13 or tpu"` selects what only runs with them.
"""

import importlib.util

import pytest

PLUGINS = ("cuda12", "cuda13", "tpu")
_MODULES = {"tpu": ("libtpu",)}
_marked: set[str] | None = None  # outside of a test: None


def mark(plugin: str) -> pytest.MarkDecorator:
    """That of a test which needs it."""
    return getattr(pytest.mark, plugin)


CUDA = pytest.param("cuda", marks=mark("cuda13"))
H100 = pytest.param("h100", marks=mark("cuda13"))
"""A platform and a target as parameters of a test."""


def has(plugin: str) -> bool:
    """Whether a plugin is here."""
    modules = _MODULES.get(plugin, ("jax_plugins", f"jax_plugins.xla_{plugin}"))
    return all(importlib.util.find_spec(name) for name in modules)


def need(plugin: str) -> None:
    """Skips the test that asks where a plugin is missing; a test not marked with it fails."""
    if _marked is not None and plugin not in _marked:
        pytest.fail(f"mark this test with pytest.mark.{plugin}: it needs that plugin")
    if not has(plugin):
        pytest.skip(f"install olla-xla[{plugin}]")


def enter(marks: set[str] | None) -> None:
    """A test with these marks begins; None: it has ended."""
    global _marked
    _marked = marks
    for plugin in sorted((marks or set()) & {*PLUGINS}):
        need(plugin)
