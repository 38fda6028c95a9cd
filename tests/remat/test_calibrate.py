"""Rates of this machine's CPU: measured once, kept in a file, and again if others disturbed."""

import dataclasses
import json
import os
import subprocess
import sys
import time

import jax
import pytest

import olla_xla
from olla_xla.remat.cost import calibrate, cpu_benchmarks
from tests.support.rates import CPU


def test_rates_are_measured(monkeypatch):
    monkeypatch.setattr(cpu_benchmarks, "_ELEMENTS", 1 << 20)
    monkeypatch.setattr(cpu_benchmarks, "_SOME", 1 << 16)
    monkeypatch.setattr(cpu_benchmarks, "_SQUARE", 64)
    monkeypatch.setattr(cpu_benchmarks, "_IMAGES", (2, 8, 8, 16))
    monkeypatch.setattr(cpu_benchmarks, "_MOMENT", 0.005)
    rates = dataclasses.asdict(cpu_benchmarks.measure_cpu())
    assert rates.pop("near_bytes") == 0, "caches are not assigned"
    assert rates.pop("name") == "CPU" and all(rate > 0 for rate in rates.values()), rates
    assert rates["start_seconds"] < 1e-2 and rates["matrix_per_second"] > 1e6


def test_benchmarks_are_not_planned_where_jit_is_replaced(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in (("_ELEMENTS", 1 << 20), ("_SQUARE", 64), ("_IMAGES", (2, 8, 8, 16))):
        monkeypatch.setattr(cpu_benchmarks, name, value)
    monkeypatch.setattr(cpu_benchmarks, "_MOMENT", 0.001)
    calibrate._calibrated.cache_clear()
    jit, planned = jax.jit, []

    def replaced(function, **options):
        planned.append(olla_xla.plan(jit(function, **options), time_limit=0.3))
        return planned[-1]

    monkeypatch.setattr(jax, "jit", replaced)
    try:
        assert calibrate.calibrated_cpu().bytes_per_second > 0
    finally:
        calibrate._calibrated.cache_clear()
    assert not planned
    assert not calibrate.is_measuring()


def test_a_busy_process_beside_this_one_is_seen():
    if calibrate._processor_seconds() is None:
        pytest.skip("this system does not tell what processes take")
    beside = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        _, others = calibrate._others(lambda: time.sleep(0.5))
    finally:
        beside.kill()
        beside.wait()
    assert others > 0.3 / (os.cpu_count() or 1)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """How often rates were measured; asks for them again, as another process does."""
    times = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_benchmarks, "measure_cpu", lambda: times.append(1) or CPU)

    def again(busy=0.0):
        monkeypatch.setattr(calibrate, "_others", lambda work: (work(), busy))
        calibrate._calibrated.cache_clear()
        assert calibrate.calibrated_cpu() == CPU
        return len(times)

    yield again
    calibrate._calibrated.cache_clear()


def test_the_cpu_is_measured_once(measured, tmp_path):
    assert (measured(), measured()) == (1, 1)
    (file,) = (tmp_path / "olla_xla").iterdir()
    kept = json.loads(file.read_text(), parse_constant=float)
    assert kept == {"rates": dataclasses.asdict(CPU), "busy": False}
    file.write_text("{")
    assert measured() == 2


def test_rates_that_others_disturbed_are_measured_again(measured):
    assert [measured(busy) for busy in (0.5, 0.5, 0.0, 0.5, 0.0)] == [1, 1, 2, 2, 2]


def test_rates_are_those_of_the_cores_that_a_process_may_use(measured, monkeypatch):
    for cores, times in ((1, 1), (2, 2), (1, 2)):
        monkeypatch.setattr(calibrate, "_cores", lambda cores=cores: cores)
        assert measured() == times
