"""Environment variables, read when they are needed; switches are on with 1, off with 0 or unset."""

import math
import os

from olla_xla.errors import InputError

_PATIENCE = 60.0


def switch(name: str) -> bool:
    """Whether an environment variable is 1; InputError if it is set to other than 0 or 1."""
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise InputError(f"{name}={text!r} must be 0 or 1")
    return text == "1"


def disabled() -> bool:
    """Whether OLLA_XLA_DISABLE=1: planned functions run as `jax.jit`'s, and nothing is planned."""
    return switch("OLLA_XLA_DISABLE")


def any_jax() -> bool:
    """Whether OLLA_XLA_ANY_JAX=1: a JAX that is newer than those that were tested is allowed."""
    return switch("OLLA_XLA_ANY_JAX")


def strict() -> bool:
    """Whether OLLA_XLA_STRICT=1: what cannot be planned raises an error instead of a fallback."""
    return switch("OLLA_XLA_STRICT")


def report_at_exit() -> bool:
    """Whether OLLA_XLA_REPORT=1: the table of all plans is printed when the program ends."""
    return switch("OLLA_XLA_REPORT")


def log_is_json() -> bool:
    """Whether OLLA_XLA_LOG=json: each plan's log line is JSON. InputError if it is set to anything
    else but text.
    """
    text = os.environ.get("OLLA_XLA_LOG", "")
    if text not in ("", "text", "json"):
        raise InputError(f"OLLA_XLA_LOG={text!r} must be text or json")
    return text == "json"


def patience() -> float:
    """Returns for how many seconds a process waits for another's heartbeat, from OLLA_XLA_PATIENCE;
    60 by default. InputError if that is no positive number.
    """
    text = os.environ.get("OLLA_XLA_PATIENCE", "")
    try:
        seconds = float(text or _PATIENCE)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"OLLA_XLA_PATIENCE={text!r} must be a positive number of seconds")
    return seconds
