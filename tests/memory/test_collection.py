"""Garbage collection is paused while a module is analysed, and goes on afterwards."""

import gc

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from hlo.gc_pause import without_collection
from olla_xla.memory.analysis import analysis as module


@pytest.mark.quick
@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_afterwards_as_it_was(enabled):
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError), without_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_an_analysis_collects_nothing(monkeypatch):
    seen = []
    real = module.bound_view

    def watched(*args):
        seen.append(gc.isenabled())
        return real(*args)

    monkeypatch.setattr(module, "bound_view", watched)
    olla_xla.analyze(jnp.tanh, jax.ShapeDtypeStruct((8, 8), jnp.float32))
    assert seen == [False] and gc.isenabled()
