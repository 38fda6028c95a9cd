"""Settings every test needs before JAX is imported."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The compile-only GPU target has no device to tune on.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")
