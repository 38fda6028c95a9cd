"""XLA's totals are asked for once, ahead or not."""

import jax
import jax.numpy as jnp
import pytest

from olla_xla.compile.accounting import ask_ahead, assigned_bytes, assignment_proto, temporary_bytes

pytestmark = pytest.mark.quick


class _Watched:
    """An executable that counts how often it is asked, and fails at first."""

    def __init__(self, compiled, failures=0):
        self._compiled, self.failures, self.asked = compiled, failures, 0

    def memory_analysis(self):
        self.asked += 1
        if self.asked <= self.failures:
            raise NotImplementedError("not on this backend")
        return self._compiled.memory_analysis()


@pytest.fixture(scope="module")
def compiled():
    return jax.jit(lambda x: jnp.sin(x @ x).sum()).lower(jnp.zeros((64, 64))).compile()


@pytest.mark.parametrize("ahead", [True, False])
def test_it_is_asked_once_for_all_totals(compiled, ahead):
    watched = _Watched(compiled)
    if ahead:
        ask_ahead(watched)
    stats = compiled.memory_analysis()
    whole = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    assert assigned_bytes(watched) == whole - stats.alias_size_in_bytes
    assert temporary_bytes(watched) == stats.temp_size_in_bytes
    assert assignment_proto(watched, "cpu") == stats.serialized_buffer_assignment_proto
    assert watched.asked == 1
