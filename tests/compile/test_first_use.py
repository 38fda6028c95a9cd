"""The first plan of each kind on a device is compared with XLA's own, and that is remembered.

The mechanism, on a CPU whose name is a card's.
"""

import dataclasses
import json
import logging
import warnings

import jax
import pytest

import olla_xla
from hlo.backend import PLATFORMS
from olla_xla.compile import first_use, verification
from olla_xla.compile.first_use import DIFFERENT, SAME
from tests.support.plans import made_plan
from tests.support.steps import assert_same, branches, plan, rows, weights

GB = 2**30


class Card:
    """A device that JAX does not know."""

    platform, device_kind = "cpu", "NVIDIA Fake"

    def __init__(self, limit=80 * GB, used=GB):
        self._stats = {"bytes_limit": limit, "bytes_in_use": used} if limit else None

    def memory_stats(self):
        return self._stats


@pytest.fixture
def card(monkeypatch, tmp_path):
    monkeypatch.delenv("OLLA_XLA_VERIFY", raising=False)
    untested = dataclasses.replace(PLATFORMS["cpu"], has_tested_bits=False)
    monkeypatch.setattr(verification, "platform_of_jax", lambda _: untested)
    monkeypatch.setattr(first_use, "user_cache", lambda: tmp_path / "cache")

    def present(**how):
        monkeypatch.setattr(verification, "devices_of", lambda _: [Card(**how)])

    present()
    return present


@pytest.fixture
def compared(monkeypatch):
    """Which comparisons were made."""
    made = []
    expected = verification.ResultComparison.expected

    def noted(self, *args):
        made.append(self)
        return expected(self, *args)

    monkeypatch.setattr(verification.ResultComparison, "expected", noted)
    return made


def said():
    (found,) = first_use.verified().values()
    return found


def test_a_kind_is_compared_once(card, compared):
    planned = plan(branches, donate_argnums=0)
    expected = jax.jit(branches)(weights(), rows())
    assert_same(expected, planned(weights(), rows()))
    assert len(compared) == 1 and planned.plans[0].source != "xla"
    assert {"order"} <= set(said()) and set(said().values()) == {SAME}
    (where,) = first_use.verified()
    assert where.startswith("NVIDIA Fake, jaxlib ")
    assert_same(expected, planned(weights(), rows()))
    other = plan(branches, donate_argnums=0, seed=3)
    assert_same(expected, other(weights(), rows()))
    compiled = plan(branches, donate_argnums=0, seed=4).lower(weights(), rows()).compile()
    assert_same(expected, compiled(weights(), rows()))
    assert len(compared) == 1


def test_a_compiled_stage_is_compared_too(card, compared):
    compiled = plan(branches, donate_argnums=0).lower(weights(), rows()).compile()
    assert not first_use.verified()
    expected = jax.jit(branches)(weights(), rows())
    for _ in range(2):
        assert_same(expected, compiled(weights(), rows()))
    assert len(compared) == 1 and set(said().values()) == {SAME}


def test_results_that_differ_are_not_used_and_each_plan_is_compared(card, compared, wrong, blind):
    expected = jax.jit(branches)(weights(), rows())
    for count, stage in enumerate((False, True), start=1):
        planned = plan(branches, donate_argnums=0, seed=count)
        used = planned.lower(weights(), rows()).compile() if stage else planned
        with pytest.warns(olla_xla.PlanWarning, match=r"differ from XLA's own at output\[4\]") as w:
            assert_same(expected, used(weights(), rows()))
        assert len(w) == 1 and "\n" not in str(w[0].message)
        assert len(compared) == count and DIFFERENT in said().values()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same(expected, used(weights(), rows()))


@pytest.mark.parametrize("off", ["variable", "argument", "tested"])
def test_nothing_is_compared(card, compared, monkeypatch, off):
    options = {}
    if off == "variable":
        monkeypatch.setenv("OLLA_XLA_VERIFY", "0")
    elif off == "argument":
        options["verify"] = False
    else:
        monkeypatch.setattr(verification, "platform_of_jax", lambda _: PLATFORMS["cpu"])
    plan(branches, donate_argnums=0, **options)(weights(), rows())
    assert not compared and not first_use.verified()


@pytest.mark.parametrize(
    "how, text", [({"used": 80 * GB - 1000}, "that takes 81,9"), ({"limit": 0}, "does not report")]
)
def test_without_memory_nothing_is_compared(card, compared, caplog, how, text):
    card(**how)
    planned = plan(branches, donate_argnums=0)
    assert_same(jax.jit(branches)(weights(), rows()), planned(weights(), rows()))
    assert not compared and not first_use.verified()
    assert text in caplog.text and caplog.text.count("not compared") == 1


@pytest.mark.parametrize("error", [jax.errors.JaxRuntimeError, ValueError])
def test_xlas_own_may_fail_where_nobody_asked_for_it(card, monkeypatch, caplog, error):
    def fails(self, own, args, kwargs):
        def raises(*_, **__):
            raise error("RESOURCE_EXHAUSTED: out of memory\nmore")

        return original(self, raises, args, kwargs)

    original = verification.ResultComparison.expected
    monkeypatch.setattr(verification.ResultComparison, "expected", fails)
    expected = jax.jit(branches)(weights(), rows())
    assert_same(expected, plan(branches, donate_argnums=0)(weights(), rows()))
    assert "not compared with XLA's own: RESOURCE_EXHAUSTED: out of memory" in caplog.text
    assert not first_use.verified()
    with pytest.raises(error):
        plan(branches, donate_argnums=0, verify=True)(weights(), rows())


_PLAN = made_plan(target="cuda")


def test_what_a_plan_changes(card):
    bound = dataclasses.replace(_PLAN, aliases={"f": (((), 0),)})
    loops = dataclasses.replace(bound, loops=(("a", "b", (0,), 0),))
    assert first_use.kinds(_PLAN) == {"order"} and first_use.kinds(bound) == {"order", "bindings"}
    assert first_use.kinds(loops) == {"order", "bindings", "residuals"}
    card_here = Card()
    use = first_use.due(bound, card_here)
    assert use is not None and use.kinds == {"order", "bindings"}
    use.remember(same=True)
    assert first_use.due(bound, card_here) is None and first_use.due(_PLAN, card_here) is None
    left = first_use.due(loops, card_here)
    assert left is not None and left.kinds == {"residuals"}
    left.remember(same=False)
    assert first_use.due(loops, card_here) == left and said()["order"] == SAME


@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', json.dumps({"x": {"other": "same"}})])
def test_a_file_that_is_none_is_passed_over(card, tmp_path, text):
    path = tmp_path / "cache" / "verified.json"
    path.parent.mkdir()
    path.write_text(text)
    use = first_use.due(_PLAN, Card())
    assert use is not None
    use.remember(same=True)
    assert first_use.due(_PLAN, Card()) is None


def test_a_folder_that_cannot_be_written(card, tmp_path, caplog):
    (tmp_path / "cache").write_text("no folder")
    caplog.set_level(logging.INFO, "olla_xla")
    use = first_use.due(_PLAN, Card())
    assert use is not None
    use.remember(same=True)
    assert "cannot store the result" in caplog.text and first_use.due(_PLAN, Card()) == use
