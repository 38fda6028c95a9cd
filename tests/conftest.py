"""Settings every test needs before JAX is imported, and what keeps tests apart."""

import collections
import gc
import math
import os
import signal
import tempfile
import weakref

import pytest
from hypothesis import HealthCheck, settings

gc.disable()  # until all is collected, which imports what stays
# A busy machine draws examples slowly; that says nothing of a strategy.
settings.register_profile(
    "here",
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
    max_examples=int(os.environ.get("OLLA_XLA_EXAMPLES", "20")),
)
settings.load_profile("here")

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# LLVM's optimization takes a third of a compile; tests of what rounds alike are marked `optimized`.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# The compile-only GPU target has no device to tune on.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")

import jax  # noqa: E402

from benchmarks.refused import collected  # noqa: E402
from olla_xla.compile import shared  # noqa: E402
from olla_xla.remat.cost import devices  # noqa: E402
from olla_xla.remat.cost.calibrate import is_measuring  # noqa: E402
from olla_xla.solvers.linear import SolverLimits  # noqa: E402
from tests.support import plugins, rates  # noqa: E402

# Choices are the same on all machines, also on a busy one. Processes that tests start measure.
devices.calibrated_cpu = lambda: rates.CPU


def pytest_configure(config):
    """A folder for what the processes of this run share (support/compiles.py).

    Tests interrupt themselves, which a program that a shell runs in the background ignores.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        os.environ["OLLA_XLA_TESTS_SHARED"] = folder.name


def pytest_ignore_collect(collection_path, config):
    """With `-m quick`, files that have nothing of it are not imported either."""
    if config.option.markexpr == "quick" and collection_path.name.startswith("test_"):
        return "mark.quick" not in collection_path.read_text("utf-8") or None
    return None


def pytest_terminal_summary(terminalreporter):
    """The seconds that the tests of each file took, the longest first."""
    files = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            file = getattr(report, "nodeid", "").partition("::")[0]
            files[file] += getattr(report, "duration", 0.0)
    rows = [f"{seconds:.0f} {file}" for file, seconds in files.most_common() if seconds >= 10]
    if len(rows) > 1:
        terminalreporter.write_sep("=", "seconds a file, of 10 and more")
        terminalreporter.write_line("\n".join(rows))


def pytest_collection_modifyitems(items):
    """Files that take minutes begin: none of them is to run alone at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish():
    """What was imported stays; Python's collector need not look through it again and again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # traced functions are many small objects, few of them waste
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before fixtures of any scope
def pytest_runtest_setup(item):
    """What needs a plugin is skipped without it, and fails unless it is marked so."""
    marks = {mark.name for mark in item.iter_markers()}
    plugins.enter(marks)
    jax.config.update("jax_disable_most_optimizations", "optimized" not in marks)


def pytest_runtest_teardown():
    plugins.enter(None)


@pytest.fixture(autouse=True)
def unshared(monkeypatch):
    """What one test has planned of a function that many use is not known to the next."""
    monkeypatch.setattr(shared, "_known", weakref.WeakKeyDictionary())


@pytest.fixture(autouse=True)
def loops_are_compiled(monkeypatch):
    """What the plan of a small step has set for the process does not reach other tests."""
    monkeypatch.setattr("olla_xla.memory.jit._patience", 0.0)


@pytest.fixture
def any_choices_will_do(monkeypatch):
    """Integer programs of recomputation end early, or are left out: for tests of what follows."""
    limits = SolverLimits(time_limit=0.5, node_limit=50)
    monkeypatch.setattr("olla_xla.solvers.programs.residuals.LIMITS", limits)
    monkeypatch.setattr("olla_xla.remat.front._LEAST_SOLVING", math.inf)


@pytest.fixture
def compiles():
    """Counts XLA compiles, but for those of the benchmarks that measure a machine once."""
    count = []

    def listener(event, duration, **kwargs):
        if event.endswith("backend_compile_duration") and not is_measuring():
            count.append(kwargs.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listener)
    return count


@pytest.fixture(autouse=True)
def nothing_refused(request):
    """A test in which a referee refuses what the planner proposed fails, unless it is marked so."""
    with collected() as refused:
        yield
    if request.node.get_closest_marker("refused") is None:
        assert not refused, "; ".join(refused)
