"""What processes send each other about a plan, and what comes of their votes."""

import threading
import types

import pytest

from olla_xla.compile import together
from olla_xla.compile.outcomes import NO_GAIN, Outcome
from olla_xla.compile.together import _Offer, _settled
from olla_xla.errors import AgreementError, BudgetError
from tests.compile.test_agreement import Runtime, agreement

pytestmark = pytest.mark.quick


def test_an_offer_arrives_as_it_was_sent():
    sent = _Offer(text="", reason="in process 0: too large")
    assert _Offer.read(sent.data()) == sent and sent.plan() is None
    assert _Offer.of(None, NO_GAIN) == _Offer(reason=NO_GAIN)


def test_a_budget_that_is_not_met_is_raised_by_those_who_read_it():
    error = BudgetError(100, 150, "nothing can be cut")
    offer = _Offer.over(error)
    with pytest.raises(BudgetError) as found:
        _Offer.read(offer.data())
    assert str(found.value) == str(error) and found.value.least_bytes == 150


@pytest.mark.parametrize(
    ("client", "share", "cache", "part"),
    [
        (None, True, "/cache", "jax.distributed.initialize()"),
        (object(), True, "/cache", "jax_share_binary_between_hosts"),
        (object(), True, None, ""),
        (object(), False, "/cache", ""),
    ],
)
def test_when_processes_cannot_plan_together(monkeypatch, client, share, cache, part):
    config = types.SimpleNamespace(
        jax_share_binary_between_hosts=share, jax_compilation_cache_dir=cache
    )
    monkeypatch.setattr(together, "distributed_client", lambda: client)
    monkeypatch.setattr(together.jax, "config", config)
    reason = together.reason_not_to()
    assert part in reason and bool(reason) == bool(part)


class Compile:
    """One process's compile: what it comes to, and what it does after the vote."""

    def __init__(self, outcome):
        self._outcome, self.key, self.saved = outcome, "key", []
        self.compiles = types.SimpleNamespace(own=lambda key=None: "own")
        self.store = types.SimpleNamespace(save=lambda key, plan: self.saved.append((key, plan)))

    def outcome(self):
        return self._outcome

    def without(self, outcome, reason):
        return Outcome("own", None, False, reason)


def voted(monkeypatch, outcomes):
    """By process: what it runs, or the error with which it ends; and its compile."""
    monkeypatch.setattr(together, "_digest", lambda outcome: outcome.compiled)
    runtime, found = Runtime(), [None] * len(outcomes)
    compiles = [Compile(outcome) for outcome in outcomes]

    def work(me):
        with agreement(runtime, me, len(outcomes), patience=2.0) as agreed:
            try:
                found[me] = _settled(agreed, compiles[me])
            except AgreementError as error:
                found[me] = error

    threads = [threading.Thread(target=work, args=(me,)) for me in range(len(outcomes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, compiles


def planned(digest="planned"):
    return Outcome(digest, "plan", True, "")


def test_all_run_the_plan_that_all_have(monkeypatch):
    found, compiles = voted(monkeypatch, [planned(), planned()])
    assert [o.compiled for o in found] == ["planned", "planned"]
    assert [c.saved for c in compiles] == [[("key", "plan")]] * 2


def test_nobody_runs_a_plan_that_one_does_not_have(monkeypatch):
    found, compiles = voted(monkeypatch, [planned(), Outcome("own", None, False, "no memory")])
    assert [(o.compiled, o.planned) for o in found] == [("own", False)] * 2
    assert found[0].reason == found[1].reason and "no memory" in found[0].reason
    assert not any(c.saved for c in compiles)


def test_nobody_runs_what_differs(monkeypatch):
    found, _ = voted(monkeypatch, [planned(), planned("another")])
    assert [(o.compiled, o.planned) for o in found] == [("own", False)] * 2


def test_a_process_that_comes_later_must_run_what_was_agreed(monkeypatch):
    monkeypatch.setattr(together, "_digest", lambda outcome: outcome.compiled)
    runtime = Runtime()
    with agreement(runtime, 0, 1) as agreed:
        assert _settled(agreed, Compile(planned())).planned
    for late in (planned("another"), Outcome("own", None, False, "no memory")):
        with agreement(runtime, 0, 1) as agreed, pytest.raises(AgreementError, match="restart all"):
            _settled(agreed, Compile(late))
