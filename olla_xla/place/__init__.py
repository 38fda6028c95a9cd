"""Offsets: heuristics, an exact search and the paper's integer program for placing blocks."""

from olla_xla.place.ilp.located import Programs
from olla_xla.place.placer import METHODS, place
from olla_xla.place.problem import Packing, PlacementProblem

__all__ = ["METHODS", "Packing", "PlacementProblem", "Programs", "place"]
