"""Lists the plans that are kept on disk for reuse; --verify checks them, --prune removes some.

The plans are in the folder olla_xla inside JAX's persistent compilation cache. With --verify the
exit code is 1 if a file is damaged or cannot be used.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from olla_xla.cli.commands import shared
from olla_xla.cli.flags import Flags
from olla_xla.cli.report.tables import Table, megabytes
from olla_xla.compile import plan_store
from olla_xla.compile.plan_store import Entry, stored_folder
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla cache` in `values`."""
    define = Flags(values)
    define.text(
        "directory", None, "Folder of the stored plans (default: in JAX's persistent cache)."
    )
    define.switch("verify", False, "Exit with code 1 if a stored plan cannot be used.")
    define.switch(
        "prune", False, "Remove damaged plans, and those beyond the limits --days and --megabytes."
    )
    define.real("days", 30.0, "With --prune: remove plans not used for this many days.", least=0.0)
    define.real(
        "megabytes",
        None,
        "With --prune: keep at most this many MB of plans, those used last.",
        least=0.0,
    )
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Lists stored plans, or with --prune removes some. Raises InputError if there is no folder.
    Returns the exit code: 1 if --verify is given and a file cannot be used, else 0.
    """
    folder = Path(values.directory) if values.directory else stored_folder()
    if folder is None:
        raise InputError(
            "JAX's persistent cache is off; give --directory or set JAX_COMPILATION_CACHE_DIR"
        )
    if values.directory and not folder.is_dir():
        raise InputError(f"--directory: {folder} is not a folder")
    if values.prune:
        most = None if values.megabytes is None else int(values.megabytes * 2**20)
        removed = plan_store.prune(folder, values.days * 86400, most)
        print(f"{folder}: removed {len(removed)} files ({sum(e.bytes for e in removed):,} bytes)")
        return 0
    entries = list(plan_store.entries(folder))
    shared.print_table(values, stored_table(entries, str(folder)))
    return int(values.verify and any(entry.plan is None for entry in entries))


def stored_table(entries: Sequence[Entry], folder: str) -> Table:
    """Returns a table with a row for each stored plan's file, the latest used first; in MB."""
    lines = []
    for entry in sorted(entries, key=lambda e: (-e.used, e.path.name)):
        used = datetime.datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        plan = entry.plan
        about = (entry.path.name, used, f"{entry.bytes:,}")
        if plan is None:
            lines.append((*about, "", "", "", "", entry.trouble))
        else:
            sizes = megabytes(plan.xla_bytes), megabytes(plan.total_bytes)
            lines.append((*about, plan.module, plan.target, *sizes, "fine"))
    total = sum(entry.bytes for entry in entries)
    return Table(
        headings=("file:", "last used:", "bytes", "module:", "for:", "XLA", "planned", "state:"),
        rows=lines,
        title=f"{folder}: {len(entries)} files, {total:,} bytes; memory in MB (2^20 bytes)",
    )
