"""Environment variables, read when they are needed; switches are on with 1, off with 0 or unset."""

import math
import os

from olla_xla.errors import InputError

_PATIENCE = 60.0


def switch(name: str) -> bool:
    """Whether an environment variable is 1. InputError if it is set to other than 0 or 1."""
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise InputError(f"{name}={text!r} must be 0 or 1")
    return text == "1"


def disabled() -> bool:
    """OLLA_XLA_DISABLE: planned functions run as `jax.jit`'s, and nothing is planned."""
    return switch("OLLA_XLA_DISABLE")


def any_jax() -> bool:
    """OLLA_XLA_ANY_JAX: allow a JAX that is newer than those that were tested."""
    return switch("OLLA_XLA_ANY_JAX")


def strict() -> bool:
    """OLLA_XLA_STRICT: raise an error that says why, instead of falling back on XLA's schedule."""
    return switch("OLLA_XLA_STRICT")


def report_at_exit() -> bool:
    """OLLA_XLA_REPORT: whether the table of all plans is written when the program ends."""
    return switch("OLLA_XLA_REPORT")


def log_is_json() -> bool:
    """OLLA_XLA_LOG: whether the log line of each plan is JSON."""
    text = os.environ.get("OLLA_XLA_LOG", "")
    if text not in ("", "text", "json"):
        raise InputError(f"OLLA_XLA_LOG={text!r} must be text or json")
    return text == "json"


def patience() -> float:
    """OLLA_XLA_PATIENCE: seconds that a process waits for another without a heartbeat from it."""
    text = os.environ.get("OLLA_XLA_PATIENCE", "")
    try:
        seconds = float(text or _PATIENCE)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"OLLA_XLA_PATIENCE={text!r} must be a positive number of seconds")
    return seconds
