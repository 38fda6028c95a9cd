"""Agreement between processes: one decision on a question, the same for all of them.
Processes communicate through the key-value store of JAX's distributed runtime, where the first
value written to a key stays. The decision on a question is one such key. Only the leader writes
"yes", once the votes of all members are there and equal. Any member may write "no" at any time: if
it refuses, gives up waiting or leaves. Every writer then reads back what is stored. So no process
acts on "yes" while another acts on "no", in whatever order they arrive and whichever dies; and none
waits for a process that sends no heartbeats. A decision lasts as long as the runtime, so later
askers, also after a restart, find it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from olla_xla.errors import AgreementError
from olla_xla.version import versions

_logger = logging.getLogger("olla_xla")
_T = TypeVar("_T")

_ROOT = "olla_xla"
_LONGEST = 1800.0
"""Seconds after which a process is no longer waited for, even if it sends heartbeats."""
_BEATS = 12
"""Heartbeats that a process sends within the others' patience."""
_NOT_THERE, _THERE, _NOT_IN_TIME = "NOT_FOUND", "ALREADY_EXISTS", "DEADLINE_EXCEEDED"
"""Statuses of the runtime; the last counts as an answer only for a request that waits."""
_TRIES = 3
"""Attempts at a request that the runtime does not answer."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """The common decision of all processes on a question, such as whether to run a plan.
    `digest`: what all voted for, if it is "yes"; "" if it is "no". `reason`: why it is "no", or "".
    """

    digest: str
    reason: str = ""


class KeyValues:
    """The key-value store of JAX's distributed runtime, which all processes share.
    `client`: the runtime's, as `jax_private.distributed_client` finds it. Every method raises
    AgreementError where the runtime does not answer.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, value: bytes) -> None:
        """Sets the value of a key for all processes, and replaces an earlier value."""
        self._asked(lambda: self._client.key_value_set_bytes(key, value, allow_overwrite=True))

    def put_first(self, key: str, value: bytes) -> bytes:
        """Writes a value unless the key has one; returns the value that the key has afterwards."""
        with contextlib.suppress(_Refused):
            self._asked(lambda: self._client.key_value_set_bytes(key, value))
        stored = self.get(key)
        if stored is None:
            raise AgreementError(f"JAX's distributed runtime lost {key}; restart all processes")
        return stored

    def get(self, key: str, seconds: float = 0.0) -> bytes | None:
        """Returns a key's value, waiting at most `seconds` for it; None if it has none by then."""
        try:
            if seconds <= 0:
                return self._asked(lambda: self._client.key_value_try_get_bytes(key))
            within = max(int(seconds * 1000), 1)
            return self._asked(
                lambda: self._client.blocking_key_value_get_bytes(key, within), _NOT_IN_TIME
            )
        except _Refused:
            return None

    def under(self, folder: str) -> Mapping[str, bytes]:
        """Returns the values of all keys under `folder`/, by what follows a key's last slash."""
        with contextlib.suppress(_Refused):
            pairs = self._asked(lambda: self._client.key_value_dir_get_bytes(f"{folder}/"))
            return {key.rsplit("/", 1)[-1]: value for key, value in pairs}
        return {}

    def remove(self, key: str) -> None:
        """Removes a key and its value, for all processes, if it is there."""
        with contextlib.suppress(_Refused):
            self._asked(lambda: self._client.key_value_delete(key))

    def _asked(self, request: Callable[[], _T], no: str = _NOT_THERE) -> _T:
        """Calls `request`, up to three times if the runtime fails, and returns its result.
        Raises _Refused for the statuses NOT_FOUND, ALREADY_EXISTS and `no`, else AgreementError.
        """
        for last in range(_TRIES):
            try:
                return request()
            except jax.errors.JaxRuntimeError as error:
                if str(error).startswith((_NOT_THERE, _THERE, no)):
                    raise _Refused from error
                trouble = error
            time.sleep(0.2 * (last + 1))
        raise AgreementError(
            "JAX's distributed runtime does not answer, so it is not known whether the other "
            f"processes run a plan; restart all processes ({trouble})"
        )


class _Refused(Exception):
    """The runtime answered that a key is absent, exists already, or did not come in time."""


class Agreement:
    """One process's part in a decision of several processes, such as whether to run a plan.
    As a context manager it sends heartbeats in a thread; an error that leaves it decides "no".

    Args:
      store: shared by the processes.
      topic: names the question; equal topics are the same question.
      name: of the program, for messages; processes with one name and different topics disagree.
      me: this process. members: all that take part, in ascending order; the first one leads.
      patience: seconds without a heartbeat after which a process is taken to be lost.
    """

    def __init__(
        self,
        store: KeyValues,
        topic: str,
        name: str,
        me: int,
        members: tuple[int, ...],
        patience: float,
    ) -> None:
        self._store, self._topic, self._name = store, topic, name
        self._me, self._members, self._patience = me, members, patience
        self._slice = min(1.0, patience / 4)  # seconds of a wait, between which Ctrl-C is handled
        self._over = threading.Event()
        self._decision: Decision | None = None
        self._beating = threading.Thread(
            target=self._beat, name=f"olla_xla beats of {name}", daemon=True
        )

    @property
    def leads(self) -> bool:
        """Whether this process is the leader, which plans and offers its plan to the others."""
        return self._me == self._members[0]

    def __enter__(self) -> Agreement:
        self._store.put(self._at(self._me), _encoded(name=self._name, **versions()))
        self._show(0)
        self._beating.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, _: Any) -> None:
        try:
            if kind is not None and self._decision is None:
                self._decide(Decision("", f"process {self._me} left: {kind.__name__}: {error}"))
        except AgreementError as trouble:
            _logger.debug("cannot inform the other processes", exc_info=trouble)
        finally:
            self._over.set()
            self._beating.join()
            with contextlib.suppress(AgreementError):
                self._store.remove(self._at(self._me))

    # Its options.

    def settled(self) -> Decision | None:
        """Returns the decision if there is one already, else None, without waiting."""
        if self._decision is None:
            stored = self._store.get(self._key("decision"))
            self._decision = None if stored is None else Decision(**json.loads(stored))
        return self._decision

    def offer(self, data: bytes) -> None:
        """Publishes the leader's serialized plan, to be voted on; a second offer is ignored."""
        self._store.put_first(self._key("offer"), data)

    def offered(self, wait: bool = True) -> bytes | None:
        """Returns the serialized plan that the leader offered; None if none will come.
        If the leader is lost, that decides "no". With `wait` it waits for the plan as long as the
        leader is alive; without, None also means not yet.
        """
        watch = _Watch(self, self._members[0])
        while (data := self._store.get(self._key("offer"), self._slice * wait)) is None:
            if not wait:
                return None
            if self.settled():
                return self._store.get(self._key("offer"))  # it may have come just before
            if lost := watch.lost(self._beat_of(self._members[0])):
                self._decide(Decision("", lost))
                return None
        return data

    def settle(self, digest: str, reason: str = "") -> Decision:
        """Votes for `digest`, or decides "no" if there is a `reason`; returns the common decision,
        for which it waits. A decision that is there already is returned without a vote.
        `digest`: of the plan and executable that this process would use, compared with the others';
        `reason`: why it would use none, or "". AgreementError if the runtime does not answer.
        """
        if decision := self.settled():
            return decision
        if reason:
            return self._decide(Decision("", reason))
        self._store.put(self._key(f"votes/{self._me}"), digest.encode())
        return self._counted(digest) if self.leads else self._awaited()

    # How it comes about.

    def _counted(self, digest: str) -> Decision:
        """Waits, as the leader, for a decision or all votes; decides "yes" if all are `digest`, and
        "no" once one is not, or a process is lost. Returns the decision.
        """
        watches = {p: _Watch(self, p) for p in self._members if p != self._me}
        while not (decision := self.settled()):
            votes = self._store.under(self._key("votes"))
            for p in [p for p in watches if str(p) in votes]:
                if votes[str(p)].decode() != digest:
                    return self._decide(Decision("", f"process {p} compiled something else"))
                del watches[p]
            if not watches:
                return self._decide(Decision(digest))
            beats = self._store.under(self._key("beats"))  # one request for all
            lost = (watch.lost(beats.get(str(p))) for p, watch in watches.items())
            if reason := next(filter(None, lost), ""):
                return self._decide(Decision("", reason))
            time.sleep(self._slice / 4)
        return decision

    def _awaited(self) -> Decision:
        """Waits, as a process that does not lead, for the common decision of all; decides "no" if
        the leading process is lost.
        """
        watch = _Watch(self, self._members[0])
        while self._store.get(self._key("decision"), self._slice) is None:
            if lost := watch.lost(self._beat_of(self._members[0])):
                return self._decide(Decision("", lost))
        decision = self.settled()
        assert decision is not None
        return decision

    def _decide(self, decision: Decision) -> Decision:
        """Stores a decision unless one is stored already; returns the one that is stored."""
        text = _encoded(**dataclasses.asdict(decision))
        self._decision = Decision(**json.loads(self._store.put_first(self._key("decision"), text)))
        return self._decision

    def _key(self, part: str, topic: str = "") -> str:
        return f"{_ROOT}/{topic or self._topic}/{part}"

    def _at(self, member: int) -> str:
        return f"{_ROOT}/at/{member}/{self._topic}"

    def elsewhere(self, member: int) -> str:
        """Says why process `member` will not vote: it compiles another program of this name, on
        which nothing is decided; it then decides "no" on that one. Returns "" if it does not.
        """
        for topic, data in self._store.under(f"{_ROOT}/at/{member}").items():
            about = json.loads(data)
            if topic == self._topic or about.pop("name") != self._name:
                continue
            if self._store.get(self._key("decision", topic)) is not None:
                continue  # it is about to leave
            own = versions()
            differ = {k: v for k, v in about.items() if v != own.get(k)}
            other = [f"{k} {v} there, {own.get(k)} here" for k, v in differ.items()]
            what = ", ".join(other) or "its text, options or XLA_FLAGS differ"
            text = f"processes {member} and {self._me} compile different {self._name}: {what}"
            self._store.put_first(self._key("decision", topic), _encoded(digest="", reason=text))
            return text
        return ""

    def _beat_of(self, member: int) -> bytes | None:
        """Returns the latest heartbeat of a process, a counter as text; None before the first."""
        return self._store.get(self._key(f"beats/{member}"))

    @property
    def patience(self) -> float:
        """Seconds without a heartbeat after which a process is taken to be lost."""
        return self._patience

    def _show(self, count: int) -> None:
        self._store.put(self._key(f"beats/{self._me}"), str(count).encode())

    def _beat(self) -> None:
        count = 0
        with contextlib.suppress(AgreementError):
            while not self._over.wait(self._patience / _BEATS):
                count += 1
                self._show(count)


class _Watch:
    """Watches the heartbeats of one other process, to tell whether it is lost."""

    def __init__(self, agreement: Agreement, member: int) -> None:
        self._agreement, self._member = agreement, member
        self._beat: bytes | None = None
        self._begun = self._heard = time.monotonic()
        self._looked = -math.inf

    def lost(self, beat: bytes | None) -> str:
        """Notes the process's latest heartbeat; says why it is not waited for any longer: it was
        silent or took too long, or compiles another program (`Agreement.elsewhere`); or "".
        """
        now, patience = time.monotonic(), self._agreement.patience
        if beat != self._beat:
            self._beat, self._heard = beat, now
        if beat is None and now - self._looked > min(1.0, patience / 4):
            self._looked = now
            if reason := self._agreement.elsewhere(self._member):
                return reason
        if now - self._heard > patience:
            what = "did not begin to compile" if beat is None else "sent no sign of life"
            return f"process {self._member} {what} for {patience:g} s"
        if now - self._begun > _LONGEST:
            return f"process {self._member} took more than {_LONGEST:g} s to plan"
        return ""


def _encoded(**fields: str) -> bytes:
    return json.dumps(fields, sort_keys=True).encode()
