"""Phases and modules in JAX's op names."""

import pytest

from olla_xla.analysis.op_names import Phase, module_path, phase_of

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("name", "phase", "module"),
    [
        ("jit(step)/jvp(ResNet)/Conv_0/conv_general_dilated", Phase.FORWARD, "ResNet/Conv_0"),
        ("jit(step)/transpose(jvp(ResNet))/Conv_0/dot", Phase.BACKWARD, "ResNet/Conv_0"),
        ("jit(step)/jvp(Net)/while/body/closed_call/Net/mlp/mul", Phase.FORWARD, "Net/Net/mlp"),
        ("jit(f)/transpose(jvp())/checkpoint/rematted_computation/sin", Phase.AGAIN, ""),
        ("jit(step)/mul", Phase.OTHER, ""),
        ("jit(step)/jvp(a/b)/jit(relu)/max", Phase.FORWARD, "a/b"),
        ("", Phase.OTHER, ""),
    ],
)
def test_names(name, phase, module):
    assert phase_of(name) is phase and module_path(name) == module
