"""Offsets: heuristics and an exact search for placing blocks."""

from olla_xla.place.placer import METHODS, place
from olla_xla.place.problem import Packing, PlacementProblem

__all__ = ["METHODS", "Packing", "PlacementProblem", "place"]
