"""The devices a step can be planned for, present or not."""

from olla_xla.targets.target import (
    TARGETS,
    Card,
    Target,
    card,
    installed,
    prepare_environment,
    target,
)

__all__ = ["TARGETS", "Card", "Target", "card", "installed", "prepare_environment", "target"]
