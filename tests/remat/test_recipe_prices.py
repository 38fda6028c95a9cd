"""What recomputed values and scan residuals cost, on a device that moves 100 bytes a second."""

import dataclasses
import types

import pytest

from olla_xla.remat.cost.work import Work
from olla_xla.remat.loops.recipe_prices import RecipePrices

pytestmark = pytest.mark.quick


class Device:
    """One second for 100 bytes, half a second for each operator."""

    start_seconds = 0.5

    def seconds(self, work):
        assert work == Work(bytes=work.bytes, kernels=work.kernels)
        return work.bytes / 100 + work.kernels / 2


class Node:
    """A value of some bytes; what stands behind bitcasts is itself."""

    def __init__(self, size=100, opcode="tanh", owner=None, operands=()):
        self.shape = types.SimpleNamespace(bytes=size)
        self.i = types.SimpleNamespace(opcode=opcode)
        self.owner, self.operands, self.behind = owner, operands, self


@dataclasses.dataclass(eq=False)
class Instruction:
    seconds: float
    opcode: str = "fusion"
    users: tuple = (1,)


class Body:
    target = "cpu"

    def __init__(self, results=()):
        self._results = dict(results)

    def runs(self, owner):
        return owner

    def root_of(self, owner):
        return self._results.get(owner.opcode)


def prices(residuals=None, unread=(), results=None, reader=None, start=None, nearer=0.0, **options):
    """For a pair of loops of ten iterations; of memory that is nearer by so many seconds."""
    table = types.SimpleNamespace(
        pair=types.SimpleNamespace(
            writer=types.SimpleNamespace(iterations=10, start=start or {}),
            reader=types.SimpleNamespace(body=reader or Body()),
        ),
        body=Body(),
        scan_residuals=residuals or {},
        unread=list(unread),
        results=lambda owner: (results or {}).get(owner.opcode, [Node()]),
    )
    cost = types.SimpleNamespace(
        device=Device(),
        seconds=lambda i: i.seconds,
        copied_seconds=lambda i: i.seconds - nearer,
        nearer_seconds=lambda i, size: nearer * size / 100,
    )
    return RecipePrices(table, cost, **options)


def recipe(**fields):
    given = {
        "node": Node(), "owner": Instruction(7.0), "stacked": False, "relaid": None,
        "between": False, "narrowed": False, "updated": (), "needs": (4,),
    }  # fmt: skip
    return types.SimpleNamespace(**{**given, **fields})


def test_a_value_costs_what_makes_it():
    assert prices().seconds(recipe()) == 7.0
    assert prices(nearer=3.0).seconds(recipe()) == 4.0, "in memory on the chip"


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"stacked": True}, 3.5),  # a slice of 100 bytes read once, written twice
        ({"relaid": Instruction(1.0)}, 2.5),  # read and written once
        ({"between": True}, 0.7),  # one slice of ten
    ],
)
def test_values_that_are_only_moved(fields, seconds):
    assert prices().seconds(recipe(**fields)) == pytest.approx(seconds)


def test_a_value_that_is_converted_back():
    """It reads a slice of 200 bytes and writes one of 100."""
    wide = types.SimpleNamespace(bytes=2000)
    assert prices({4: [wide]}).seconds(recipe(narrowed=True)) == pytest.approx(3.5)


def test_slots_and_slices():
    found = prices()
    assert found.moved_seconds(100) == 2 * 2.5, "written and read, each by an operator"
    assert found.put_seconds(types.SimpleNamespace(bytes=1000)) == pytest.approx(2.5)
    assert found.new_bytes(recipe(stacked=True)) == 1000
    assert found.new_bytes(recipe(stacked=True), slices=3) == 300
    assert found.new_bytes(recipe()) == 0


def residual(owner, written=2, moves=(), reads=()):
    return types.SimpleNamespace(
        update=Node(owner=owner), moves=moves, written=written, reads=reads, bytes=1000
    )


def test_what_a_scan_residual_takes_by_itself():
    owner, move, begin = Instruction(2.0), Instruction(5.0), Instruction(30.0)
    found = prices(start={2: begin})
    assert found.saved_seconds(residual(owner, moves=(move,))) == pytest.approx(2.0 + 0.5 + 3.0)
    shared = prices(start={2: Instruction(30.0, users=(1, 2))})
    assert shared.saved_seconds(residual(owner)) == pytest.approx(2.0), "its start serves another"
    several = prices(start={2: begin}, results={"fusion": [Node(), Node()]})
    assert several.saved_seconds(residual(owner)) == pytest.approx(3.0), "others need its owner"


def test_a_read_that_only_hands_a_slice_on_goes_too():
    node = Node()
    owner = Instruction(1.5, opcode="slice")
    reads = (types.SimpleNamespace(node=node, owner=owner),)
    begin = {2: Instruction(0.0)}
    found = prices(start=begin, reader=Body({"slice": node}))
    assert found.saved_seconds(residual(Instruction(2.0), reads=reads)) == pytest.approx(3.5)
    computes = prices(start=begin, reader=Body({"slice": Node(operands=(node,))}))
    assert computes.saved_seconds(residual(Instruction(2.0), reads=reads)) == pytest.approx(2.0)


def test_the_start_of_what_runs_beside_is_not_saved():
    owner = Instruction(2.0, opcode="async-start")
    start = {2: Instruction(0.0)}
    assert prices(start=start).saved_seconds(residual(owner)) == pytest.approx(2.0)
    beside = prices(start=start, beside=True)
    assert beside.saved_seconds(residual(owner)) == pytest.approx(1.5)
    short = Instruction(0.2, opcode="async-start")
    assert beside.saved_seconds(residual(short)) == pytest.approx(0.0), "never less than nothing"


def test_instructions_that_write_several_scan_residuals():
    owner, alone = Instruction(4.0), Instruction(1.0, opcode="alone")
    one, two, more = residual(owner), residual(owner), residual(alone)
    both = {"fusion": [one.update, two.update], "alone": [more.update]}
    found = prices({1: [one], 5: [two], 6: [more]}, results=both)
    assert found.written_together == [(4.0, frozenset({1, 5}))]
    unread = prices({5: [two]}, unread=[one], results=both)
    assert unread.written_together == [(4.0, frozenset({5}))], "what nobody reads goes anyway"
    third = {"fusion": [one.update, two.update, Node()]}
    assert prices({1: [one], 5: [two]}, results=third).written_together == [], "it runs for another"
