"""Orders by rules against plain second writings of the rules, which look at all that is ready."""

from hypothesis import given

from olla_xla.memory.arrays import GraphArrays
from olla_xla.schedule.rules import HEURISTICS, by_priority, candidates
from tests.support.graphs import tensor_graphs, train_step


class Plain:
    """A graph as lists: of each operator what must run before and after, of each tensor all."""

    def __init__(self, g: GraphArrays) -> None:
        self.n = g.n
        self.before = [
            set(g.pred_idx[g.pred_ptr[v] : g.pred_ptr[v + 1]].tolist()) for v in range(g.n)
        ]
        self.after = [{v for v in range(g.n) if u in self.before[v]} for u in range(g.n)]
        self.tensors = [
            (
                int(g.bytes[a]),
                int(g.source[a]),
                set(g.sink_idx[g.sink_ptr[a] : g.sink_ptr[a + 1]].tolist()),
                bool(g.live_in[a]),
                bool(g.live_out[a]),
            )
            for a in range(g.m)
        ]
        self.transient = g.transient.tolist()

    def made(self, v):
        return sum(b for b, source, _, given, _ in self.tensors if source == v and not given)

    def freed(self, v, done):
        """Bytes that go once v has run right after `done`."""
        return sum(
            b
            for b, source, sinks, _, kept in self.tensors
            if not kept and (sinks - done == {v} if sinks else source == v)
        )

    def in_turn(self, key):
        """One operator after another, of those that are ready the one of least key."""
        order, done = [], set()
        while len(order) < self.n:
            ready = [v for v in range(self.n) if v not in done and self.before[v] <= done]
            v = min(ready, key=lambda v: (*key(v, done, order), v))
            order.append(v)
            done.add(v)
        return order

    def net(self, v, done):
        return self.made(v) - self.freed(v, done)

    def by_list(self):
        return self.in_turn(lambda v, done, _: (self.net(v, done),))

    def by_least_peak(self):
        start = sum(b for b, _, _, given, _ in self.tensors if given)

        def key(v, done, order):
            live, peak, ran = start, start, set()
            for u in [*order, v]:
                peak = max(peak, live + self.made(u) + self.transient[u])
                live += self.net(u, ran)
                ran.add(u)
            return peak, self.net(v, done)

        return self.in_turn(key)

    def by_backward_list(self):
        taken, order = set(), []
        while len(order) < self.n:
            ready = [v for v in range(self.n) if v not in taken and self.after[v] <= taken]

            def key(v):
                new = sum(
                    b for b, _, sinks, _, kept in self.tensors
                    if v in sinks and not kept and not sinks & taken
                )  # fmt: skip
                return new - self.made(v), -v

            order.append(min(ready, key=key))
            taken.add(order[-1])
        return order[::-1]

    def depth_first(self, key):
        order = []

        def visit(v):
            if v not in order:
                for u in sorted(self.before[v], key=lambda u: (*key(u), u)):
                    visit(u)
                order.append(v)

        for v in range(self.n):
            if not self.after[v]:
                visit(v)
        return order

    def by_dfs(self):
        def extra(v):
            return max(len(self.after[v]) - 1, 0) + sum(map(extra, self.before[v]))

        def total(v):
            own = sum(b for b, source, *_ in self.tensors if source == v)
            return own + sum(map(total, self.before[v]))

        return self.depth_first(lambda u: (-extra(u), -total(u)))

    def by_post_order(self):
        return self.depth_first(lambda u: ())


WRITTEN = {
    "list": Plain.by_list,
    "least_peak": Plain.by_least_peak,
    "backward_list": Plain.by_backward_list,
    "dfs": Plain.by_dfs,
    "post_order": Plain.by_post_order,
}


@given(tensor_graphs(max_operators=9))
def test_the_rules(graph):
    g = GraphArrays.of(graph)
    for name, rule in HEURISTICS.items():
        assert rule(g).tolist() == WRITTEN[name](Plain(g)), name
    priority = (g.bytes.sum() + 7 * g.source.sum() + 3 * g.positions(range(g.n))) % 5
    expected = Plain(g).in_turn(lambda v, *_: (priority[v],))
    assert by_priority(g, priority).tolist() == expected


def test_the_rules_on_a_train_step():
    g = GraphArrays.of(train_step(4))
    assert {name: rule(g).tolist() for name, rule in HEURISTICS.items()} == {
        name: written(Plain(g)) for name, written in WRITTEN.items()
    }
    assert list(candidates(g)) == list(WRITTEN)
