"""Choices for a step whose backward loop gathers weights together with an activation.

XLA's combiner joins several all-gathers into one, which then waits for all that it transfers.
Weights that come with a scan residual's value cannot be used to make that value again.
"""

import gzip
import pathlib

import pytest

from hlo.module import Module, module_from_bytes
from olla_xla.remat.cost.roofline import H100, CostModel
from olla_xla.remat.loops.residual_choices import ResidualChoices

STEP = pathlib.Path(__file__).parent / "moe_step.pb.gz"


@pytest.fixture(scope="module")
def choices():
    """Of a mixture of experts on eight H100s, weights sharded by two and experts by four."""
    module = module_from_bytes(gzip.decompress(STEP.read_bytes()))
    return ResidualChoices(module, "cuda", CostModel(H100, "cuda"), collectives=True, beside=True)


def test_no_choice_waits_for_itself(choices):
    (choice,) = choices._choices
    assert choice.table.late, "the step has no gather of weights and an activation in one"
    for k in range(len(choices)):
        assert isinstance(choices.choice(k).module, Module)


def test_joined_weights_are_read_where_the_activation_stays(choices):
    """Both ways compete: what is gathered anyway is used, unless that closes a cycle."""
    (choice,), (safe,) = choices._choices, choices._safe
    assert safe.table.own.keys() == choice.table.own.keys() - choice.table.late.keys()
    assert choice.is_possible(choice.gone(0.0))
    every = type(choice.gone(0.0))(frozenset(s.written for s in choice.table.pair.scan_residuals))
    assert not choice.is_possible(every)
