"""The command line: what it prints, and its exit codes."""

import gc
import gzip
import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla.cli import main
from olla_xla.cli.commands import COMMANDS
from olla_xla.compile import plan_store
from olla_xla.memory import module_state
from olla_xla.problem.plan import Plan
from tests.support.plans import MB, made_plan

LIMITS = ("--time_limit=5", "--step_limit=2000")


def run(capsys, *arguments):
    code = main.main(["olla_xla", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def only_error(err):
    """The one line of stderr that is not progress: seconds, then a stage."""
    lines = [x for x in err.splitlines() if not re.match(r" +\d+\.\d s  ", x)]
    assert len(lines) == 1 and lines[0].startswith("olla_xla"), err
    return lines[0]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """A scheduled module as HLO text."""
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    compiled = jax.jit(lambda x, w: (jnp.tanh(x @ w) @ w).sum()).lower(shape, shape).compile()
    path = tmp_path_factory.mktemp("hlo") / "step.txt"
    path.write_text(compiled.as_text())
    return path


def test_plan_of_a_model(capsys, tmp_path):
    path = tmp_path / "mlp.plan"
    code, out, err = run(
        capsys, "plan", "--model=mlp", "--batch_size=8", "--largest=3", f"--plan_out={path}",
        *LIMITS,
    )  # fmt: skip
    assert code == 0, err
    assert "mlp, batch 8, adam, cpu" in out and "the executable runs the planned order" in out
    errors = re.search(r"prediction error\W+(-?[\d.]+) %.*; (-?[\d.]+) % with XLA's", out)
    assert errors and all(abs(float(x)) <= 0.5 for x in errors.groups())
    plan = Plan.load(path)
    assert plan.assigned_bytes is not None and plan.assigned_bytes <= plan.xla_bytes


def nothing(batch_size, optimizer):
    """A step that takes and returns nothing."""
    return (lambda: None), (), {}


def test_a_step_that_takes_nothing(capsys):
    code, out, err = run(capsys, "plan", "--model=tests.cli.test_cli:nothing", *LIMITS)
    assert code == 0, err
    assert "assigned; 0.0 %" in out and "no two live tensors overlap" in out
    assert "would help" not in out, "of nothing"


def test_where_the_order_of_the_file_stays_its_module_is_analysed_once(capsys, dumped, monkeypatch):
    """And Python looks for no garbage: of 100,000 operators that took a half of all time."""
    seen, analyse = [], module_state.analyse
    monkeypatch.setattr(
        module_state,
        "analyse",
        lambda module, target: (
            seen.append((module.name, gc.isenabled())) or analyse(module, target)
        ),
    )
    gc.enable()
    code, out, _ = run(capsys, "plan", f"--hlo={dumped}", *LIMITS)
    assert code == 0 and "XLA's own order is kept" in out and "argument" in out
    assert [found for found in seen if found[0] == "jit__lambda"] == [("jit__lambda", False)]
    assert gc.isenabled()
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    monkeypatch.setattr(sys, "argv", ["olla_xla", "plan", f"--hlo={dumped}", *LIMITS])
    assert main.main() == 0 and frozen == [False], "a process that ends with it looks for none"


def test_plan_by_integer_programs(capsys, dumped):
    code, out, err = run(
        capsys, "plan", f"--hlo={dumped}", "--method=ilp", "--backend=cpsat", "--largest=0", *LIMITS
    )
    assert code == 0, err
    assert "integer programs: lifetime peaks" in out and "proven by" in out


def test_plan_of_a_dump(capsys, dumped):
    code, out, _ = run(capsys, "plan", f"--hlo={dumped}", *LIMITS)
    assert code == 0 and "nothing was compiled" in out and "assigned" not in out.split("Only")[0]


def test_analyze(capsys, dumped, tmp_path):
    path = tmp_path / "mlp.json"
    arguments = ("--model=mlp", "--batch_size=8", f"--json={path}", "--largest=4")
    code, out, err = run(capsys, "analyze", *arguments, *LIMITS)
    assert code == 0, err
    assert "Donation: 20 requested" in out and "4 largest of" in out and "zoo/mlp.py:" in out
    found = json.loads(path.read_text())
    assert found["xla"]["total_bytes"] == sum(found["xla"]["categories"].values())
    code, out, _ = run(capsys, "analyze", f"--hlo={dumped}", "--plan", *LIMITS)
    assert code == 0 and "order in the file" in out and "predicted" in out and "planned" in out


def test_guard_and_diff(capsys, dumped, tmp_path, monkeypatch):
    plan, analysis, lean = tmp_path / "plan.json", tmp_path / "mlp.json", tmp_path / "lean.json"
    model = ("--model=mlp", "--batch_size=8")
    assert run(capsys, "plan", *model, "--noadvice", f"--plan_out={plan}", *LIMITS)[0] == 0
    assert run(capsys, "analyze", *model, "--noadvice", f"--json={analysis}")[0] == 0
    for baseline in (plan, analysis):
        code, out, err = run(capsys, "check", *model, f"--baseline={baseline}", *LIMITS)
        assert code == 0 and "(0.00 MB, 0.00 %)" in out, err
    code, _, err = run(capsys, "check", "--model=mlp", f"--baseline={analysis}", *LIMITS)
    assert code == 2 and "for mlp, batch 8, adam, cpu" in only_error(err)

    before = json.loads(analysis.read_text())
    tensors = before["xla"]["tensors"]
    before["xla"]["total_bytes"] -= tensors.pop(0)["bytes"]
    lean.write_text(json.dumps(before))
    code, out, _ = run(capsys, "check", *model, f"--baseline={lean}", "--tolerance=5%", *LIMITS)
    assert code == 1 and "differences" in out and "1 x 1.53" in out
    code, out, _ = run(capsys, "diff", str(lean), str(analysis))
    assert code == 0 and "(+1.53 MB, " in out and "1 x 1.53" in out
    assert run(capsys, "diff", str(dumped), str(analysis))[0] == 0
    monkeypatch.setattr("shutil.which", lambda _: None)
    code, _, err = run(capsys, "diff", "jax==0.11.2", str(analysis), "--model=mlp")
    assert code == 2 and "needs uv" in only_error(err)


def test_plan_of_stablehlo(capsys, tmp_path):
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    lowered = jax.jit(lambda x, w: (jnp.tanh(x @ w) @ w).sum()).lower(shape, shape)
    path = tmp_path / "step.mlir"
    path.write_text(str(lowered.compiler_ir("stablehlo")))
    assert run(capsys, "plan", f"--hlo={path}", *LIMITS)[0] == 0


@pytest.fixture(scope="module")
def unscheduled(tmp_path_factory):
    """A module as XLA has it before its pipeline, as gzipped HLO text."""
    weights = jax.ShapeDtypeStruct((8, 64, 64), jnp.float32)

    def loss(weights, x):
        return (jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, weights)[0] ** 2).sum()

    lowered = jax.jit(jax.grad(loss)).lower(weights, jax.ShapeDtypeStruct((512, 64), jnp.float32))
    path = tmp_path_factory.mktemp("hlo") / "step.hlo.gz"
    path.write_bytes(gzip.compress(lowered.compiler_ir("hlo").as_hlo_text().encode()))
    return path


def test_a_dump_from_before_the_pipeline_is_compiled(capsys, unscheduled, tmp_path):
    saved = tmp_path / "step.plan"
    code, out, err = run(
        capsys, "plan", f"--hlo={unscheduled}", "--max_overhead=0.5", f"--plan_out={saved}", *LIMITS
    )
    assert code == 0, err
    assert "Compiled: XLA assigned these bytes" in out and "Checked: the executable runs" in out
    assert "scan residuals are recomputed" in out and "prediction error" in out
    code, out, _ = run(capsys, "plan", f"--hlo={unscheduled}", f"--plan={saved}", *LIMITS)
    assert code == 0 and "scan residuals are recomputed" in out
    path = tmp_path / "step.json"
    code, out, _ = run(
        capsys, "analyze", f"--hlo={unscheduled}", "--plan", f"--json={path}", *LIMITS
    )
    assert code == 0 and "planned" in out and "predicted" not in out.splitlines()[0]
    assert json.loads(path.read_text())["planned"] is not None
    for command in ("plan", "analyze"):
        code, out, _ = run(capsys, command, f"--hlo={unscheduled}", "--nocompile", *LIMITS)
        assert code == 0 and "order in the file" in out


def test_what_xla_cannot_compile_is_one_line(capsys, tmp_path):
    path = tmp_path / "step.txt"
    call = 'custom_call_target="of_another_library", api_version=API_VERSION_TYPED_FFI'
    path.write_text(
        f"HloModule m\n\nENTRY e {{\n  a = f32[9] parameter(0)\n"
        f"  ROOT b = f32[9] custom-call(a), {call}\n}}\n"
    )
    for command in ("plan", "analyze"):
        code, _, err = run(capsys, command, f"--hlo={path}")
        assert code == 1 and "XLA cannot compile the module" in only_error(err)
        path_of_many = tmp_path / "many.txt"
        path_of_many.write_text(
            path.read_text().replace("HloModule m", "HloModule m, num_partitions=9")
        )
        code, _, err = run(capsys, command, f"--hlo={path_of_many}")
        assert code == 2 and "target=cpu has" in only_error(err)


def test_sweep(capsys, tmp_path, unjittable, monkeypatch):
    path = tmp_path / "rows.csv"
    monkeypatch.chdir(unjittable)
    code, out, _ = run(
        capsys, "sweep", "--models=mlp,unjittable:make", "--batch_sizes=8", "--optimizers=sgd",
        "--targets=cpu", f"--out={path}", "--format=markdown", *LIMITS,
    )  # fmt: skip
    rows = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()][1:]
    rows.sort(key=lambda row: row["model"])
    assert code == 1 and len(rows) == 2  # one row failed, the other is there
    assert rows[0]["planned_bytes"] <= rows[0]["xla_bytes"] and "cannot trace" in rows[1]["error"]
    assert "| mlp, 8, cpu, sgd, order |" in out
    assert "The plan takes more memory than XLA in 0 of 1 rows." in out
    assert "1 rows done, 1 failed" in out


def test_help(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0 and "measure" in out
    first, further = out.split("Further:")
    assert first.index("  plan ") < first.index("  check ") < first.index("  cache ")
    assert "  place " in further and "  place " not in first
    code, out, _ = run(capsys, "plan", "--help")
    assert code == 0 and "--time_limit" in out and "dumped module" in out
    assert "--step_limit:" not in out and "plan --helpfull lists 6 more" in out
    code, out, _ = run(capsys, "plan", "--helpfull")
    assert code == 0 and "--step_limit" in out and "few users need" not in out
    assert run(capsys)[0] == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_json(capsys, name):
    code, out, _ = run(capsys, name, "--help")
    assert code == 0 and "\n  --json: " in out


def test_the_assignment_is_part_of_plan(capsys, tmp_path):
    path = tmp_path / "found.json"
    code, out, err = run(
        capsys, "plan", "--model=mlp", "--batch_size=8", "--assignment", "--noadvice",
        "--largest=3", f"--json={path}", *LIMITS,
    )  # fmt: skip
    assert code == 0, err
    assert "XLA's allocations in MB: bytes live at" in out
    titles = [table["title"] for table in json.loads(path.read_text())["tables"]]
    assert sum("allocations" in title for title in titles) == 1


def test_an_objection_that_cannot_be_read(capsys, tmp_path):
    assert run(capsys, "objection")[0] == 2
    code, _, err = run(capsys, "objection", str(tmp_path / "none"))
    assert code == 2 and "none" in only_error(err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paln"], "no command 'paln' (did you mean plan?); the commands are plan"),
        (["plan"], "give either --model=NAME or --hlo=FILE"),
        (["plan", "--model=mlp", "--gap=0.1"], "needs method='ilp'"),
        (["plan", "--model=mlp", "--hlo=x"], "give either --model=NAME or --hlo=FILE"),
        (["plan", "--modle=mlp"], "--help"),
        (["plan", "mlp"], "unexpected argument 'mlp'; give flags as --name=value"),
        (["plan", "--model=alexnett"], "unknown model 'alexnett'; choose one of"),
        (["plan", "--model=mlp", "--optimizer=adamm"], "adamm"),
        (["plan", "--model=mlp", "--batch_size=0"], "batch_size"),
        (["plan", "--model=mlp", "--time_limit=0"], "time_limit"),
        (["plan", "--model=mlp", "--step_limit=-1"], "step_limit"),
        (["plan", "--model=mlp", "--target=tpu"], "target"),
        (["plan", "--model=mlp", "--plan_out=/no/such/place"], "cannot write /no/such/place"),
        (["plan", "--hlo=/no/such/file"], "/no/such/file"),
        (["analyze"], "give either --model=NAME or --hlo=FILE"),
        (["analyze", "--model=mlp", "--html=/no/such/place"], "cannot write /no/such/place"),
        (["diff", "a.json"], "give A and B"),
        (["diff", "jax==0.11.2", "x"], "give a step to compile: --model=NAME"),
        (["check", "--model=mlp", "--baseline=x", "--tolerance=no"], "--tolerance=no"),
        (["measure", "--model=mlp", "--steps=1"], "steps"),
        (["measure"], "give --model=NAME"),
        (["sweep", "--models=mlp", "--targets=tpu"], "'tpu' is not one of"),
        (["sweep", "--models=mlp", "--batch_sizes=x"], "batch"),
        (["sweep", "--models=mlp", "--out=/no/such/place"], "/no/such/place"),
        (["bench", "schedule"], "no command 'bench'"),
        (["estimate", "--model=mlp"], "are run by python -m benchmarks NAME in a checkout"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2 and message in only_error(err)


@pytest.fixture
def unjittable(tmp_path):
    """A folder with a model whose step branches on a value."""
    (tmp_path / "unjittable.py").write_text(
        "import jax.numpy as jnp\n"
        "def make(*, batch_size, optimizer):\n"
        "    return (lambda x: x if x > 0 else -x), (jnp.ones(()),), {}\n"
    )
    return tmp_path


def test_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "olla_xla", "plan", "--model=nothing"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "nothing" in only_error(done.stderr) and not done.stdout


def test_cache_lists_checks_and_removes(capsys, tmp_path):
    good, spoilt = (tmp_path / f"{digit * 32}.plan" for digit in "01")
    plan_store.write(good, made_plan(xla_bytes=3 * MB))
    spoilt.write_bytes(good.read_bytes()[:-9])
    where = f"--directory={tmp_path}"
    code, out, _ = run(capsys, "cache", where, "--format=markdown")
    assert code == 0 and "jit_step" in out and "3.0" in out and "is damaged" in out
    assert run(capsys, "cache", where, "--verify")[0] == 1
    code, out, _ = run(capsys, "cache", where, "--prune")
    assert code == 0 and "removed 1 files" in out and good.exists() and not spoilt.exists()
    assert run(capsys, "cache", where, "--verify")[0] == 0
    code, _, err = run(capsys, "cache", f"--directory={tmp_path / 'none'}")
    assert code == 2 and "is not a folder" in only_error(err)


def test_habits(capsys, tmp_path):
    """What other programs take: --version, -m, hyphens, near misses, JSON to standard output."""
    code, out, _ = run(capsys, "--version")
    assert code == 0 and out.startswith(f"olla_xla {olla_xla.__version__}, jax ")
    module = [sys.executable, "-m", "olla_xla", "--version"]
    assert subprocess.run(module, capture_output=True, text=True, timeout=60).stdout == out
    code, _, err = run(capsys, "plna")
    assert code == 2 and "did you mean plan?" in err
    code, _, err = run(capsys, "plan", "--batchsize=4")
    assert code == 2 and "Did you mean: batch_size" in err
    code, _, err = run(capsys, "max-batch", "--model=mlp", "--target=cpu")
    assert code == 2 and "--memory=4GiB" in err


def test_json_of_every_command_is_what_was_printed(capsys, tmp_path):
    model = ("--model=mlp", "--batch-size=8", "--noadvice")
    code, out, err = run(capsys, "plan", *model, "--json", *LIMITS)
    found = json.loads(out)
    assert code == 0 and "lower bound" in err
    assert found["plan"]["assigned_bytes"] > 0
    rows = {row[0]: row for row in found["tables"][0]["rows"]}
    assert rows["planned"][1] == f"{found['plan']['assigned_bytes'] / 2**20:,.1f} MB"
    path = tmp_path / "cache.json"
    code, out, _ = run(capsys, "cache", f"--directory={tmp_path}", f"--json={path}")
    assert code == 0 and out
    json.loads(path.read_text())
    code, out, _ = run(capsys, "analyze", *model, "--json")
    assert code == 0 and json.loads(out)["format"] == "olla_xla.analysis"
    code, _, err = run(capsys, "cache", f"--json={tmp_path / 'none' / 'x.json'}")
    assert code == 2 and "there is no such folder" in err
