"""A GPU's executable is read where it can be; modes without an order are not planned."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from hlo import gpu_executable
from hlo.gpu_executable import read_gpu_executable
from olla_xla.compile import gpu_code, objection
from olla_xla.errors import CheckError
from tests.support.compiles import on_h100

pytestmark = pytest.mark.cuda13

FLAG = "xla_gpu_command_buffer_scheduling_mode"


def branches(weights, x):
    hidden = [jnp.tanh(x @ w) for w in weights]
    return [w * jnp.sum(h @ h.T) for w, h in zip(weights, hidden, strict=True)]


SHAPES = (
    [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 6,
    jax.ShapeDtypeStruct((512, 512), jnp.float32),
)


def lowered(**options):
    function = olla_xla.plan(branches, time_limit=20, step_limit=2000, **options)
    return function.lower(*on_h100(SHAPES))


@pytest.fixture(autouse=True)
def says_it_again():
    gpu_code._say.cache_clear()
    gpu_code._say_unknown.cache_clear()


def test_the_referee_sees_every_planned_executable(monkeypatch):
    seen = []

    def check(self, accepted=None):
        seen.append(self.gpu)
        return original(self, accepted)

    original = objection.Case.check
    monkeypatch.setattr(objection.Case, "check", check)
    result = lowered().compile()
    assert result.planned, result.reason
    assert seen[-1] is not None and len(seen[-1].thunks) > 10
    report = result.check()
    assert report.thunks == sum(1 for _ in seen[-1].all_thunks)
    assert report.assigned_bytes == result.plan.assigned_bytes


def test_an_executable_that_is_wrong_is_not_used(monkeypatch, tmp_path):
    """Two slices of a kernel are exchanged between XLA and the referee."""

    def wrong(data, decompress):
        found = read_gpu_executable(data, decompress)
        for k, thunk in enumerate(found.thunks):
            first, second, *rest = thunk.accesses
            if first.slice != second.slice and first.slice.size == second.slice.size:
                swapped = (
                    dataclasses.replace(first, slice=second.slice),
                    dataclasses.replace(second, slice=first.slice),
                )
                other = dataclasses.replace(thunk, accesses=(*swapped, *rest))
                thunks = (*found.thunks[:k], other, *found.thunks[k + 1 :])
                return dataclasses.replace(found, thunks=thunks)
        raise AssertionError("no thunk to change")

    monkeypatch.setattr(objection, "user_cache", lambda: tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(gpu_code, "read_gpu_executable", wrong)
        with pytest.warns(olla_xla.PlanWarning, match="olla_xla's check failed: thunk"):
            result = lowered().compile()
    assert not result.planned
    (path,) = tmp_path.glob("objections/olla_xla-objection-*.zip")
    case = objection.load(path)
    assert case.executable and case.objection.startswith("thunk")
    case.check()  # it was the reading that was wrong


def test_without_serialized_executables(monkeypatch):
    """What older versions of JAX give: the buffers that XLA must share are what is left."""
    monkeypatch.setattr(gpu_code, "serialized_executable", lambda compiled: b"")
    monkeypatch.setattr("olla_xla.compile.assignment.serialized_executable", lambda compiled: b"")
    result = lowered().compile()
    assert result.planned, result.reason
    with pytest.raises(CheckError, match="dump_options"):
        result.check()


def test_what_cannot_be_read_is_said_once(caplog):
    class Old:
        def runtime_executable(self):
            return self

    assert gpu_code.serialized_executable(Old()) == b""
    assert gpu_code.serialized_executable(Old()) == b""
    assert caplog.text.count("not every byte") == 1
    assert gpu_code.read_or_say(b"another format") is None
    assert gpu_code.read_or_say(b"") is None


def test_thunks_of_unknown_kinds_are_named(monkeypatch, caplog):
    kinds = {k: v for k, v in gpu_executable.KINDS.items() if v.name != "custom_kernel"}
    monkeypatch.setattr(gpu_executable, "KINDS", kinds)
    result = lowered().compile()
    assert result.planned, result.reason
    assert caplog.text.count("unknown kinds (field 36)") == 1


@pytest.mark.parametrize("mode", ["CONCURRENT", "CONCURRENT_REGIONS"])
def test_modes_without_an_order_are_not_planned(mode, caplog):
    options = {FLAG: mode}
    for result in (lowered(compiler_options=options).compile(), lowered().compile(options)):
        assert not result.planned and f"{FLAG}={mode}" in result.reason
    assert "leave the flag out" in caplog.text


def test_modes_in_xla_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--a=1 --{FLAG}=LHS --{FLAG}=CONCURRENT")
    assert f"{FLAG}=CONCURRENT " in gpu_code.without_order(())
    assert not gpu_code.without_order([(FLAG, "LHS")])
    monkeypatch.setenv("XLA_FLAGS", "--a=1")
    assert not gpu_code.without_order([(FLAG, 2), ("b", "CONCURRENT")])
    assert f"{FLAG}=CONCURRENT_REGIONS " in gpu_code.without_order([(FLAG, 3)])


def test_the_executable_says_its_mode(monkeypatch):
    """Where nobody has looked at the options before."""
    monkeypatch.setattr("olla_xla.compile.gpu_code.without_order", lambda options: "")
    result = lowered().compile({FLAG: "CONCURRENT"})
    assert not result.planned and f"{FLAG}=CONCURRENT" in result.reason


def test_kernels_with_other_memory_are_named_and_run(monkeypatch, caplog):
    monkeypatch.setattr("olla_xla.check.executable.differing", lambda found, expected: ["fusion.7"])
    caplog.set_level("INFO", "olla_xla")
    result = lowered().compile()
    assert result.planned, result.reason
    assert "do not share buffers as planned: fusion.7" in caplog.text
