"""What a call of a planned function costs beside one of `jax.jit`'s."""

import jax

from olla_xla.bench import calls


def test_a_call_costs_what_a_call_of_jit_does():
    # The benchmark's own bar is 1.10; on a busy machine the median of turns still stays below this.
    result = calls.compare(leaves=500, calls=20, turns=15, time_limit=1.0)
    assert result.planned and result.ratio <= 1.5


def test_the_ratio_sees_a_slower_way_to_the_executable():
    plain = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf * 0.5, state))

    def slowed(state):
        for _ in range(20):
            jax.tree.map(lambda leaf: leaf, state)
        return plain(state)

    seconds = calls.seconds_per_call([plain, slowed], leaves=500, calls=3, turns=5)
    assert seconds.shape == (5, 2) and (seconds > 0).all()
    assert sorted(seconds[:, 1] / seconds[:, 0])[2] > 1.5
