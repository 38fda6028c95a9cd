"""`olla_xla run`: scripts run as Python runs them, with what they jit planned."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from olla_xla.cli.main import main

ROOT = Path(__file__).parents[2]

STEP = """
import os
import sys

os.environ["JAX_ENABLE_X64"] = "1"  # read when JAX is imported
import jax
import jax.numpy as jnp
import library


def deep(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x.sum()


grad = jax.jit(jax.grad(deep))
sine = jax.jit(jnp.sin)  # JAX's own


def main():
    weights = [jnp.full((64, 64), 0.01, jnp.float32)] * 6
    found = grad(weights, jnp.ones((1024, 64), jnp.float32))
    print(__name__, sys.argv, os.path.basename(sys.path[0]), float(found[0].sum()).hex())
    print(sine(1.0).dtype, library.twice(jnp.ones(3)))
    return sys.argv[-1]


if __name__ == "__main__":
    end = main()
    if end == "--raise":
        raise ValueError("the script's own")
    if end == "--wait":
        print("waits", flush=True)
        import time
        time.sleep(60)
    sys.exit(int(end) if end.isdigit() else None if end == "--none" else end)
"""

LAYERS = """
import functools
import jax
import jax.numpy as jnp


@functools.partial(jax.jit, static_argnames="rate", donate_argnums=0)
def train_step(w, x, rate):
    def loss(w):
        return jnp.square(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0]).mean()

    value, g = jax.value_and_grad(loss)(w)
    return w - rate * g, value


w, x = jnp.full((6, 32, 32), 0.05), jnp.ones((64, 32))
print(train_step.eval_shape(w, x, 0.1)[1].shape, train_step.trace(w, x, 0.1).jaxpr.eqns != [])
for rate in (0.1, 0.2, 0.2):
    w, loss = train_step(w, x, rate=rate)
    print(float(loss).hex())
train_step.clear_cache()
try:
    train_step(w)
except TypeError as error:
    print(error)
"""

LIBRARY = """
from jax import jit


@jit  # when it is imported
def twice(x):
    return 2 * x
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("scripts")
    (made / "train.py").write_text(STEP)
    (made / "library.py").write_text(LIBRARY)
    (made / "layers.py").write_text(LAYERS)
    return made


def start(folder, *arguments, **kwargs):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs,
    )  # fmt: skip


def called(folder, *arguments):
    process = start(folder, *arguments)
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


def run(folder, *arguments):
    return called(folder, "-m", "olla_xla", "run", *arguments)


def rows(error):
    """Function -> its line in the table."""
    lines = error[error.index("function ") :].splitlines()[2:]
    return {line.split()[0]: line for line in lines if line}


def test_a_script_prints_and_ends_as_under_python(folder):
    arguments = ("train.py", "--help", "--steps=3", "--list_models", "7")
    code, out, error = run(folder, *arguments)
    assert (code, out) == called(folder, *arguments)[:2]
    assert code == 7 and "__main__ ['train.py', '--help'" in out and "float64" in out
    found = rows(error)
    assert set(found) == {"deep", "twice"}  # sin is JAX's own
    assert "7 arrays: .., float32[64,64], float32[1024,64]" in found["deep"]


def test_what_is_planned_is_in_the_table(folder):
    script = str(ROOT / "examples" / "convnet.py")
    code, out, error = run(folder, "--only=train_step$", "--json=all.json", script)
    assert code == 0 and out == called(folder, script)[1]
    row = rows(error)["train_step"].split()
    xla, planned = float(row[6]), float(row[7])
    assert planned < 0.75 * xla
    table = json.loads((folder / "all.json").read_text())["tables"][0]
    assert table["columns"][0] == "function" and table["rows"][0][0] == "train_step"


def test_modules_and_reports(folder, tmp_path):
    flags = ["--max_overhead", "30%", f"--html={tmp_path}"]
    code, out, error = run(folder, *flags, "-m", "train", "ends with text")
    assert code == 1 and "__main__" in out and "ends with text\n" in error
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["01_deep.html", "02_twice.html"]


def test_residuals_of_what_a_script_jits_may_wait_in_host_memory(folder, tmp_path):
    flags = ["--host_budget=1GiB", "--max_overhead=5%", f"--html={tmp_path}"]
    code, out, error = run(folder, *flags, "layers.py")
    assert (code, out) == called(folder, "layers.py")[:2] and out.count("0x") == 3
    assert "2 arrays" not in error and "float32[6,32,32], float32[64,32]" in error
    assert "memory: the device is a CPU, whose memory is the host's" in rows(error)["train_step"]
    assert "a bug ended" not in error and (tmp_path / "01_train_step.html").exists()


def test_budgets_are_of_all_or_of_one(folder):
    code, _, error = run(folder, "--memory_budget=deep=1KB", "train.py", "--none")
    assert code == 1 and "BudgetError" in error and 'File "train.py"' in error
    code, _, error = run(folder, "--memory_budget=deeper=1KB", "train.py", "--none")
    assert code == 0 and "names 'deeper', but no such function was planned" in error


def test_errors_and_messages_are_the_scripts_own(folder):
    code, _, error = run(folder, "train.py", "--raise")
    assert code == 1 and error.endswith("ValueError: the script's own\n")
    assert "runpy.py" not in error.partition('File "train.py"')[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_as_they_end_python(folder, number):
    process = start(folder, "-m", "olla_xla", "run", "train.py", "--wait")
    for line in process.stdout:
        if line == "waits\n":
            break
    time.sleep(0.5)
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == -number
    assert ("function " in error) == (number == signal.SIGINT)  # as Python ends: without a word


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give the path of a script, or -m MODULE"),
        (("missing.py",), "there is no script missing.py"),
        (("--only=(", "train.py"), "not a regular expression"),
        (("--memory_budget=step=much", "train.py"), "memory_budget='much'"),
        (("--max_overhead=much", "train.py"), "max_overhead"),
        (("--host_budget=much", "train.py"), "--host_budget='much'"),
        (("--host_budget=1GiB", "--max_overhead=knee", "train.py"), "give --max_overhead as a nu"),
        (("--html=missing", "train.py"), "cannot write missing"),
    ],
)
def test_what_is_wrong_is_said_before_the_script_runs(folder, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(folder)
    code, (out, error) = main(["olla_xla", "run", *arguments]), capsys.readouterr()
    assert (code, out) == (2, "") and said in error and len(error.splitlines()) == 1


def test_help_is_ours_before_the_script(capsys):
    assert main(["olla_xla", "run", "--help"]) == 0
    assert "SCRIPT|-m MODULE [ARGUMENTS]" in capsys.readouterr().out.splitlines()[0]
