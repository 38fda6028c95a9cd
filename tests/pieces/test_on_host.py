"""`olla_xla.plan(..., host_budget=)`: kept, recomputed or spilled, as the best plan has it."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from olla_xla import targets
from olla_xla.cli.main import main
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.errors import BudgetError, InputError, LimitError
from olla_xla.pieces import on_host
from olla_xla.problem.plan import dumps, loads
from tests.support.four_products import shapes, step
from tests.support.plugins import mark


def on_h100(devices=1):
    targets.prepare_environment("h100", devices)
    weights, rows = shapes(4096, 8192 * devices)
    split = [dict.fromkeys(weights, -1), 0]
    return targets.target("h100", devices).place([weights, rows], split)


@mark("cuda13")
def test_it_takes_less_of_the_device_than_a_plan_alone_in_no_more_time():
    given = on_h100()
    function = olla_xla.plan(step, host_budget="64GiB", donate_argnums=0, step_limit=1000)
    found = function.choice(*given)
    alone, best = found.trials[0], found.chosen
    assert alone.host_bytes == 0 and best.fits and not found.host_reason
    assert best.bytes <= alone.bytes - 2**29 and best.seconds <= alone.seconds
    assert best.bytes == min(trial.bytes for trial in found.trials if trial.fits)
    plan = function.lower(*given).compile().plan
    assert (plan.assigned_bytes, plan.host_bytes) == (best.bytes, best.host_bytes)
    assert sum(a.bytes for a in plan.host_arrays) == plan.host_bytes <= best.spilled.host_bytes
    assert all("four_products.py" in a.line and a.writer != a.reader for a in plan.host_arrays)
    assert loads(dumps(plan)) == plan
    assert re.search(
        r"in host memory +512\.0 MB +assigned by XLA; in no other total", plan.summary()
    )
    event = olla_xla.report().events[-1]  # one for all that was tried
    assert (event.bytes, event.host_bytes) == (best.bytes, best.host_bytes)
    own = jax.jit(step, donate_argnums=0).lower(*given).compile()
    assert event.xla_bytes == pytest.approx(assigned_bytes(own), rel=0.01)
    assert "step: 512.0 MB in host memory" in str(olla_xla.report())


@mark("cuda13")
def test_every_device_has_a_link_of_its_own():
    function = olla_xla.plan(step, host_budget="1GiB", donate_argnums=0, step_limit=1000)
    assert function.choice(*on_h100(devices=2)).trials[1].host_bytes == 2**29


@mark("cuda13")
def test_a_budget_is_met_in_the_least_time_or_both_totals_are_told():
    given, options = on_h100(), {"donate_argnums": 0, "host_budget": "512MiB", "step_limit": 1000}
    found = olla_xla.plan(step, memory_budget="4GiB", **options).choice(*given)
    assert found.chosen.bytes <= 2**32
    assert found.chosen.seconds < 0.99 * found.trials[0].seconds
    with pytest.raises(BudgetError, match="MB with none spilled; .* MB with 512.0 MB spilled"):
        olla_xla.plan(step, memory_budget="1GiB", **options).choice(*given)


@mark("cuda13")
def test_nothing_is_spilled_where_that_is_not_needed_or_not_possible():
    given = on_h100()
    enough = olla_xla.plan(step, memory_budget="64GiB", host_budget="1GiB").choice(*given)
    assert enough.host_reason == "the step meets the budget and XLA's time without host memory"
    assert len(enough.trials) == 1
    doubled = olla_xla.plan(lambda x: jnp.sin(x) * 2, host_budget="1GiB")
    assert doubled.choice(given[1]).host_reason.startswith("no scan stores a value for another")


def test_on_a_cpu_it_says_why_nothing_is_spilled(capsys):
    given = [jnp.full(s.shape, 0.1, s.dtype) for s in jax.tree.leaves(shapes(16, 8))]
    given = dict(zip("abcd", given, strict=False)), given[-1]
    function = olla_xla.plan(step, host_budget="1MiB")
    jax.tree.map(np.testing.assert_array_equal, function(*given), jax.jit(step)(*given))
    reason = function.choice(*given).host_reason
    assert reason == "the device is a CPU, whose memory is the host's"
    assert olla_xla.report().events[-1].host == f"nothing in host memory: {reason}"
    assert repr(function) == "<olla_xla.plan of step: with 0.0 MB in host memory so far>"
    assert function.lower(*given).compile().plan.host_bytes == 0
    flags = ["--model=mlp", "--batch_size=8", "--host_budget=1GiB", "--noadvice", "--largest=0"]
    assert main(["olla_xla", "plan", *flags, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["plan"]["host_arrays"] == []
    assert f"0.0 MB in host memory: {reason}." in shown.err


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"host_budget": "much"}, InputError),
        ({"host_budget": 0}, LimitError),
        ({"fission": True, "memory_budget": 10}, InputError),
        ({"enabled": False}, InputError),
        ({"max_overhead": "knee"}, InputError),
    ],
)
def test_what_does_not_go_with_it_is_said_in_a_line(options, error):
    with pytest.raises(error, match="host_budget=") as raised:
        olla_xla.plan(step, **{"host_budget": "1GiB", **options})
    assert "\n" not in str(raised.value)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("own", "fits", "asked"),
    [
        (1.0, False, [0.1]),  # XLA's own time: the overhead is of the same step
        (1.06, False, [0.1, 1.1 / 1.06 - 1]),  # copies take some of the time allowed
        (1.06, True, [0.1]),
        (1.2, False, [0.1]),  # copies take all of it
        (0.9, True, [0.1, 1.1 / 0.9 - 1]),
    ],
)
def test_an_overhead_is_of_the_function_that_spills_nothing(own, fits, asked, monkeypatch):
    search, seen = object.__new__(on_host._SpillSearch), []
    plain = olla_xla.plan(step, host_budget=1, max_overhead=0.1)._plain
    search._settings, search._jit_options = plain._plan_settings, {}
    search._own_seconds, search._trials = 1.0, []

    def tried(function, part):
        seen.append(function._plan_settings.options.max_overhead)
        search._trials.append((on_host.HostTrial(part, 1, fits=fits), function))
        return own

    monkeypatch.setattr(search, "_tried", tried)
    search._try_spilled(step, on_host.SpillPlan(()))
    assert seen == pytest.approx(asked)


@pytest.mark.quick
def test_a_bug_of_the_search_leaves_the_call_to_a_plan_alone(monkeypatch, caplog):
    monkeypatch.setattr(on_host._SpillSearch, "run", lambda self: 1 / 0)
    function = olla_xla.plan(lambda x: x + 1, host_budget="1GiB")
    assert function(jnp.ones(2)).tolist() == [2, 2]
    assert "a bug ended the search: ZeroDivisionError" in caplog.text
    caplog.clear()
    with pytest.raises(TypeError, match="missing"):
        function()
    assert "a bug ended" not in caplog.text
    strict = olla_xla.plan(lambda x: x + 1, host_budget="1GiB", memory_budget="1GiB")
    with pytest.raises(ZeroDivisionError):
        strict(jnp.ones(2))


@pytest.mark.quick
def test_the_command_spills_in_traced_functions_alone(capsys):
    assert main(["olla_xla", "plan", "--hlo=module.txt", "--host_budget=1GiB"]) == 2
    assert "--host_budget works with --model only" in capsys.readouterr().err
