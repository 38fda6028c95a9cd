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

import dataclasses
import json
from pathlib import Path

from absl import flags

from olla_xla.cli.flags import Flags
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes, percent
from olla_xla.errors import InputError
from olla_xla.problem.whole_file import write_text
from olla_xla.tools.doctor.examine import examine
from olla_xla.tools.doctor.probe import ROWS, Examination, RunRow


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla doctor` in `values`."""
    define = Flags(values)
    define.names("models", None, "Names of the example models to run (default: all).")
    define.one_of(
        "target",
        "gpu",
        ["gpu", "cpu"],
        "Device that runs the models: this machine's GPU or its CPU.",
    )
    define.whole("steps", 10, "Number of steps in each run.", least=2)
    define.text("out", ".", "Folder to write the report to.")


def run(values: flags.FlagValues) -> int:
    """Examines the machine, writes the report as JSON and Markdown, and prints the latter.
    Returns 1 if a check or a run failed, else 0. Raises InputError for an unknown model.
    """
    known = list(dict.fromkeys(row.model for row in ROWS))
    wanted = known if values.models is None else values.models
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"--models={unknown[0]} is not one of {', '.join(known)}")
    rows = [row for row in ROWS if row.model in wanted]
    with Progress() as progress:
        examination = examine(rows, values.steps, values.target, progress.stage)
    folder, text = Path(values.out), page(examination)
    write_text(str(folder / "olla_xla-doctor.json"), as_json(examination))
    write_text(str(folder / "olla_xla-doctor.md"), text)
    print(text)
    print(f"The report is in {folder / 'olla_xla-doctor.md'} and .json; please send us both files.")
    return 0 if examination.passed else 1


_SAID = {True: "ok", False: "**failed**", None: "not available"}


def as_json(found: Examination) -> str:
    """Returns the results of `olla_xla doctor` as text of a JSON object, with a newline last."""
    fields = {"format": "olla_xla.doctor", "version": 1, **dataclasses.asdict(found)}
    return json.dumps({**fields, "passed": found.passed}, indent=1) + "\n"


def verdict(found: Examination) -> str:
    """Returns a line on `olla_xla doctor`: which checks and runs failed, how many did not run."""
    wrong = [check.name for check in found.checks if check.passed is False]
    wrong += [run.row.name for run in found.runs if not run.passed]
    text = f"Failed: {', '.join(dict.fromkeys(wrong))}." if wrong else "Nothing failed."
    if found.left:
        text += f" JAX finds no GPU on this machine, so {len(found.left)} models were not run."
    return text


def page(found: Examination) -> str:
    """Returns the results of `olla_xla doctor` as a page of Markdown, for users to send in."""
    facts = [("made", found.made), *found.machine.items(), *found.versions.items()]
    parts = [
        "# olla_xla doctor",
        verdict(found),
        Table((":", ":"), facts, "## The machine").markdown(),
        Table(
            ("check:", ":", "seen:"),
            [(c.name, _SAID[c.passed], c.seen) for c in found.checks],
            "## Checks",
        ).markdown(),
    ]
    if found.runs:
        parts += [_bits(found).markdown(), _memory(found).markdown(), _time(found).markdown()]
    if found.left:
        parts.append(_left(found))
    if found.environment:
        rows = list(found.environment.items())
        parts.append(Table(("variable:", "value:"), rows, "## Environment").markdown())
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _left(found: Examination) -> str:
    """Returns a section of Markdown on the models that were not run, as there is no GPU."""
    rows = "\n".join(f"- {row.name}" for row in found.left)
    return (
        "## Not run\n\nOn a machine with an NVIDIA GPU each of these models runs with and without "
        "a plan, in\nseparate processes, with and without command buffers. The outputs are "
        "compared bit for bit, the\nmeasured memory with the assigned one, and the measured time "
        f"with the predicted one.\n\n{rows}"
    )


def _name(run: RunRow) -> str:
    if run.commands is None:
        return run.row.name
    return f"{run.row.name}, {'command buffers' if run.commands else 'no command buffers'}"


def _bits(found: Examination) -> Table:
    rows = []
    for run in found.runs:
        if run.comparison is None:
            rows.append((_name(run), _SAID[False], run.error))
            continue
        ours = run.comparison.planned
        how = "" if ours.planned else f"XLA's own order: {ours.reason}"
        if ours.stacks or ours.clones:
            how = f"{ours.stacks} scan residuals and {ours.clones} instructions are recomputed"
        bits = run.comparison.difference or "the same bits"
        rows.append((_name(run), _SAID[run.passed], f"{bits}{'; ' if how else ''}{how}"))
    return Table(("step:", ":", "outputs with the plan and with jax.jit:"), rows, "## Results")


def _memory(found: Examination) -> Table:
    rows = []
    for run in found.runs:
        if run.comparison is None:
            continue
        ours, theirs = run.comparison.planned, run.comparison.unplanned
        for way, one, predicted in (
            ("XLA", theirs, ours.xla_predicted_bytes),
            ("planned", ours, ours.predicted_bytes),
        ):
            measured = one.measured_bytes
            beyond = None if measured is None else measured / one.assigned_bytes - 1
            sizes = (predicted, one.assigned_bytes, measured)
            rows.append((_name(run), way, *map(megabytes, sizes), percent(beyond, 1)))
    headings = ("step:", "order:", "predicted", "assigned", "measured", "beyond assigned %")
    return Table(headings, rows, "## Peak memory in MB (2^20 bytes)")


def _time(found: Examination) -> Table:
    rows = []
    for run in found.runs:
        if run.comparison is None:
            continue
        ours, theirs = run.comparison.planned, run.comparison.unplanned
        predicted = [one.predicted_seconds for one in (theirs, ours)]
        ratio = None
        if predicted[0] and predicted[1]:
            ratio = predicted[1] / predicted[0] - 1
        measured = [one.seconds for one in (theirs, ours)]
        rows.append(
            (
                _name(run),
                *(_ms(s) for s in (*predicted, *measured)),
                percent(ratio, 1),
                percent(run.comparison.time_ratio - 1, 1),
            )
        )
    ours = ("XLA, predicted", "planned, predicted", "XLA", "planned")
    headings = ("step:", *ours, "predicted %", "measured %")
    return Table(headings, rows, "## Median time of a step in ms")


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.2f}"
