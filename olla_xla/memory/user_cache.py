"""The user's cache folder: machine code of loops, rates of a machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_cache"]


def user_cache() -> Path:
    """Its path, which need not exist. Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "olla_xla"
