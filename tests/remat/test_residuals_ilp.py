"""The integer programme for stacks against every subset of them, and what a plan says of it."""

import dataclasses
import functools
import itertools
import math
import random

import jax
import jax.numpy as jnp
import pytest

from hlo.module import module_from_bytes
from olla_xla.problem.plan_parts import LoopRecord
from olla_xla.remat.loops.choice import Choice, run_of
from olla_xla.remat.loops.pairs import pairs
from olla_xla.remat.loops.recipe import edits
from olla_xla.remat.loops.recipe_table import RecipeTable
from olla_xla.remat.loops.selection import to_try
from olla_xla.solvers.programs.residuals import least, quickest
from tests.support import rates
from tests.support.compiles import xla_schedule
from tests.support.loops import STEPS
from tests.support.rates import priced_choices

pytestmark = pytest.mark.slow

MOST = 14  # stacks, and values that could be kept, of which all sets are tried


@functools.cache
def _module(name):
    step, arguments = STEPS[name]()
    return xla_schedule(jax.jit(step).lower(*arguments))


def _choices(module):
    cost = rates.cost()
    return [
        Choice(RecipeTable(pair, collectives=False), cost)
        for pair in pairs(module_from_bytes(module), "cpu")
    ]


def _stacks(choice):
    return [n for n in choice.needed if n in choice.table.scan_residuals]


def _new(choice):
    """What could get a scan residual, of what others are made of."""
    needs = dict.fromkeys(n for number in choice.needed for n in choice.made_with(number))
    return [n for n in needs if choice.can_be_kept(n)]


def _all(choice):
    """What is decided: whether each is kept."""
    return _stacks(choice) + _new(choice)


def _subsets(choice):
    """(bytes of stacks, seconds) of sets that can be kept: of all, or of many drawn."""
    table, turns = choice.table, choice.table.pair.writer.iterations
    every, stacks = _all(choice), set(_stacks(choice))
    needed, free = set(choice.needed), choice.free_seconds

    @functools.cache
    def made(number):
        """(what it runs in, bytes, seconds, what it needs, stacks that it takes) of a recipe."""
        recipe = choice.recipe(number)
        if recipe is None:
            return None
        # A part of another stack is there with it, whether that is kept or made.
        homes = {n: table.pieces[n].whole for n in recipe.needs if n in table.pieces}
        needs = [n for n in recipe.needs if homes.get(n, number) == number]
        inside = recipe.inside is None and not (recipe.between or recipe.narrowed)
        taken = stacks.intersection(recipe.needs) if inside else ()
        price = choice.prices.new_bytes(recipe), turns * choice.prices.seconds(recipe)
        return run_of(recipe), *price, needs, taken

    @functools.cache
    def kept_whole(number):
        if number not in stacks:
            return choice.kept_anew(number)
        stack = table.scan_residuals[number][0]
        return stack.bytes, turns * choice.prices.saved_seconds(stack)

    taken_seconds = functools.cache(choice.taken_seconds)
    for kept in _every(every) if len(every) <= MOST else _drawn(every):
        runs, waiting, possible = {}, [n for n in stacks if n not in kept], True
        seen, taken = set(), set()
        while waiting and possible:
            number = waiting.pop()
            if number in seen or number in kept or number not in needed:
                continue
            seen.add(number)
            recipe = made(number)
            possible = recipe is not None
            if recipe is not None:
                runs[recipe[0]] = recipe[1:3]
                waiting += recipe[3]
                taken.update(n for n in recipe[4] if n in kept)
        if possible:
            prices = [*map(kept_whole, kept), *runs.values()]
            seconds = sum(s for _, s in prices) + sum(map(taken_seconds, taken))
            yield sum(b for b, _ in prices), seconds - free


def _every(numbers):
    for count in range(len(numbers) + 1):
        yield from itertools.combinations(numbers, count)


def _drawn(numbers):
    draw = random.Random(0)
    yield from ((), tuple(numbers))
    for _ in range(2000):
        yield tuple(draw.sample(numbers, draw.randint(0, len(numbers))))


@pytest.mark.parametrize("name", STEPS)
def test_no_subset_of_stacks_is_smaller_in_the_same_time_or_quicker_in_the_same_bytes(name):
    choices = _choices(_module(name))
    assert len(choices) == 1
    every, is_all = list(_subsets(choices[0])), len(_all(choices[0])) <= MOST
    assert len(every) > 1
    times = sorted(seconds for _, seconds in every)
    for allowance in (times[0] + 1e-9, times[len(times) // 3] + 1e-9, times[-1] + 1e-9):
        found = least(choices, allowance)
        assert found is not None
        smallest = min(b for b, s in every if s <= allowance)
        assert found.bytes == found.bound
        assert found.bytes == smallest if is_all else found.bytes <= smallest
    assert not is_all or least(choices, times[0] - 1e-6) is None
    sizes = sorted(size for size, _ in every)
    for most in (sizes[0], sizes[len(sizes) // 3], sizes[-1]):
        found = quickest(choices, most)
        assert found is not None and found.bytes <= most
        least_seconds = min(s for b, s in every if b <= most)
        tolerance = 1e-12 * len(every)
        if is_all:
            assert found.seconds == pytest.approx(least_seconds, abs=tolerance)
        assert found.seconds <= least_seconds + tolerance
    assert not is_all or quickest(choices, sizes[0] - 1) is None


@pytest.mark.parametrize("name", ["gated", "lstm", "held inside"])
def test_a_budget_is_met_at_no_more_time_than_prices_find(name):
    module = _held() if name == "held inside" else _module(name)
    steps = priced_choices(module)
    priced = [steps.choice(k) for k in range(steps.thin)]
    quicker = 0
    for part in range(1, 10):
        budget = steps.total - part * (steps.total - min(c.total for c in priced)) // 10
        found = steps.meeting(budget)
        within = [c.path_seconds for c in priced if c.total <= budget]
        if found is None:
            continue
        assert found.total <= budget
        quicker += found.path_seconds < min(within, default=math.inf)
        offered = [choice for choice, _ in to_try(steps, budget, None)]
        place = [choice.records for choice in offered].index(found.records)
        assert all(c.path_seconds < found.path_seconds for c in offered[:place])
    assert quicker or name == "held inside"


def test_the_time_of_the_module_itself_keeps_the_allowance():
    module = _module(next(iter(STEPS)))
    steps = priced_choices(module)
    seconds = sorted(steps.choice(k).seconds for k in range(len(steps)))
    for allowance in (0.0, seconds[-1] / 2, seconds[-1]):
        choice = steps.within(allowance)
        assert choice is None or choice.seconds <= allowance
    choice = steps.within(seconds[-1])
    assert choice is not None and choice.total <= steps.choice(len(steps) - 1).total


@pytest.mark.parametrize("name", ["gated", "lstm"])
def test_what_takes_longer_than_was_thought_leaves_what_does_not(monkeypatch, name):
    """Where the module with the choice takes too long, one that was thought to take less is asked
    for; more time never leaves less to find.
    """
    module = module_from_bytes(_module(name))
    choices = priced_choices(module)
    written = choices._written
    most = max(written(records).seconds for records in choices._priced)
    assert most > 0

    def slower(records):
        choice = written(records)
        return dataclasses.replace(choice, path_seconds=choice.seconds * 3)

    monkeypatch.setattr(choices, "_written", slower)
    kept = []
    for part in (0.5, 1.0, 1.5, 2.0, 3.0):
        found = choices.within(part * most)
        assert found is None or found.path_seconds <= part * most
        kept.append(math.inf if found is None else found.total)
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] < choices.total


@pytest.mark.parametrize("name", ["lstm", "gated"])
def test_at_the_highest_price_the_fewest_bytes_are_kept(name):
    module = _module(name)
    view = module_from_bytes(module)
    (choice,) = _choices(module)
    pair, gone = choice.table.pair, choice.gone(1.0)
    kept = [(i.name, index) for i, index in map(choice.table.given.get, gone.kept)]
    record = LoopRecord(
        pair.writer.i.name, pair.reader.i.name, tuple(sorted(gone.dropped)), 0, tuple(kept)
    )
    (edit,) = edits(view, [record], "cpu")
    new = [pair.writer.start[k].shape.bytes for k in edit.added if isinstance(k, int)]
    found = sum(s.bytes for s in pair.scan_residuals if s.written not in gone.dropped)
    found += pair.writer.iterations * sum(new)
    found += sum(choice.kept_anew(number)[0] for number in gone.kept)
    fewest = min(size for size, _ in _subsets(choice))
    assert found == fewest if len(_all(choice)) <= MOST else found <= fewest


@pytest.mark.parametrize("name", ["gated", "lstm"])
def test_a_budget_is_offered_what_time_alone_would_find(name):
    """Choices between those on the lower hull of bytes and time too."""
    steps = priced_choices(_module(name))
    most = max(steps.choice(k).seconds for k in range(len(steps)))
    compared = 0
    for allowance in (most * k / 20 for k in range(1, 20)):
        fewest = steps.within(allowance)
        if fewest is None or fewest.total >= steps.total:
            continue
        compared += 1
        offered = [choice.total for choice, _ in to_try(steps, fewest.total, allowance)]
        assert min(offered, default=math.inf) <= fewest.total
    assert compared


def _held_inside(w, xs):
    """What one iteration holds to compute its last residual again is as large as all of that."""

    def body(h, x):
        y = jnp.tanh(h @ w) * x
        wide = jnp.sin(y[:, None, :] * y[:, :, None])
        return jnp.tanh(h + jnp.exp(wide.sum(1))), None

    return (jax.lax.scan(body, jnp.ones((128, 64)), xs)[0] ** 2).mean()


def _held():
    arguments = jnp.ones((64, 64)) / 9, jnp.ones((6, 128, 64))
    return xla_schedule(jax.jit(jax.grad(_held_inside)).lower(*arguments))


@pytest.mark.parametrize("name", ["lstm", "gated", "held inside"])
def test_more_time_never_offers_more_bytes(name):
    """The least of what is allowed is offered, however many residuals another one drops."""
    module = _held() if name == "held inside" else _module(name)
    steps = priced_choices(module)
    choices = [steps.choice(k) for k in range(len(steps))]
    for allowance in {c.path_seconds for c in choices}:
        least = min(c.total for c in choices if c.path_seconds <= allowance)
        offered = []
        for choice, lowest in to_try(steps, None, allowance):
            offered.append(choice.total)
            if lowest:
                break
        assert min(offered) <= least
