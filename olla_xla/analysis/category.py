"""What a tensor is to a train step, and the colour of each category."""

import enum


class Category(enum.StrEnum):
    """What memory is used for; each byte of a total is in one. Charts stack them in this order."""

    PARAMETERS = "parameters"
    OPTIMIZER = "optimizer state"
    BATCH = "batch"
    ARGUMENTS = "other arguments"
    ACTIVATIONS = "activations kept for the backward pass"
    AGAIN = "computed again for the backward pass"
    STACKS = "arrays filled by loops"
    GRADIENTS = "gradients"
    OUTPUTS = "outputs"
    WORKSPACE = "workspace"
    UNUSED = "allocated, not in use"
    """XLA has allocated it, but no value is live there at that step."""

    CONSTANTS = "constants"
    """Part of the executable; no total has them."""

    @property
    def short(self) -> str:
        """The category's name in a word or two, for columns of tables."""
        return {"ACTIVATIONS": "activations", "AGAIN": "computed again"}.get(self.name, str(self))


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
