"""Garbage collection is paused while a module is analysed, and goes on afterwards."""

import gc

import jax
import jax.numpy as jnp

import olla_xla
from olla_xla.analysis import analysis as module


def test_an_analysis_collects_nothing(monkeypatch):
    seen = []
    real = module.bound_view

    def watched(*args):
        seen.append(gc.isenabled())
        return real(*args)

    monkeypatch.setattr(module, "bound_view", watched)
    olla_xla.analyze(jnp.tanh, jax.ShapeDtypeStruct((8, 8), jnp.float32))
    assert seen == [False] and gc.isenabled()
