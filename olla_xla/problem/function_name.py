"""What a user's function is called in messages."""

import functools
from typing import Any


def function_name(function: Any) -> str:
    """A callable's name for messages; of a `functools.partial`, that of the function it calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
