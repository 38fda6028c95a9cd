"""Settings every test needs before JAX is imported, and what keeps tests apart."""

import os
import weakref

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The compile-only GPU target has no device to tune on.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")

from olla_xla.compile import shared  # noqa: E402  # imports JAX


@pytest.fixture(autouse=True)
def unshared(monkeypatch):
    """What one test has planned of a function that many use is not known to the next."""
    monkeypatch.setattr(shared, "_known", weakref.WeakKeyDictionary())
