"""Checks this machine, runs models on its GPU planned and unplanned, writes a report to send in.

Checks versions, targets, whether a GPU's executable can be read without the GPU, whether results on
this CPU are the same bit for bit, the cache folder and the compiled loops. With an NVIDIA GPU each
model then runs planned and in XLA's order, with command buffers and without, each run in a separate
process. Outputs are compared bit for bit, the measured peak memory with the assigned bytes, and
the step time with the predicted one. Without such a GPU the models that would run are listed;
--target=cpu runs them on the CPU instead.

Writes olla_xla-doctor.json and olla_xla-doctor.md to the folder of --out. Exit code 1 if a check or
a run fails.
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


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla doctor`."""
    flags.DEFINE_list(
        "models", None, "Example models to run; by default all.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_enum(
        "target",
        "gpu",
        ["gpu", "cpu"],
        "Device that runs the models: this machine's GPU or its CPU.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "steps", 10, "Steps that each run takes.", lower_bound=2, flag_values=values
    )
    flags.DEFINE_string("out", ".", "Folder for the report.", flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Examines the machine, writes both files and prints the page.

    Returns:
      The exit code: 1 if a check or a run failed.
    """
    known = list(dict.fromkeys(row.model for row in ROWS))
    wanted = known if values.models is None else values.models
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"--models={unknown[0]} is not one of {', '.join(known)}")
    rows = [row for row in ROWS if row.model in wanted]
    with Progress() as progress:
        found = examine(rows, values.steps, values.target, progress.stage)
    folder, text = Path(values.out), report.page(found)
    files.write_text(str(folder / "olla_xla-doctor.json"), report.as_json(found))
    files.write_text(str(folder / "olla_xla-doctor.md"), text)
    print(text)
    print(f"Written to {folder / 'olla_xla-doctor.md'} and .json; please send both in.")
    return 0 if found.passed else 1
