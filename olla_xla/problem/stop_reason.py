"""Why a search ended."""

import enum


class StopReason(enum.StrEnum):
    """Why a search for an order or for offsets ended.

    Members are strings, and are written as such to plan files and to the rows of benchmarks.
    """

    PROOF = "proof"
    """A bound shows that no more than the tolerance is left to gain, or that there is no answer."""

    STALL = "stall"
    """Everything was tried, and nothing improved any more."""

    NO_GAIN = "no_gain"
    """Next to nothing could be gained over XLA's own order: no other was searched for."""

    CAPACITY = "capacity"
    """A packing within the given capacity was found; none smaller is required."""

    HEURISTIC = "heuristic"
    """The method is one heuristic alone, and it has run."""

    TIME_LIMIT = "time_limit"
    """The wall-clock seconds are used up."""

    STEP_LIMIT = "step_limit"
    """The steps of the search for an order are used up."""

    NODE_LIMIT = "node_limit"
    """The nodes of the search for offsets are used up."""

    SIZE_LIMIT = "size_limit"
    """The problem is too large for the exact search."""
