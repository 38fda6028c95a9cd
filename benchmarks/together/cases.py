"""Faults in one of several processes, and the outcome that each must have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from olla_xla.errors import InputError


@dataclasses.dataclass(frozen=True)
class Case:
    """One planned function in a job.

    Attributes:
      troubles: what happens to which process (`worker.TROUBLES`): 0 is the one that plans, -1 the
        last one.
      planned: whether all are to run the plan; else none.
      kills: whether a process dies, so that the job ends with it.
      message: part of what all are told, or "".
    """

    troubles: Mapping[int, str] = dataclasses.field(default_factory=dict)
    planned: bool = False
    kills: bool = False
    message: str = ""


CASES: dict[str, Case] = {
    "planned": Case(planned=True),
    "one is a little late": Case({-1: "a little late"}, planned=True),
    "one comes too late": Case({-1: "late"}, message="did not begin to compile"),
    "the planner comes too late": Case({0: "late"}, message="did not begin to compile"),
    "one uses jax.jit": Case({-1: "jit"}, message="did not begin to compile"),
    "another program": Case({-1: "program"}, message="compile different"),
    "another jax": Case({-1: "version"}, message="0.11.2"),
    "the referee objects in one": Case({-1: "objects"}, message="olla_xla's check failed"),
    "the referee objects in the planner": Case({0: "objects"}, message="olla_xla's check failed"),
    "planning fails": Case({0: "fails"}, message="ZeroDivisionError"),
    "one cannot write the plan": Case({-1: "fails"}, message="ZeroDivisionError"),
    "one gets a plan that is spoilt": Case({-1: "spoilt"}, message="spoilt"),
    "one is interrupted": Case({-1: "interrupted"}, message="KeyboardInterrupt"),
    "one is silent": Case({-1: "silent"}, message="no sign of life"),
    "one is killed waiting": Case({-1: "killed waiting"}, kills=True, message="sign of life"),
    "one is killed before its vote": Case(
        {-1: "killed before its vote"}, kills=True, message="sign of life"
    ),
    "the planner is killed planning": Case({0: "killed planning"}, kills=True),
    "the planner is killed before its vote": Case({0: "killed before its vote"}, kills=True),
}
"""By name, in the order they are run."""


def parse_cases(names: list[str]) -> dict[str, Case]:
    """The cases of these names. Raises InputError if there is none of one."""
    if unknown := [name for name in names if name not in CASES]:
        raise InputError(f"no case {unknown[0]!r}; cases are {', '.join(CASES)}")
    return {name: CASES[name] for name in names}
