"""Modules against those before XLA's passes over loops, from XLA's dumps: results are equal."""

import jax
import pytest

import olla_xla
from benchmarks.audit.functions import FUNCTIONS
from hlo.dumps.read import read_file, to_hlo
from hlo.module import parse_module_proto
from olla_xla.cli.main import main
from olla_xla.errors import ModuleFormatError
from tests.support.compiles import QUICK, on_h100
from tests.support.plugins import mark

UNROLLED = {"xla_gpu_enable_while_loop_unrolling": "WHILE_LOOP_UNROLLING_FULL_UNROLL"}
BUFFERED = {"xla_gpu_enable_while_loop_unrolling": "WHILE_LOOP_UNROLLING_DOUBLE_BUFFER"}

PASSES = {
    "while-loop-invariant-code-motion": ("cpu", "scan's gradient", {}),
    "simplify-while-loops": ("cpu", "nested loops' gradient", {}),
    "host-offloader": ("h100", "offloaded scan", {}),
    "loop-double-buffer-transformer": ("h100", "scan's gradient", BUFFERED),
    "loop-double-buffer-transformer, whole": ("h100", "scan's gradient", UNROLLED),
}
"""A pass -> what it is for, a function whose loops it changes, options of XLA."""


def dumped(folder, target, name, options):
    """A compiled function, and the files of its module, in the order of passes."""
    function, shapes, _ = FUNCTIONS[name]
    if target == "h100":
        shapes = on_h100(shapes)
    options = {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_pass_re": ".*",
        "xla_dump_hlo_as_proto": True,
        **QUICK,
        **options,
    }
    compiled = jax.jit(function).lower(*shapes).compile(compiler_options=options)
    return compiled, sorted(folder.glob("*.jit_*.0*.hlo.pb"))


def with_cosine(path, to):
    """The same module with other bodies of loops."""
    proto = parse_module_proto(to_hlo(read_file(path)))
    for computation in proto.computations:
        for instruction in computation.instructions:
            if instruction.opcode in ("tanh", "sine"):
                instruction.opcode = "cosine"
    to.write_bytes(proto.SerializeToString())
    return to


CASES = [pytest.param(k, marks=mark("cuda13") if v[0] == "h100" else ()) for k, v in PASSES.items()]


@pytest.mark.parametrize("name", CASES)
def test_a_pass_over_loops_keeps_the_results(name, tmp_path, capsys):
    target, function, options = PASSES[name]
    _, files = dumped(tmp_path, target, function, options)
    after = next(k for k, f in enumerate(files) if f"after_{name.partition(',')[0]}" in f.name)
    given = ["olla_xla", "audit", f"--target={target}", f"--before={files[after - 1]}"]
    assert main([*given, f"--hlo={files[after]}"]) == 0
    assert "1 results compared" in capsys.readouterr().out
    wrong = with_cosine(files[after], tmp_path / "wrong.pb")
    assert main([*given, f"--hlo={wrong}"]) == 1
    assert ", result [], differs from that of the dump" in capsys.readouterr().out


def test_an_executable_has_the_results_of_the_module_that_was_fused(tmp_path):
    compiled, files = dumped(tmp_path, "cpu", "scan", {})
    fused = next(f for f in files if "after_fusion-wrapper" in f.name)
    report = olla_xla.audit(compiled, before=fused)
    assert report and report.followed["results compared"] == 2 and not report.left
    wrong, path = with_cosine(fused, tmp_path / "a"), tmp_path / "case.zip"
    (finding,) = olla_xla.audit(compiled, before=wrong).findings
    assert finding.check == "results" and finding.instruction
    report.save(path)
    assert main(["olla_xla", "audit", f"--hlo={path}"]) == 0
    assert main(["olla_xla", "audit", f"--hlo={path}", f"--before={wrong}"]) == 1


def test_other_layouts_of_arguments_are_said(tmp_path):
    compiled, files = dumped(tmp_path, "cpu", "attention", {})
    proto = parse_module_proto(to_hlo(read_file(files[0])))
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    entry.instructions[0].shape.layout.minor_to_major.reverse()
    path = tmp_path / "other.pb"
    path.write_bytes(proto.SerializeToString())
    assert "layouts of their own" in olla_xla.audit(compiled, before=path).left[0]


def test_a_dump_that_contradicts_itself_is_an_error(tmp_path):
    compiled, files = dumped(tmp_path, "cpu", "scan", {})
    proto = parse_module_proto(to_hlo(read_file(files[-1])))
    for computation in proto.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "dynamic-slice":
                instruction.operand_ids[:] = instruction.operand_ids[:1]
    path = tmp_path / "other.pb"
    path.write_bytes(proto.SerializeToString())
    (finding,) = olla_xla.audit(compiled, before=path).findings
    assert finding.check == "results" and "contradict" in finding.message


def test_what_cannot_be_compared_is_misuse(tmp_path, capsys):
    path = tmp_path / "no.txt"
    path.write_text("nothing")
    with pytest.raises(ModuleFormatError):
        olla_xla.audit(jax.jit(jax.numpy.sin), 1.0, before=path)
    assert main(["olla_xla", "audit", "--script=x.py", f"--before={path}"]) == 2
    assert "many executables" in capsys.readouterr().err
