"""The user's folder for what can be made again: machine code of loops, rates of a machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_cache"]


def user_cache() -> Path:
    """Its path; nothing need be there. Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "olla_xla"
