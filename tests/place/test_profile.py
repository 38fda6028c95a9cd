"""Arrays of NumPy programs as they are recorded, replayed from a planned arena."""

import doctest

import numpy as np

from olla_xla.bench import profiles
from olla_xla.place import profile
from olla_xla.place.profile import Recorder
from olla_xla.place.record_arrays import recorded


def test_arrays_are_recorded_until_nothing_refers_to_them():
    recorder = Recorder()
    given = recorded(np.ones((4, 4)), recorder)
    product = given @ given  # request 0, at time 0
    view = product[:2]
    copy = np.exp(product)  # request 1, at time 1
    del product
    shifted = view + 1  # request 2, at time 2: the view holds request 0
    del view  # time 3
    del copy, shifted  # times 4 and 5
    del given
    problem = recorder.problem()
    assert problem.size.tolist() == [128, 128, 64]
    assert problem.lower.tolist() == [0, 1, 2]
    assert problem.upper.tolist() == [3, 4, 5]


def test_what_is_made_while_interrupted_is_not_recorded():
    recorder = Recorder()
    given = recorded(np.ones(4), recorder)
    recorder.interrupt()
    lost = given + 1
    recorder.resume()
    kept = given + 1
    del lost, kept
    assert len(recorder.problem()) == 1


def test_a_loop_of_one_length_is_served_as_recorded():
    row = profiles.measure("training, one length")
    assert row.replans == row.elsewhere == 0
    assert row.live_bytes == row.arena_bytes <= row.caching_bytes


def test_a_profile_for_each_length():
    row = profiles.measure("training, a profile for each of four lengths")
    assert row.replans == row.elsewhere == 0 and 1 < row.profiles <= 4
    assert row.live_bytes == row.arena_bytes


def test_changing_lengths_outgrow_one_profile():
    row = profiles.measure("inference, changing lengths")
    assert row.live_bytes <= row.arena_bytes + row.elsewhere_bytes


def test_the_example_holds():
    assert doctest.testmod(profile).failed == 0
