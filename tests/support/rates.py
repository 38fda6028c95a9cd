"""A CPU's rates, so that plans are the same on all machines, and what is priced by them."""

from hlo.module import Module, module_from_bytes
from olla_xla.remat.cost.roofline import H100, CostModel, Device
from olla_xla.remat.loops.residual_choices import ResidualChoices

CPU = Device("CPU", 2e10, 2e10, 5e8, 5e10, 2e-6)


def device(target, *_):
    return CPU if target == "cpu" else H100


def cost(target="cpu"):
    return CostModel(device(target), target)


def priced_choices(module, target="cpu"):
    """Of a scheduled module, which may be serialized."""
    view = module if isinstance(module, Module) else module_from_bytes(module)
    return ResidualChoices(view, target, cost(target))
