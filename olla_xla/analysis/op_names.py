"""What JAX's op names say: the phase of a train step, and the module that an operator stands in.

JAX names an operation by the calls around it and its primitive:
"jit(step)/transpose(jvp(ResNet))/Bottleneck_3/Conv_0/conv_general_dilated" is the backward pass of
a convolution in ResNet/Bottleneck_3/Conv_0.
"""

import enum
import functools
import re


class Phase(enum.Enum):
    """The part of a train step to which an operation belongs."""

    FORWARD = "forward"
    """It is differentiated: between parameters and loss."""

    BACKWARD = "backward"
    """It computes derivatives, from the loss back."""

    AGAIN = "again"
    """It recomputes a part of the forward pass for the backward pass (`jax.checkpoint`)."""

    OTHER = "other"
    """Neither: the optimizer's update, or a step without a gradient."""


_WRAPPED = re.compile(r"^(\w+)\((.*)\)$")
_FUNCTIONS = frozenset(
    "jit pjit xla_call custom_jvp_call custom_vjp_call custom_jvp custom_vjp".split()
)
"""Wrappers around functions, whose names are of no module."""
_CONTROL = frozenset(
    "while body cond closed_call core_call checkpoint remat remat2 rematted_computation "
    "custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr shard_map named_call scan "
    "eval_jaxpr".split()
)


@functools.lru_cache(maxsize=65536)
def phase_of(op_name: str) -> Phase:
    """The phase of a train step (forward, backward, ...) that JAX's name of an operation tells."""
    if "rematted_computation" in op_name:
        return Phase.AGAIN
    if "transpose(" in op_name:
        return Phase.BACKWARD
    return Phase.FORWARD if "jvp(" in op_name else Phase.OTHER


@functools.lru_cache(maxsize=65536)
def module_path(op_name: str) -> str:
    """The model modules named in an op name, outermost first: "ResNet/Conv_0"; or ""."""
    modules = [_module(part) for part in _parts(op_name)[:-1]]
    return "/".join(part for part in modules if part)


def _module(part: str) -> str:
    """The model module that a part of an op name, such as "jvp(ResNet)", names; or ""."""
    while match := _WRAPPED.match(part):
        if match[1] in _FUNCTIONS:
            return ""
        part = match[2]
    if part in _CONTROL or part.startswith("branch_") or "->" in part:  # of an einsum
        return ""
    return part.strip("/")


def _parts(op_name: str) -> list[str]:
    """Splits an op name at its slashes, except those inside parentheses."""
    parts, depth, begin = [], 0, 0
    for k, character in enumerate(op_name):
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            parts.append(op_name[begin:k])
            begin = k + 1
    return [*parts, op_name[begin:]]
