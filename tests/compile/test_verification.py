"""Planned executables that are wrong: the referee objects, `verify=True` sees it in the results."""

import dataclasses
import re
import warnings
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from hlo import xla_pb2
from olla_xla import planner
from olla_xla.check.executable import results_digest
from olla_xla.cli.main import main
from olla_xla.compile import objection, verification
from olla_xla.errors import CheckError, InputError
from olla_xla.planner import pipeline
from olla_xla.problem.options import PlanOptions
from tests.support.compiles import xla_schedule
from tests.support.steps import assert_same, branches, plan, rows, weights


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(objection, "user_cache", lambda: tmp_path)
    return tmp_path


def expected():
    return jax.jit(branches)(weights(), rows())


def with_sums(weights, x):
    """Two more results, of one shape, that take over no argument's memory."""
    return branches(weights, x), x.sum(0), x.sum(1)


@pytest.mark.parametrize("step", [branches, with_sums])
def test_what_the_referee_objects_to_is_not_used(step, wrong, folder, capsys):
    planned = plan(step, donate_argnums=0)
    with pytest.warns(olla_xla.PlanWarning, match="olla_xla's check failed") as caught:
        assert_same(jax.jit(step)(weights(), rows()), planned(weights(), rows()))
    (used,) = planned.plans
    assert used.source == "xla" and not used.aliases
    compiled = planned.lower(weights(), rows()).compile()
    assert not compiled.planned and "olla_xla's check failed" in compiled.reason
    (path,) = folder.glob("objections/olla_xla-objection-*.zip")
    assert str(path) in str(caught[0].message)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    case = objection.load(path)
    assert f"module @jit_{step.__name__}" in case.stablehlo and case.scheduled and case.planned
    # Exchanged arguments are seen before XLA gets the module, exchanged results after.
    assert bool(case.final) == bool(case.assignment) == (step is with_sums)
    with pytest.raises(CheckError, match=re.escape(case.objection)):
        case.check()
    assert main(["olla_xla", "objection", str(path)]) == 1
    assert case.objection in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        planned(weights(7), rows())


def test_what_xla_might_abort_over_never_gets_there(monkeypatch, folder):
    """A fusion bound to an argument that is the caller's."""
    apply_plan, handed = planner.apply_plan, []

    def bound(module, found, mark=""):
        proto = xla_pb2.HloModuleProto.FromString(apply_plan(module, found, mark))
        entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
        names = {i.id: i for i in entry.instructions}
        fusion, number = next(
            (i, k)
            for i in entry.instructions
            for k, o in enumerate(i.operand_ids)
            if i.opcode == "fusion" and names[o].opcode == "parameter"
            if names[o].shape == i.shape
        )
        fusion.output_operand_aliasing.add(operand_index=number)
        handed.append(proto.SerializeToString(deterministic=True))
        return handed[-1]

    monkeypatch.setattr(planner, "apply_plan", bound)
    planned = plan(branches)
    monkeypatch.setattr(planner, "plan_module", _always_a_gain(planner.plan_module))
    with pytest.warns(olla_xla.PlanWarning, match="olla_xla's check failed"):
        assert_same(expected(), planned(weights(), rows()))
    (path,) = folder.glob("objections/olla_xla-objection-*.zip")
    case = objection.load(path)
    assert case.planned == handed[-1] and not case.final
    with pytest.raises(CheckError, match=re.escape(case.objection)):
        case.check()


@pytest.mark.parametrize("asked", [False, True])
def test_constants_stay_with_the_user_unless_asked_for(asked, folder, monkeypatch):
    """A private table; the objection is raised again by the file without it."""
    monkeypatch.setenv("OLLA_XLA_CONSTANTS", "1" if asked else "0")
    table = np.arange(1, 257, dtype=np.float32).reshape(16, 16) * 1.5

    def step(x):
        return jnp.sort(x @ table, 0) @ table.T, (x @ (table + 1)).sum()

    lowered = jax.jit(step).lower(jnp.ones((8, 16)))
    scheduled = xla_schedule(lowered)
    proto = xla_pb2.HloModuleProto.FromString(scheduled)
    large = [i for c in proto.computations for i in c.instructions if len(i.literal) > 64]
    one, other, *_ = {i.literal: i for i in large}.values()
    one.literal, other.literal = other.literal, one.literal
    wrong = proto.SerializeToString()
    case = objection.Case("cpu", "", scheduled, wrong, wrong, stablehlo=lowered.as_text())
    with pytest.raises(CheckError) as said:
        case.check()
    plan = pipeline.plan_module(scheduled, PlanOptions(step_limit=1), target="cpu")
    path = objection.save(case, plan, said.value)
    with zipfile.ZipFile(path) as file:
        held = b"".join(file.read(name) for name in file.namelist())
    assert (table.tobytes() in held) == asked
    assert (table.tobytes().hex().upper() in held.decode(errors="replace")) == asked
    with pytest.raises(CheckError, match=re.escape(str(said.value))):
        objection.load(path).check()


def _always_a_gain(plan_module):
    def claimed(*args, **kwargs):
        found = plan_module(*args, **kwargs)
        return dataclasses.replace(found, predicted_bytes=found.xla_predicted_bytes - 1)

    return claimed


def test_a_case_without_an_objection_passes(folder, capsys):
    compiled = plan(branches, donate_argnums=0).lower(weights(), rows()).compile()
    assert compiled.planned and not list(folder.glob("objections/*"))
    final, assignment = _final(compiled)
    case = objection.Case("cpu", results_digest(final, "cpu"), final=final, assignment=assignment)
    case.check()
    path = objection.save(case, compiled.plan, CheckError("made for a test"))
    assert objection.load(path).objection == "made for a test"
    assert main(["olla_xla", "objection", str(path)]) == 0
    with pytest.raises(InputError, match="not the file of a rejected plan"):
        objection.load(folder)
    assert main(["olla_xla", "check", f"--objection={folder}"]) == 2


def _final(compiled):
    stats = compiled.memory_analysis()
    module = compiled.runtime_executable().hlo_modules()[0]
    return module.as_serialized_hlo_module_proto(), stats.serialized_buffer_assignment_proto


def test_verify_finds_what_nothing_else_does(wrong, blind):
    planned = plan(branches, verify=True, donate_argnums=0)
    with pytest.warns(olla_xla.PlanWarning, match=r"differ from XLA's own at output\[4\]"):
        assert_same(expected(), planned(weights(), rows()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(expected(), planned(weights(), rows()))
        compiled = planned.lower(weights(), rows()).compile()
        assert not compiled.planned and "differed" in compiled.reason
        assert_same(expected(), compiled(weights(), rows()))


def test_verify_of_a_compiled_stage(wrong, blind):
    compiled = plan(branches, verify=True, donate_argnums=0).lower(weights(), rows()).compile()
    assert compiled.planned
    with pytest.warns(olla_xla.PlanWarning, match="differ from XLA's own"):
        assert_same(expected(), compiled(weights(), rows()))
    assert not compiled.planned and "differed" in compiled.reason
    assert_same(expected(), compiled(weights(), rows()))


def test_verify_accepts_what_is_right(monkeypatch):
    monkeypatch.setenv("OLLA_XLA_VERIFY", "1")
    planned = plan(branches, donate_argnums=0)
    given = weights()
    assert_same(expected(), planned(given, rows()))
    assert all(w.is_deleted() for w in given), "the arguments are donated all the same"
    compiled = planned.lower(weights(), rows()).compile()
    assert compiled.planned
    assert_same(expected(), compiled(weights(), rows()))


def test_side_effects_do_not_happen_twice(caplog):
    seen = []

    def step(weights, x):
        jax.experimental.io_callback(lambda v: seen.append(v), None, x[0, 0], ordered=True)
        return branches(weights, x)

    planned = plan(step, verify=True, donate_argnums=0)
    jax.block_until_ready(planned(weights(), rows()))
    jax.effects_barrier()
    assert len(seen) == 1
    assert planned.plans and "side effects" in caplog.text


def test_keys_and_scalars_are_compared():
    def step(key, scale):
        a, b = jax.random.split(key)
        return a, jax.random.normal(b, (64, 64)) * scale, scale

    planned = plan(step, verify=True)
    found = planned(jax.random.key(0), 2.0)
    assert not verification.difference(jax.jit(step)(jax.random.key(0), 2.0), found)
    other = planned(jax.random.key(1), 2.0)
    assert verification.difference(found, other) == "output[0]"
    assert verification.difference(found[2], found[2].astype(jnp.bfloat16)) == "output"
    assert verification.difference(found, found[:2]) == "the outputs' structure"
    assert planned(jax.random.key(0), jnp.float32(2.0))[2] == 2


def test_bad_settings(monkeypatch):
    with pytest.raises(InputError, match="verify='yes'"):
        olla_xla.plan(branches, verify="yes")
    monkeypatch.setenv("OLLA_XLA_VERIFY", "yes")
    with pytest.raises(InputError, match="OLLA_XLA_VERIFY='yes'"):
        olla_xla.plan(branches)
