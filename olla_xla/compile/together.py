"""Compiles a function that runs on devices of several processes: one plan for all, or none.
Every process compiles the same program and hands its module to us. The one with the lowest number
plans, and offers the plan through JAX's distributed runtime. The others wait for it inside their
own compile, apply it to their module, and have the referee check it. Then all vote on the plan, and
on the executable's order and bytes (agreement.py). If all votes are equal, all keep the planned
executable; else all use XLA's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import zlib
from typing import Any

import jax

from hlo.module import module_from_bytes
from olla_xla.compile import environment as settings
from olla_xla.compile import outcomes, plan_store
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.compile.agreement import Agreement, KeyValues
from olla_xla.compile.captured import Captured
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.jax_private import distributed_client
from olla_xla.compile.session import PlanningSession
from olla_xla.compile.stage_compiles import NO_HOOK
from olla_xla.compile.tokens import mark_of
from olla_xla.errors import AgreementError, BudgetError, OllaError, PlanMismatchError
from olla_xla.problem import plan as plan_file
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan

_IN = "in process "
_UNSETTLED = "the processes do not agree on a plan"


def reason_not_to() -> str:
    """Says why a function that several processes run is not planned in this setup; or ""."""
    config: Any = jax.config
    if distributed_client() is None:
        return "without jax.distributed.initialize() processes cannot share a plan"
    if config.jax_share_binary_between_hosts and config.jax_compilation_cache_dir:
        return "jax_share_binary_between_hosts compiles in one process only, without a plan"
    return ""


def settled_together(members: tuple[int, ...], topic: str, name: str, trouble: str) -> str:
    """Asks all processes whether any objects; returns the objection, the same in all, or "".
    Raises AgreementError: the runtime does not answer, or all agreed before this process objects.
    `members`: process numbers. `topic`: names the question. `name`: of the function, for messages.
    `trouble`: the objection of this process, or "".
    """
    with _agreement(topic, name, members) as agreed:
        decision = agreed.settle("" if trouble else "fine", trouble)
    if decision.digest and trouble:
        raise AgreementError(f"{trouble}; the other processes do not know; restart all of them")
    return decision.reason


def _agreement(topic: str, name: str, members: tuple[int, ...]) -> Agreement:
    digest = hashlib.sha256(repr((topic, members)).encode()).hexdigest()[:32]
    store, me = KeyValues(distributed_client()), jax.process_index()
    return Agreement(store, digest, name, me, members, settings.patience())


def compile_together(
    lowered: jax.stages.Lowered,
    options: PlanOptions,
    *,
    members: tuple[int, ...],
    environment: str,
    given: Plan | None = None,
    store: plan_store.PlanStore | None = None,
    compiler_options: dict[str, Any] | None = None,
    **compile_kwargs: Any,
) -> outcomes.Outcome:
    """Compiles with a plan in several processes, with the same outcome in all of them.

    Args:
      lowered, options, environment, store, compiler_options, compile_kwargs: as for
        `planned.compile_planned`.
      members: numbers of the processes whose devices the function is for, in ascending order.
      given: a plan to use, the same in all processes, instead of searching for one.

    Raises:
      BudgetError: in all processes, if the budget cannot be met.
      AgreementError: the runtime does not answer, or the others run a plan that this process
        cannot run: it is raised before a step that would deadlock.
      Whatever XLA raises compiling its own schedule.
    """
    compiles = Compiles(lowered, compiler_options, compile_kwargs)
    key = plan_store.plan_key(compiles.stablehlo.bytecode, environment, compiler_options, options)
    store = store or plan_store.process_store()
    if given is not None:  # in a key and store of its own, apart from plans that are made
        key = hashlib.sha256(f"{key} {plan_store.plan_digest(given)}".encode()).hexdigest()[:32]
        store = plan_store.PlanStore()
        store.save(key, given)
    with contextlib.closing(compiles):
        with _agreement(key, compiles.name, members) as agreed:
            outcome = _settled(agreed, _Compile(compiles, options, key, store, agreed))
        kept = compiles.kept(outcome.compiled)
        if outcome.planned and mark_of(kept) != mark_of(outcome.compiled):
            raise AgreementError("JAX lost the executable that all processes run; restart them all")
        outcome = dataclasses.replace(outcome, compiled=kept, members=members)
    outcomes.require_budget(outcome.compiled, options, outcome.reason)
    return outcome


def _settled(agreed: Agreement, compile: _Compile) -> outcomes.Outcome:
    """Compiles, votes, and returns the outcome that all processes agree on; a plan that all run is
    stored. If they decided against one before, it compiles XLA's own order without a vote.
    Raises AgreementError if the others run a plan that this process does not.
    """
    decision = agreed.settled()
    if decision is not None and not decision.digest:
        return outcomes.Outcome(compile.compiles.own(compile.key), None, False, decision.reason)
    outcome = compile.outcome()
    digest = _digest(outcome) if outcome.planned else ""
    decision = agreed.settle(digest, _signed(outcome.reason))
    if not decision.digest:
        return compile.without(outcome, decision.reason)
    if not outcome.planned or decision.digest != _digest(outcome):
        reason = outcome.reason or "it compiled something else"
        raise AgreementError(
            f"the other processes run a plan that this one does not: {reason}; restart all "
            "processes, or set OLLA_XLA_DISABLE=1 in all of them"
        )
    if outcome.plan is not None:
        compile.store.save(compile.key, outcome.plan)
    return outcome


def _signed(reason: str) -> str:
    """Puts "in process N", the number of this one, before its reason for XLA's own schedule, unless
    that is empty, no gain, or begins so already.
    """
    known = not reason or reason == outcomes.NO_GAIN or reason.startswith(_IN)
    return reason if known else f"{_IN}{jax.process_index()}: {reason}"


def _digest(outcome: outcomes.Outcome) -> str:
    """Digests what a process would run: the plan, the executable's order and its bytes."""
    assert outcome.plan is not None
    compiled = outcome.compiled
    order = json.dumps(module_from_bytes(final_module(compiled)).order, sort_keys=True)
    parts = (plan_store.plan_digest(outcome.plan), order, assigned_bytes(compiled))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@dataclasses.dataclass
class _Compile:
    """One process's compile of a function that several processes run, before they vote."""

    compiles: Compiles
    options: PlanOptions
    key: str
    store: plan_store.PlanStore
    agreed: Agreement
    captured: Captured | None = None

    def outcome(self) -> outcomes.Outcome:
        """Compiles, as leader or follower; returns the planned executable, or XLA's own and why.
        Errors in planning are in the outcome. Raises BudgetError if the budget cannot be met, here
        or in the process that planned, and AgreementError.
        """
        try:
            early = self.agreed.offered(wait=False)
            if early is not None:
                return self._with(_Offer.read(early))
            return self._led() if self.agreed.leads else self._followed()
        except (AgreementError, BudgetError):
            raise
        except Exception as error:
            return outcomes.failed(self.compiles.own(), error)

    def without(self, outcome: outcomes.Outcome, reason: str) -> outcomes.Outcome:
        """Returns the outcome with XLA's own executable in place of a planned one, if it has one,
        for a reason that all processes share.
        """
        if not outcome.planned:
            return dataclasses.replace(outcome, reason=reason)
        assert outcome.plan is not None
        captured = self.captured or self.compiles.capture()
        return outcomes.rejected(self.compiles.own(), outcome.plan, captured, reason, "")

    def _with(self, offer: _Offer) -> outcomes.Outcome:
        """Compiles with the plan that the leading process offered before this compile; with XLA's
        own order if it offered none, or one that is not to be used or gains nothing.
        """
        plan = offer.plan()
        if plan is None or offer.reason or outcomes.without_gain(plan):
            return outcomes.Outcome(
                self.compiles.own(self.key), plan, False, offer.reason or outcomes.NO_GAIN
            )
        return outcomes.chosen(self.compiles, plan, self.compiles.apply(plan, self.key))

    def _led(self) -> outcomes.Outcome:
        """Does the leading process's part: loads a stored plan or searches for one, offers it to
        the other processes at once, and compiles with it. A new plan that is not rejected is
        stored; a stored one of another program is dropped, and PlanMismatchError raised.
        """
        plan = self.store.load(self.key)
        if plan is not None:
            offer = _Offer.of(plan, outcomes.NO_GAIN if outcomes.without_gain(plan) else "")
            self.agreed.offer(offer.data())
            try:
                return self._with(offer)
            except PlanMismatchError:
                self.store.drop(self.key)
                raise
        session = PlanningSession(self.compiles, self.options)

        def answer(platform: str, module: bytes) -> bytes | None:
            try:
                planned = session.answer(platform, module)
            except BudgetError as error:
                self.agreed.offer(_Offer.over(error).data())
                raise
            reason = "" if planned else _signed(session.why_not)
            self.agreed.offer(_Offer.of(session.plan, reason).data())
            return planned

        outcome = session.outcome(self.compiles.handed_over(self.key, answer))
        self.captured = session.captured
        if outcome.plan is not None and not outcome.fell_back:
            self.store.save(self.key, outcome.plan)
        return outcome

    def _followed(self) -> outcomes.Outcome:
        """Waits, as a follower, inside its compile for the leader's plan, applies it and checks the
        executable; without a plan, or if it is rejected, the outcome has XLA's own order.
        """
        offer = _Offer(reason=_UNSETTLED)
        objection = ""

        def answer(platform: str, module: bytes) -> bytes | None:
            nonlocal offer, objection
            self.captured = Captured(platform, module, self.compiles.alternative_orders(platform))
            data = self.agreed.offered()
            if data is None:
                return None
            offer = _Offer.read(data)
            plan = offer.plan()
            if plan is None or offer.reason:
                return None
            planned, objection = self.compiles.write(module, plan)
            return None if objection else planned

        compiled = self.compiles.handed_over(self.key, answer)
        if self.captured is None:
            raise OllaError(NO_HOOK)
        plan, reason = offer.plan(), offer.reason
        if objection and plan is not None:
            return outcomes.rejected(compiled, plan, self.captured, objection, objection)
        if plan is not None and not reason:
            return outcomes.chosen(
                self.compiles, plan, self.compiles.judged(compiled, plan), self.captured
            )
        if plan is not None:
            plan = outcomes.unplanned(plan, self.captured, assigned_bytes(compiled))
        elif reason == outcomes.NO_GAIN:
            plan = outcomes.small_plan(self.captured, compiled)
        return outcomes.Outcome(compiled, plan, False, reason)


@dataclasses.dataclass(frozen=True)
class _Offer:
    """What the leader sends to the other processes: a plan, or why there is none.
    `text`: of a plan file, or "". `reason`: why the plan is not to be used or there is none, or "".
    `budget`: the arguments of a BudgetError, or ().
    """

    text: str = ""
    reason: str = ""
    budget: tuple[Any, ...] = ()

    @classmethod
    def of(cls, plan: Plan | None, reason: str) -> _Offer:
        """Makes an offer, which the leading process sends to the others, of a plan (or None); if
        there is a reason, it is not to be used.
        """
        return cls("" if plan is None else plan_file.dumps(plan).decode(), reason)

    @classmethod
    def over(cls, error: BudgetError) -> _Offer:
        """Makes an offer that tells other processes that the memory budget cannot be met."""
        return cls(reason=str(error), budget=error.__reduce__()[1])

    @classmethod
    def read(cls, data: bytes) -> _Offer:
        """Parses an offer, the leading process's plan or why there is none, from bytes of `data`;
        raises BudgetError if that is the reason.
        """
        fields = json.loads(zlib.decompress(data))
        offer = cls(fields["text"], fields["reason"], tuple(fields["budget"]))
        if offer.budget:
            raise BudgetError(*offer.budget)
        return offer

    def data(self) -> bytes:
        """Serializes the offer (a plan, or why there is none), for `read` in other processes."""
        return zlib.compress(json.dumps(dataclasses.asdict(self)).encode(), 1)

    def plan(self) -> Plan | None:
        """Parses the plan offered, if any. Raises PlanFileError if this version cannot read it."""
        return plan_file.loads(self.text, "the plan of another process") if self.text else None
