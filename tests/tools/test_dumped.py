"""Dumps from before XLA's pipeline: compiled and planned as the steps that they are of."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from hlo.dumps.lowered import read_lowered
from hlo.gpu_executable import read_gpu_executable
from olla_xla import targets
from olla_xla.check.executable import check_executable
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.compile.gpu_code import serialized_executable
from olla_xla.errors import CheckError, InputError, OllaError
from olla_xla.memory.snappy import unsnapped
from olla_xla.problem.options import PlanOptions
from olla_xla.targets import Target
from olla_xla.tools import dumped
from olla_xla.tools.dumped import DumpedStage
from tests.support.compiles import h100_device
from tests.support.plugins import H100

LIMITS = {"time_limit": 5.0, "step_limit": 2000, "max_overhead": 0.5}
SHAPES = (
    jax.ShapeDtypeStruct((6, 256, 256), jnp.float32),
    jax.ShapeDtypeStruct((1024, 256), jnp.float32),
)


def step(weights, x):
    """A train step over scanned layers."""

    def loss(weights):
        layer = lambda c, w: (jnp.tanh(jnp.sin(c @ w) * c), None)  # noqa: E731
        return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


def target_of(name, devices=1):
    if name != "cpu":
        h100_device()  # skips without JAX's plugin
    return targets.target(name, devices)


def lowered_for(target, shardings=(1, 0)):
    split = shardings if len(target.devices) > 1 else None
    return jax.jit(step, donate_argnums=0).lower(*target.place(SHAPES, split))


def dump(lowered, folder):
    """What XLA dumps of a compile, and its executable."""
    options = {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_as_proto": True,
    }
    return lowered.compile(compiler_options=options)


def the(folder, pattern):
    (path,) = folder.glob(pattern)
    return path


@pytest.mark.parametrize("name", ["cpu", H100])
def test_a_dump_is_compiled_and_planned_as_the_step_is(tmp_path, name):
    target = target_of(name)
    lowered = lowered_for(target)
    own = assigned_bytes(dump(lowered, tmp_path))
    options = PlanOptions(**LIMITS)
    planned = olla_xla.plan(step, donate_argnums=0, **LIMITS).lower(*target.place(SHAPES)).compile()
    assert planned.planned and planned.plan.assigned_bytes < own
    (tmp_path / "step.mlir").write_text(lowered.as_text())
    for path in (tmp_path / "step.mlir", the(tmp_path, "*before_optimizations.hlo.pb")):
        module = read_lowered(path)
        assert module.devices == 1
        stage = DumpedStage(module, target)
        assert assigned_bytes(stage.compiled()) == own
    stage = DumpedStage(read_lowered(the(tmp_path, "*before_optimizations.txt")), target)
    assert stage.captured().assigned_bytes == own
    outcome = stage.planned(options)
    assert outcome.planned and outcome.plan.loops and not outcome.objection
    assert outcome.plan.predicted_bytes == outcome.plan.assigned_bytes
    # The order of a loop's state may be another, and so may ties end.
    assert outcome.plan.assigned_bytes < 1.1 * planned.plan.assigned_bytes < own
    given = stage.planned(options, outcome.plan)
    assert given.planned and assigned_bytes(given.compiled) == outcome.plan.assigned_bytes


@pytest.mark.cuda13
@pytest.mark.parametrize("sharded", ["by tiles", "by names"])
def test_a_step_of_many_devices_is_compiled_before_and_after_it_is_partitioned(tmp_path, sharded):
    """Dumps of XLA's before its partitioner, after it (`_spmd`), and HLO that JAX itself gives."""
    target = target_of("h100", 4)
    lowered = lowered_for(target)
    own = assigned_bytes(dump(lowered, tmp_path))
    if sharded == "by tiles":
        (tmp_path / "jax.txt").write_text(lowered.compiler_ir("hlo").as_hlo_text())
        paths = [tmp_path / "jax.txt"]
    else:
        (tmp_path / "step.mlir").write_text(lowered.as_text())
        paths = [tmp_path / "step.mlir"]
        paths += [the(tmp_path, f"*before_optimizations.{kind}") for kind in ("txt", "hlo.pb")]
        paths += [the(tmp_path, f"*after_spmd_partitioner.{kind}") for kind in ("txt", "hlo.pb")]
    for path in paths:
        module = read_lowered(path)
        assert module.devices == 4 and module.is_partitioned == ("after_spmd" in path.name)
        stage = DumpedStage(module, target)
        assert assigned_bytes(stage.compiled()) == own
    outcome = stage.planned(PlanOptions(**LIMITS))
    assert not outcome.objection and outcome.plan.predicted_bytes == outcome.plan.assigned_bytes
    assert outcome.planned and outcome.plan.assigned_bytes < own


def test_planned_dumps_compute_what_the_step_does(tmp_path, monkeypatch):
    """With an order of their own and stacks computed again, run on a CPU, bit for bit."""
    monkeypatch.setattr(dumped, "_compile_of", lambda client: client.compile_and_load)
    target = target_of("cpu")
    lowered = lowered_for(target)
    dump(lowered, tmp_path)
    generators = [np.random.default_rng(k) for k in range(2)]
    given = [
        np.float32(g.standard_normal(s.shape)) for g, s in zip(generators, SHAPES, strict=True)
    ]
    expected = [np.asarray(a) for a in jax.jit(step)(*given)]
    stage = DumpedStage(read_lowered(the(tmp_path, "*before_optimizations.txt")), target)
    outcome = stage.planned(PlanOptions(**LIMITS))
    assert outcome.planned and outcome.plan.loops
    for compiled in (outcome.compiled, stage.compiled()):
        results = compiled.runtime_executable().execute_sharded([jnp.asarray(a) for a in given])
        for one, (found,) in zip(
            expected, results.disassemble_into_single_device_arrays(), strict=True
        ):
            np.testing.assert_array_equal(one, np.asarray(found))


def test_layouts_and_donation_of_arguments_are_kept(tmp_path):
    text = """HloModule m, buffer_donor={ (0, {}) }, entry_computation_layout={(f32[128,256]{0,1}, f32[128,256]{1,0})->f32[128,256]{0,1}}

ENTRY main {
  a = f32[128,256]{0,1} parameter(0)
  b = f32[128,256]{1,0} parameter(1)
  c = f32[128,256]{0,1} copy(b)
  ROOT s = f32[128,256]{0,1} add(a, c)
}
"""  # noqa: E501
    path = tmp_path / "m.txt"
    path.write_text(text)
    compiled = DumpedStage(read_lowered(path), target_of("cpu")).compiled()
    final = compiled.runtime_executable().hlo_modules()[0].to_string()
    assert "(f32[128,256]{0,1}, f32[128,256]{1,0})->f32[128,256]{0,1}" in final
    assert "input_output_alias={ {}: (0, {}" in final  # as XLA makes use of a donation


CALLS = """HloModule m

ENTRY main {
  a = f32[128,256]{1,0} parameter(0)
  b = (f32[128,256]{1,0}, u8[64]{0}) custom-call(a), custom_call_target="of_another_library", api_version=API_VERSION_TYPED_FFI, backend_config={heads = 3 : i64}
  ROOT s = f32[128,256]{1,0} get-tuple-element(b), index=0
}
"""  # noqa: E501


@pytest.mark.cuda13
def test_calls_of_libraries_that_are_not_here_are_compiled_for_an_absent_gpu(tmp_path):
    path = tmp_path / "m.txt"
    path.write_text(CALLS)
    compiled = DumpedStage(read_lowered(path), target_of("h100")).compiled()
    assert assigned_bytes(compiled) >= 2 * 4 * 128 * 256


@pytest.mark.cuda13
def test_what_runs_no_thunk_where_its_code_is_not_there_is_planned_all_the_same():
    def calling(weights, x):
        call = jax.ffi.ffi_call("of_another_library", jax.ShapeDtypeStruct(x.shape, x.dtype))
        return *step(weights, x), call(jnp.sin(x))

    arguments = target_of("h100").place(SHAPES)
    mocked = {"xla_gpu_mock_custom_calls": True}
    planned = olla_xla.plan(calling, donate_argnums=0, **LIMITS).lower(*arguments)
    compiled = planned.compile(compiler_options=mocked)
    assert compiled.planned, compiled.reason
    # That is no excuse where XLA was not told to leave it out.
    own = jax.jit(calling).lower(*arguments).compile(compiler_options=mocked)
    executable = read_gpu_executable(serialized_executable(own), unsnapped)
    module = final_module(own)
    check_executable(module, "cuda", executable=executable)
    with pytest.raises(CheckError, match="no thunk runs ffi_call"):
        executable = dataclasses.replace(executable, mocks_calls=False)
        check_executable(module, "cuda", executable=executable)


def test_what_xla_cannot_compile_is_said_in_a_line(tmp_path):
    path = tmp_path / "m.txt"
    path.write_text(CALLS)
    stage = DumpedStage(read_lowered(path), target_of("cpu"))
    for work in (stage.compiled, stage.captured, lambda: stage.planned(PlanOptions(**LIMITS))):
        with pytest.raises(
            OllaError, match="XLA cannot compile the module: .*another_lib"
        ) as error:
            work()
        assert "\n" not in str(error.value)


def test_there_must_be_as_many_devices_as_the_module_is_for(tmp_path):
    path = tmp_path / "m.txt"
    path.write_text(CALLS.replace("HloModule m", "HloModule m, num_partitions=3"))
    with pytest.raises(InputError, match="m is for 3 devices, but cpu has 1 here"):
        DumpedStage(read_lowered(path), Target("cpu"))


def test_what_is_partitioned_is_not_for_a_cpu(tmp_path):
    path = tmp_path / "m.txt"
    text = CALLS.replace("HloModule m", "HloModule m, num_partitions=2")
    path.write_text(text.replace("ENTRY main", "ENTRY main_spmd"))
    target = Target("cpu", devices=tuple(jax.local_devices()[:1]) * 2)
    with pytest.raises(InputError, match="dump it before XLA's partitioner, or choose a GPU"):
        DumpedStage(read_lowered(path), target)
