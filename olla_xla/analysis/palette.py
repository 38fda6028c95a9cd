"""One colour for each category, the same in reports and figures, legible on light and dark."""

from __future__ import annotations

from olla_xla.analysis.category import Category

COLORS: dict[Category, str] = {
    Category.PARAMETERS: "#4477aa",
    Category.OPTIMIZER: "#66a5d8",
    Category.BATCH: "#aa4499",
    Category.ARGUMENTS: "#8a8fa8",
    Category.ACTIVATIONS: "#e8806a",
    Category.AGAIN: "#d9b48f",
    Category.STACKS: "#c65d21",
    Category.GRADIENTS: "#3d9950",
    Category.OUTPUTS: "#c9a227",
    Category.WORKSPACE: "#7fae9d",
    Category.UNUSED: "#b4b4b4",
    Category.CONSTANTS: "#707070",
}
