"""Executables of plain `jax.jit`, audited: alone, as a command, and in a test suite of others."""

import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import olla_xla
import olla_xla.targets as targets
from benchmarks.audit.functions import FUNCTIONS
from benchmarks.mutants.audited import encoded
from benchmarks.mutants.kinds import mutated
from hlo.cpu_executable import CpuExecutable
from hlo.dumps.lowered import read_lowered
from hlo.gpu_executable import GpuExecutable
from hlo.module import module_from_bytes, parse_module_proto
from olla_xla.cli.main import main
from olla_xla.errors import InputError
from olla_xla.tools.audit.audit import audit_compiled, audit_parts, promises_of
from olla_xla.tools.audit.every_compile import every_compile
from olla_xla.tools.audit.reduce import reduced
from olla_xla.tools.audit.report import saved_parts
from olla_xla.tools.dumped import DumpedStage


def step(state, batch, unused):
    del unused

    def body(x, w):
        return jnp.tanh(x @ w), x.sum()

    x, sums = jax.lax.scan(body, batch, state["w"])
    return {"w": state["w"] + x.sum(), "n": state["n"] + 1}, sums


def arguments():
    return {"w": jnp.ones((5, 8, 8)), "n": jnp.zeros(())}, jnp.ones((4, 8)), jnp.ones(3)


@pytest.fixture(scope="module")
def report():
    return olla_xla.audit(jax.jit(step, donate_argnums=0), *arguments())


def test_an_unknown_platform_is_refused(monkeypatch):
    monkeypatch.setattr("olla_xla.tools.audit.audit.platform_of", lambda compiled: "metal")
    with pytest.raises(InputError, match="reads executables of CPUs, GPUs and TPUs"):
        olla_xla.audit(jax.jit(jnp.sin), 1.0)


def test_a_jitted_function_is_followed(report):
    assert report
    assert report.target == "cpu"
    assert report.followed["arrays with an address"] > 10
    assert report.followed["aliases"] == 2
    assert report.followed["thunks"] > 5 and not report.left
    assert sum(report.trusted.values())
    assert "no findings" in str(report)


def test_stages_and_plain_functions_are_taken_too():
    lowered = jax.jit(step, donate_argnums=0).lower(*arguments())
    for given in (lowered, lowered.compile()):
        assert olla_xla.audit(given).followed["aliases"] == 2
    assert olla_xla.audit(step, *arguments()).followed["aliases"] == 0
    assert olla_xla.audit(olla_xla.plan(step, donate_argnums=0), *arguments())


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(InputError, match="give no others"):
        olla_xla.audit(jax.jit(step).lower(*arguments()), 1)
    with pytest.raises(InputError, match="takes a function"):
        olla_xla.audit(3)


def with_module(report, change):
    """The audit of the same executable with its module changed."""
    proto = parse_module_proto(report.parts.module)
    change(proto)
    return audit_parts(
        report.parts._replace(module=proto.SerializeToString()), donated=frozenset((0, 1))
    )


def test_a_lost_order_is_found_with_its_line(report):
    def change(proto):
        ids = proto.schedule.sequences[proto.entry_computation_id].instruction_ids
        last = ids[-2]
        del ids[-2]
        ids.insert(0, last)

    found = with_module(report, change).findings
    assert [f.check for f in found] == ["order"]
    assert "needs" in found[0].message


def test_findings_of_independent_checks_are_all_there(report):
    """One line for each cause: an order that is wrong, and two arguments that are overwritten."""
    proto = parse_module_proto(report.parts.module)
    ids = proto.schedule.sequences[proto.entry_computation_id].instruction_ids
    ids.insert(0, ids.pop(-2))
    parts = report.parts._replace(module=proto.SerializeToString())
    found = audit_parts(parts, donated=frozenset()).findings
    assert [f.check for f in found] == ["order", "donation", "donation"]


def test_an_argument_that_was_not_donated(report):
    def change(proto):
        proto.input_output_alias.entries[0].parameter_number = 2

    checks = {f.check for f in with_module(report, change).findings}
    assert "donation" in checks


def test_a_promise_that_is_not_kept():
    lowered = jax.jit(step, donate_argnums=0).lower(*arguments())
    whole = olla_xla.audit(lowered)

    proto = parse_module_proto(whole.parts.module)
    del proto.input_output_alias.entries[:]
    parts = whole.parts._replace(module=proto.SerializeToString())
    found = audit_parts(parts, lowered.compiler_ir()).findings
    assert "should reuse the memory of argument 0" in found[0].message


def test_promises_of_a_module_that_was_made_from_hlo(tmp_path):
    lowered = jax.jit(step, donate_argnums=0).lower(*arguments())
    path = tmp_path / "step.pb"
    path.write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    dump = read_lowered(path)
    assert dump is not None
    stage = DumpedStage(dump, targets.target("cpu")).lowered
    promised = promises_of(stage.compiler_ir(), 4)
    assert promised == promises_of(lowered.compiler_ir(), 4) != (frozenset(), {})
    assert audit_compiled(stage.compile(), stage.compiler_ir())


def test_every_compile_of_a_block():
    found, failed = [], []
    with every_compile(found.append, failed.append):
        jax.jit(lambda x: x * 3 + 1)(jnp.arange(7.0)).block_until_ready()
    before = len(found)
    jax.jit(lambda x: x * 5 + 1)(jnp.arange(7.0))
    assert before and len(found) == before
    assert not failed
    assert all(found)


def test_each_buffer_of_a_kernel_that_runs_a_loop_is_compared():
    """They are in no order; each array that the loop reads or makes is there in each shape."""
    function, shapes, _ = FUNCTIONS["gru"]
    report = olla_xla.audit(function, *shapes)
    own = CpuExecutable(report.parts.executable)
    (kernel,) = (t for t in own.flat if t.name == "call")
    written = [k for k, a in enumerate(kernel.accesses) if a.writes]
    places = [[a.slice for a in thunk.accesses] for thunk in own.flat]
    tried = 0
    for k, other in itertools.permutations(written, 2):
        a, b = kernel.accesses[k].slice, kernel.accesses[other].slice
        if a.size == b.size and a != b:
            row = places[kernel.number]
            changed = [*row[:k], b, *row[k + 1 :]]
            data = own.relocated(
                [*places[: kernel.number], changed, *places[kernel.number + 1 :]], {}, {}
            )
            (finding,) = audit_parts(report.parts._replace(executable=data)).findings
            assert finding.check == "thunks" and finding.message.startswith("thunk call")
            tried += 1
    assert tried > 5


def test_callbacks_run_in_the_order_of_their_tokens():
    def step(x, y):
        shape = jax.ShapeDtypeStruct((8,), jnp.float32)
        return [io_callback(lambda a: a, shape, a, ordered=True) for a in (x, y)]

    report = olla_xla.audit(step, jnp.ones(8), jnp.ones(8))
    assert report and report.followed["thunks"] == 2
    own = CpuExecutable(report.parts.executable)
    places = own.assignment.SerializeToString()
    swapped = GpuExecutable(own.thunks[::-1], places, own.sizes, {}, {}, 0)
    (finding,) = audit_parts(report.parts._replace(executable=encoded(own, swapped))).findings
    assert "runs too late" in finding.message


def test_a_saved_executable_is_audited_again(report, tmp_path, capsys):
    path = tmp_path / "case.zip"
    report.save(path)
    assert saved_parts(path) == report.parts
    assert main(["olla_xla", "audit", f"--hlo={path}"]) == 0
    assert "no findings" in capsys.readouterr().out


def test_misuse_and_findings_have_exit_codes(report, tmp_path, capsys):
    assert main(["olla_xla", "audit"]) == 2
    assert "--script" in capsys.readouterr().err
    proto = parse_module_proto(report.parts.module)
    proto.input_output_alias.entries[0].parameter_number = 2
    path = tmp_path / "wrong.zip"
    wrong = audit_parts(report.parts._replace(module=proto.SerializeToString()))
    wrong.save(path)
    out = tmp_path / "out.json"
    assert main(["olla_xla", "audit", f"--hlo={path}", f"--json={out}"]) == 1
    (one,) = json.loads(out.read_text())["executables"]
    assert one["findings"][0]["check"]


WRONG = Path(__file__).parents[1] / "check" / "jaxlib_0_11_0_offloaded_scan.zip"
"""An offloaded scan's gradient as jaxlib 0.11.0 compiles it for an H100 (openxla/xla#46231)."""


def test_the_wrong_slices_of_jaxlib_0_11_0_are_found(tmp_path, capsys):
    assert main(["olla_xla", "audit", f"--hlo={WRONG}", f"--zip={tmp_path / 'again.zip'}"]) == 1
    out = capsys.readouterr().out
    assert "reads bytes [0, 131,072) of operand 0 in iteration 0" in out
    assert "gives [917,504, 1,048,576)" in out
    assert "at offloaded_scan.py:25" in out
    assert saved_parts(tmp_path / "again.zip") == saved_parts(WRONG)


def test_a_program_is_reduced_to_what_its_finding_needs(tmp_path, capsys):
    whole, path = saved_parts(WRONG), tmp_path / "reduced.zip"
    assert main(["olla_xla", "audit", f"--hlo={WRONG}", f"--zip={path}", "--reduce"]) == 1
    first = capsys.readouterr().out
    left = saved_parts(path)
    modules = (module_from_bytes(parts.module) for parts in (whole, left))
    before, after = (sum(len(c.instructions) for c in m.computations) for m in modules)
    assert after < before / 2 and path.stat().st_size < WRONG.stat().st_size * 2 / 3
    assert main(["olla_xla", "audit", f"--hlo={path}"]) == 1
    again = capsys.readouterr().out
    assert again.splitlines()[:3] == first.splitlines()[:3]
    assert "\n  not checked:" not in again


def test_a_read_behind_a_write_is_reduced_too():
    step = jax.jit(lambda x, y: (jnp.sin(x) @ y, (jnp.cos(x) @ y) @ y, jnp.sort(y)))
    whole = olla_xla.audit(step, jnp.ones((64, 64)), jnp.ones((64, 64)))
    proto = parse_module_proto(whole.parts.module)
    made = next(mutated(proto.SerializeToString(), "alias_read_later", str(k)) for k in range(9))
    wrong = audit_parts(whole.parts._replace(module=made[1], executable=b""))
    left = reduced(wrong)
    assert [f[:2] for f in left.findings] == [wrong.findings[0][:2]]
    assert left.followed["instructions"] < wrong.followed["instructions"]


TESTS = """
    import jax
    import jax.numpy as jnp

    def test_compiles():
        assert jax.jit(lambda x: x + 2)(jnp.arange(3)).sum() == 9

    def test_asks(olla_xla_audit):
        assert olla_xla_audit(jax.jit(jnp.sin), jnp.ones(4)).followed["arrays"]
"""


def in_tests_of_others(folder, text, *options, **environment):
    (folder / "test_other.py").write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    if not any(e.name == "olla_xla" for e in importlib.metadata.entry_points(group="pytest11")):
        command += ["-p", "olla_xla_pytest"]
    found = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTEST_ADDOPTS": "", **environment},
    )
    return found.returncode, found.stdout


def test_a_test_suite_of_others(tmp_path):
    """In two processes; the one below has its own."""
    code, out = in_tests_of_others(tmp_path, TESTS, "-n", "2", OLLA_XLA_AUDIT="1")
    assert code == 0, out
    assert ", 0 of them have errors" in out
    assert "audit: 0 executables" not in out


NOT_LOADED = """
    import sys

    def test_nothing_is_loaded():
        assert "olla_xla_pytest" in sys.modules
        assert not {"olla_xla", "hlo", "jax"} & set(sys.modules)
"""


def test_a_suite_that_asks_for_nothing_loads_nothing(tmp_path):
    """Not even where a folder of its own is named as a package of the project's."""
    (tmp_path / "hlo").mkdir()
    (tmp_path / "hlo" / "__init__.py").touch()
    code, out = in_tests_of_others(
        tmp_path, NOT_LOADED, OLLA_XLA_AUDIT="", PYTHONPATH=str(tmp_path)
    )
    assert code == 0, out


BROKEN = """
    import dataclasses
    import jax
    import jax.numpy as jnp
    from olla_xla.tools.audit import audit
    from olla_xla.tools.audit.report import Finding

    own = audit.audit_compiled

    def objecting(*given, **named):
        wrong = Finding("memory", "wrong", "", "", "")
        return dataclasses.replace(own(*given, **named), findings=(wrong,))

    audit.audit_compiled = objecting

    def test_compiles():
        jax.jit(lambda x: x + 2)(jnp.arange(3))
"""


def test_a_test_whose_executable_is_wrong_fails(tmp_path):
    code, out = in_tests_of_others(tmp_path, BROKEN, OLLA_XLA_AUDIT="1")
    assert code == 1
    assert "wrong, memory" in out
