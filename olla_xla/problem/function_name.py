"""The names of users' functions in messages."""

import functools
from typing import Any


def function_name(function: Any) -> str:
    """Returns a callable's name for messages, or its type's; for a partial, its function's."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
