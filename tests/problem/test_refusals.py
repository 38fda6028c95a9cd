"""Refused proposals: each is counted once, for the plan that was made in this thread."""

import threading

import pytest

from benchmarks.refused import collected
from olla_xla.problem import refusals

pytestmark = [pytest.mark.quick, pytest.mark.refused]


def test_what_was_proposed_and_refused():
    with refusals.counted() as tally:
        refusals.accepted()
        for reason in ("one", "another"):
            refusals.note("a choice", ValueError(reason))
    assert (tally.proposed, len(tally.errors)) == (3, 2)
    refusals.accepted()
    assert tally.proposed == 3


def test_a_proposal_that_is_asked_for_again_counts_once():
    error = ValueError("it needs itself")
    with collected() as found, refusals.counted() as tally:
        refusals.note("a choice", error)
        refusals.note("a choice", error)
    assert tally.proposed == len(found) == 1


def test_other_threads_count_for_themselves():
    with collected() as found, refusals.counted() as tally:
        thread = threading.Thread(target=refusals.note, args=("a choice", ValueError()))
        thread.start()
        thread.join()
    assert tally.proposed == 0 and len(found) == 1
