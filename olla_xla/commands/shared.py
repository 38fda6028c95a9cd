"""Flags and steps that several commands have in common."""

from __future__ import annotations

from absl import flags
from rich.console import Console

from olla_xla.errors import InputError
from olla_xla.options import PlanOptions

__all__ = ["console", "define_limits", "define_model", "options", "write_text"]


def define_model(values: flags.FlagValues) -> None:
    """Defines --model, --batch_size and --optimizer."""
    flags.DEFINE_string(
        "model", None, "A registry name, or package.module:function.", flag_values=values
    )
    flags.DEFINE_integer("batch_size", 4, "Examples in a batch.", lower_bound=1, flag_values=values)
    flags.DEFINE_string("optimizer", "adam", "The model's optimizer.", flag_values=values)


def define_limits(values: flags.FlagValues) -> None:
    """Defines --time_limit, --step_limit and --seed."""
    default = PlanOptions()
    flags.DEFINE_float(
        "time_limit", default.time_limit, "Seconds of search, at most.", flag_values=values
    )
    flags.DEFINE_integer(
        "step_limit",
        default.step_limit,
        "Search steps, at most; with it, equal seeds give equal plans.",
        flag_values=values,
    )
    flags.DEFINE_integer("seed", default.seed, "Of the search.", flag_values=values)


def options(values: flags.FlagValues) -> PlanOptions:
    """The planner's options as flags. Raises LimitError if one is not positive."""
    return PlanOptions(
        time_limit=values.time_limit,
        step_limit=values.step_limit,
        seed=values.seed,
    )


def write_text(path: str, text: str, *, append: bool = False) -> None:
    """Writes or extends a file. Raises InputError if that fails."""
    try:
        with open(path, "a" if append else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def console() -> Console:
    """For results, on stdout; tables keep their width where that is no terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=160)
