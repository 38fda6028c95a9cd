"""The Pareto command: its rows, its stars, its misuse."""

import jax
import jax.numpy as jnp
import pytest

from olla_xla import targets
from olla_xla.analysis.checkpointed import checkpointed_loss, sublinear_loss
from olla_xla.cli.main import main
from olla_xla.cli.report.sweeps import pareto_table
from olla_xla.problem.options import PlanOptions
from olla_xla.tools import models, variants


def small(batch_size, optimizer):
    """Eight layers whose activations are large beside their weights."""
    del optimizer
    shapes = (8, 32, 32), (512 * batch_size, 32)

    def step(w, x):
        def loss(w):
            h = x
            for k in range(8):
                h = jnp.tanh(h @ w[k])
            return jnp.mean(h**2)

        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * gradient, value

    arguments = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return step, arguments, {"donate_argnums": 0}


def test_every_way_is_compiled_run_and_priced(monkeypatch):
    monkeypatch.setattr(variants, "POLICIES", variants.POLICIES[1:3])
    model = models.build("tests.tools.test_pareto:small", batch_size=4, optimizer="sgd")
    options = PlanOptions(time_limit=5, step_limit=2000)
    seen, differentiate = [], (jax.grad, jax.value_and_grad)
    rows, left = variants.pareto(model, targets.target("cpu"), options, [0.0, 0.3], seen.append)
    names = [row.name for row in rows]
    assert names[:3] == ["XLA", "planned order", "planned, at most 30%"] and not left
    assert names[-2:] == ["olla_xla.sublinear", "olla_xla.sublinear, dots kept"]
    assert len(names) == len(seen) == 5 + len(variants.POLICIES)
    assert seen[0] == "1 of 7: XLA's own schedule" and seen[2].startswith("3 of 7: planned, 30%")
    assert all(row.bytes > 0 and row.seconds > 0 and row.measured for row in rows)
    order, recomputed = rows[1:3]
    assert order.clones == 0 and order.bytes <= rows[0].bytes
    assert recomputed.bytes <= order.bytes and recomputed.seconds <= 1.3 * rows[0].seconds
    assert (jax.grad, jax.value_and_grad) == differentiate, "JAX is as it was"
    table = pareto_table(rows, "mlp")
    assert [line[0] for line in table.rows] == names
    best = min(rows, key=lambda row: (row.bytes, row.seconds))
    assert table.rows[rows.index(best)][-1] == "*"


def test_checkpoint_policies_reach_the_step():
    model = models.build("mlp", batch_size=8, optimizer="sgd")
    work = variants.StepVariants(model, targets.target("cpu"), PlanOptions())
    with checkpointed_loss("nothing_saveable"):
        again = work.compiled().as_text().count("dot(")
    assert again > work.compiled().as_text().count("dot(")


@pytest.mark.parametrize("transform", ["grad", "value_and_grad"])
def test_sublinear_reaches_what_is_differentiated(transform):
    def deep(x):
        for _ in range(24):
            x = jnp.tanh(x @ x)
        return jnp.sum(x)

    def dots():
        return (
            jax.jit(getattr(jax, transform)(deep)).lower(jnp.ones((8, 8))).as_text().count("dot_")
        )

    plain = dots()
    with sublinear_loss("nothing"):
        segments = dots()
    with sublinear_loss("dots"):
        kept = dots()
    assert segments > plain == kept == dots()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("pareto --model=mlp --overheads=x", "0.05 for 5%"),
        ("pareto --model=mlp --overheads=-1", "0.05 for 5%"),
        ("pareto", "--model"),
        ("plan --model=mlp --memory_budget=big", "512MiB"),
        ("plan --model=mlp --max_overhead=-1", "0.05 for 5%"),
    ],
)
def test_misuse_shows_the_right_form(arguments, said, capsys):
    assert main(["olla_xla", *arguments.split()]) == 2
    assert said in capsys.readouterr().err
