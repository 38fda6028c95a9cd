"""Looks at this machine, runs models of README on its GPU both ways, and writes a page to send in.

Checks versions, targets, whether a GPU's executable can be read without the GPU, this CPU's bits,
the cache folder and the compiled loops. With an NVIDIA GPU each model then runs planned and in
XLA's order, in processes of their own, with command buffers and without: outputs are compared bit
for bit, the peak in use on the device and the step time with what was assigned and predicted.
Without one it says what would run; --target=cpu runs the models on the CPU instead.

Writes FOLDER/olla_xla-doctor.json and FOLDER/olla_xla-doctor.md. Exit code 1 if something is not as
it should be.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from olla_xla.cli import files
from olla_xla.cli.report import doctor as report
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.tools.doctor.examine import examine
from olla_xla.tools.doctor.records import ROWS

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list(
        "models", None, "Of those of README the ones to run; all of them by default.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_enum(
        "target", "gpu", ["gpu", "cpu"], "What of this machine runs them.", flag_values=values
    )
    flags.DEFINE_integer("steps", 10, "Steps to run.", lower_bound=2, flag_values=values)
    flags.DEFINE_string("out", ".", "The folder to write to.", flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Examines the machine, writes both files and prints the page.

    Returns:
      The exit code: 1 if a check or a run failed.
    """
    known = list(dict.fromkeys(row.model for row in ROWS))
    wanted = known if values.models is None else values.models
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"--models={unknown[0]} is none of {', '.join(known)}")
    rows = [row for row in ROWS if row.model in wanted]
    with Progress() as progress:
        found = examine(rows, values.steps, values.target, progress.stage)
    folder, text = Path(values.out), report.page(found)
    files.write_text(str(folder / "olla_xla-doctor.json"), report.as_json(found))
    files.write_text(str(folder / "olla_xla-doctor.md"), text)
    print(text)
    print(f"Written to {folder / 'olla_xla-doctor.md'} and .json; please send both in.")
    return 0 if found.passed else 1
