"""Processes agree on one answer, whoever refuses, differs, comes late, leaves or dies."""

import json
import threading
import time

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olla_xla.compile.agreement import Agreement, Decision, KeyValues
from olla_xla.errors import AgreementError

PATIENCE = 0.3


class Runtime:
    """A key-value store as JAX's client has it, for threads that play processes."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def key_value_set_bytes(self, key, value, allow_overwrite=False):
        with self.changed:
            if key in self.values and not allow_overwrite:
                raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
            self.values[key] = value
            self.changed.notify_all()

    def key_value_try_get_bytes(self, key):
        return self.blocking_key_value_get_bytes(key, 0)

    def blocking_key_value_get_bytes(self, key, milliseconds):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise jax.errors.JaxRuntimeError(f"NOT_FOUND: {key}")
            return self.values[key]

    def key_value_dir_get_bytes(self, folder):
        with self.changed:
            return [(k, v) for k, v in self.values.items() if k.startswith(folder)]

    def key_value_delete(self, key):
        with self.changed:
            self.values.pop(key, None)


class Dies(BaseException):
    """A process ends without a word."""


def agreement(runtime, me, count, topic="topic", patience=PATIENCE):
    members = tuple(range(count))
    return Agreement(KeyValues(runtime), topic, "step", me, members, patience)


def member(runtime, me, count, act):
    """What a process comes to: a decision, or the exception that it left with."""
    delay = 3 * PATIENCE if act == "late" else 0.0
    time.sleep(delay)
    try:
        with agreement(runtime, me, count) as agreed:
            if act == "silent":
                agreed._over.set()  # beats no more, and does nothing while the others wait
                time.sleep(2 * PATIENCE)
            if act == "leaves":
                raise RuntimeError("out of memory")
            return agreed.settle("b" if act == "differs" else "a", "no" * (act == "refuses"))
    except RuntimeError as error:
        return error


def together(acts):
    runtime, found = Runtime(), [None] * len(acts)

    def run(k):
        found[k] = member(runtime, k, len(acts), acts[k])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    return runtime, found


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["votes", "votes", "votes", "differs", "refuses", "late", "silent", "leaves"]
        ),
        min_size=2,
        max_size=4,
    )
)
def test_all_or_none(acts):
    runtime, found = together(acts)
    decisions = [d for d in found if isinstance(d, Decision)]
    assert len(set(decisions)) <= 1
    alike = len({"differs" if act == "differs" else "same" for act in acts}) == 1
    possible = alike and not {"refuses", "leaves"} & set(acts)
    certain = possible and not {"late", "silent"} & set(acts)
    for decision in decisions:
        assert certain <= bool(decision.digest) <= possible, (acts, decision)
        assert bool(decision.reason) != bool(decision.digest)
    # Who asks later finds the same.
    with agreement(runtime, 0, len(acts)) as agreed:
        assert {agreed.settled()} >= set(decisions)
    for act, one in zip(acts, found, strict=True):
        assert isinstance(one, RuntimeError) == (act == "leaves")
    assert not [key for key in runtime.values if "/at/" in key], "nobody is left behind"


def test_reasons_name_the_process():
    assert "process 1 compiled something else" in together(["votes", "differs"])[1][0].reason
    assert "process 1 did not begin to compile" in together(["votes", "late"])[1][0].reason
    assert "process 0 sent no sign of life" in together(["silent", "votes"])[1][1].reason
    assert "out of memory" in together(["votes", "leaves"])[1][0].reason


def test_another_program_of_that_name_is_seen_at_once():
    runtime = Runtime()
    found = {}

    def run(me):
        with agreement(runtime, me, 2, f"program {me}", patience=60) as agreed:
            found[me] = agreed.settle("a")

    threads = [threading.Thread(target=run, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert [found[k].digest for k in range(2)] == ["", ""]
    assert "compile different step" in found[0].reason == found[1].reason


def test_an_offer_waits_for_the_leader_and_ends_with_it():
    runtime = Runtime()
    with agreement(runtime, 1, 2) as follower:
        assert follower.offered(wait=False) is None
        assert follower.offered() is None  # the leader does not come
        assert "did not begin to compile" in follower.settled().reason
    with agreement(runtime, 0, 2, "second") as leader, agreement(runtime, 1, 2, "second") as other:
        assert leader.leads and not other.leads
        leader.offer(b"plan")
        leader.offer(b"another plan")
        assert other.offered() == b"plan", "the first one stays"


def test_a_runtime_that_does_not_answer_is_an_error():
    class Gone(Runtime):
        def key_value_set_bytes(self, key, value, allow_overwrite=False):
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: connection refused")

    with pytest.raises(AgreementError, match="restart all processes"):
        with agreement(Gone(), 0, 2):
            pass


def test_a_decision_that_was_written_holds():
    runtime = Runtime()
    runtime.values["olla_xla/topic/decision"] = json.dumps({"digest": "a", "reason": ""}).encode()
    with agreement(runtime, 1, 2) as late:
        assert late.settle("", "it would rather not") == Decision("a")
