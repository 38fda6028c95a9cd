"""The devices a step can be planned for."""

from olla_xla.targets.target import TARGETS, Target, prepare_environment, target

__all__ = ["TARGETS", "Target", "prepare_environment", "target"]
