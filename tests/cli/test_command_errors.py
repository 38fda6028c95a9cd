"""What commands object to before they do any work."""

import pytest
from absl import flags

from olla_xla.cli.commands import analyze, check, diff, fit, plan
from olla_xla.errors import InputError, ModuleFormatError, PlanFileError

pytestmark = pytest.mark.quick


def parsed(command, *arguments):
    values = flags.FlagValues()
    command.define_flags(values)
    values(["made", *arguments])
    return values


@pytest.mark.parametrize("command", [analyze, plan])
@pytest.mark.parametrize("arguments", [[], ["--model=mlp", "--hlo=x.txt"]])
def test_a_model_or_a_module(command, arguments):
    with pytest.raises(InputError, match="give either --model=NAME or --hlo=FILE"):
        command.run(parsed(command, *arguments))


@pytest.mark.parametrize("flag", ["html", "figure"])
def test_a_report_that_cannot_be_written(tmp_path, flag):
    path = tmp_path / "none" / "report"
    with pytest.raises(InputError, match="no such folder"):
        analyze.run(parsed(analyze, "--model=mlp", f"--{flag}={path}"))


def test_plan_files(tmp_path):
    with pytest.raises(PlanFileError, match="no such folder"):
        plan.run(parsed(plan, "--model=mlp", f"--plan_out={tmp_path / 'none' / 'x.plan'}"))
    with pytest.raises(PlanFileError):
        plan.run(parsed(plan, "--model=mlp", f"--plan={tmp_path / 'none.plan'}"))


def test_a_budget_for_pieces():
    with pytest.raises(InputError, match="--memory_budget=BYTES"):
        fit.run(parsed(fit, "--model=mlp"))


def test_a_version_of_jax_needs_a_model():
    with pytest.raises(InputError, match=r"jax==0\.11\.2: give --model=NAME"):
        diff._snapshot(parsed(diff), "jax==0.11.2")


def test_a_file_that_is_no_module(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("not a module")
    with pytest.raises(ModuleFormatError, match="x.txt"):
        diff._snapshot(parsed(diff), str(path))


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), ("0.01", 0.01), ("0%", 0.0), ("99.9%", 0.999), ("0", 0.0)]
)
def test_tolerances(text, share):
    assert check._share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["100%", "1", "-1%", "much", "", "%", "nan"])
def test_what_is_no_tolerance(text):
    with pytest.raises(InputError, match="--tolerance"):
        check._share(text)


def test_a_baseline_is_needed(tmp_path):
    with pytest.raises(InputError, match="--baseline=FILE"):
        check.run(parsed(check, "--model=mlp"))
    path = tmp_path / "x.json"
    path.write_text("HloModule x")
    with pytest.raises(InputError, match="neither a plan nor an analysis"):
        check.run(parsed(check, "--model=mlp", f"--baseline={path}"))
