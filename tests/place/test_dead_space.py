"""Space that is dead but spoken for: its bound, and orders that need less of it."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.relieved_orders import step_items
from olla_xla.place import PlacementProblem, place
from olla_xla.place.dead_space import waste
from olla_xla.place.items import items_of, load_bound
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.solvers.linear import Status
from tests.place.test_place import brute_force, slow


def update():
    """A donated w is copied before the peak, which leaves its place dead, with nothing to fill it.

    Live at the peak ("grow"): the copy (8), x (16) and b (20), 44 bytes; none fits into w's place.
    """
    operators = (
        Operator("w", "parameter"),
        Operator("x", "parameter"),
        Operator("copy", "copy"),
        Operator("grow", "fusion"),
        Operator("update", "fusion"),
    )
    tensors = (
        Tensor("w", 8, 0, (2,), 0, True, False),
        Tensor("x", 16, 1, (3,), 1, True, False),
        Tensor("copy", 8, 2, (4,), 2, False, False),
        Tensor("grow", 20, 3, (4,), 3, False, False),
        Tensor("update", 8, 4, (), 0, False, True),
    )
    edges = ((0, 2), (1, 3), (2, 4), (3, 4))
    return TensorGraph("main", operators, tensors, edges, ((2, 4),))


@st.composite
def returning(draw):
    """Up to 7 items, some of which are live twice."""
    rows = []
    for k in range(draw(st.integers(2, 7))):
        size = draw(st.integers(1, 9))
        cuts = sorted(draw(st.sets(st.integers(0, 9), min_size=4, max_size=4)))
        twice = draw(st.booleans())
        rows.append((cuts[0], cuts[1] if twice else cuts[3], size, k))
        if twice:
            rows.append((cuts[2], cuts[3], draw(st.integers(1, 9)), k))
    lower, upper, size, group = zip(*rows, strict=True)
    return PlacementProblem.of(lower, upper, size, group=group)


@slow
@given(returning())
def test_no_packing_is_below_the_bound(problem):
    least = brute_force(problem)
    items, _ = items_of(problem, 0)
    assert waste(items).bytes <= least
    assert waste(step_items(problem)).bytes <= least
    assert place(problem, time_limit=60).height == least


def test_dead_place_that_nothing_fits_is_counted():
    # a is live twice, and dead over [2, 6). b is live before, c after.
    lower, upper, size, group = [0, 6, 1, 3], [2, 8, 6, 7], [8, 8, 20, 10], [0, 0, 1, 2]
    problem = PlacementProblem.of(lower, upper, size, group=group)
    items, _ = items_of(problem, 0)
    assert load_bound(items) == 30
    assert waste(items).bytes == brute_force(problem) == 38
    packing = place(problem)
    assert (packing.bound, packing.status, packing.height) == (38, Status.OPTIMAL, 38)
    limited = PlacementProblem.of(lower, upper, size, group=group, capacity=37)
    assert place(limited).status is Status.INFEASIBLE
    # A c that is live only while a is dead may lie in its place.
    fitting = PlacementProblem.of(lower, [2, 8, 6, 5], [8, 8, 20, 8], group=group)
    assert waste(items_of(fitting, 0)[0]).bytes <= place(fitting).height == 28
