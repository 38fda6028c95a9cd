"""What is read of a device's memory statistics, on a device that is none."""

import pytest

from olla_xla.compile.process_memory import DevicePeak, device_bytes
from olla_xla.tools.measure.measured_run import run_twice
from olla_xla.tools.measure.one_process import run_steps
from tests.support.fake_device import FakeArray, FakeDevice

STATE, DATA, SCRATCH = 256, 8, 64


def step(device, donated=False):
    """A step whose state is an argument and a result, and that needs scratch memory."""

    def run(state, data):
        if donated:
            state.free()
        new = FakeArray(device, STATE)
        scratch = FakeArray(device, SCRATCH)
        del scratch
        return [new]

    return run


def arguments(device):
    return [FakeArray(device, STATE), FakeArray(device, DATA)]


@pytest.mark.parametrize("donated, most", [(False, 2 * STATE), (True, STATE)])
@pytest.mark.parametrize("held", [0, 1000])
def test_an_executable_takes_what_was_in_use_beyond_what_was_there(donated, most, held):
    device = FakeDevice(held, peak=held + 5)
    measured, own = run_twice(step(device, donated), lambda: arguments(device), device)
    assert measured == most + DATA + SCRATCH and own == STATE + DATA
    assert device_bytes(device, "bytes_in_use") == held


@pytest.mark.parametrize("device", [FakeDevice(tells=False), FakeDevice(peak=10_000)])
def test_nothing_is_measured_where_nobody_tells_or_more_was_in_use_before(device):
    measured, own = run_twice(step(device), lambda: arguments(device), device)
    assert measured is None and own == STATE + DATA


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_state_that_is_not_donated_is_held_by_its_step_alone(monkeypatch, steps):
    monkeypatch.setattr("olla_xla.tools.measure.one_process._digest", lambda leaf: "digest")
    device = FakeDevice(held=7)
    peak = DevicePeak(device)
    given = [arguments(device)]
    made = run_steps(step(device), given, steps, lambda new, old: [new[0], *old[1:]])
    assert given == [] and made[0] == ("[0]",) and len(made[1]) == len(made[2]) == steps
    assert peak.bytes() == 2 * STATE + DATA + SCRATCH
    assert device_bytes(device, "bytes_in_use") == 7


def test_a_peak_is_of_what_came_after_it_was_made():
    device = FakeDevice(held=100, peak=500)
    assert device_bytes(device, "peak_bytes_in_use") == 500
    peak = DevicePeak(device)
    small = FakeArray(device, 400)
    assert peak.bytes() is None, "it is as high as before, so nobody knows of what it is"
    large = FakeArray(device, 1)
    assert peak.bytes() == 401
    del small, large
    assert peak.bytes() == 401
