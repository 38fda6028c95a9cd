"""The process of one share: `python -m benchmarks.random_programs.worker SHARE_AS_JSON`.

Prints a line of JSON for each event of `search.run_share`, and `{"end": true}` last.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
from typing import Any

from benchmarks.random_programs.search import Share, run_share


def main(request: str) -> None:
    """Runs the share that the request describes."""
    faulthandler.enable()
    out = sys.stdout
    sys.stdout = sys.stderr  # What else prints must not stand between the lines.

    def say(event: dict[str, Any]) -> None:
        print(json.dumps(event), file=out, flush=True)

    gc.freeze()  # What is imported stays; it need not be looked through again and again.
    run_share(Share(**json.loads(request)), say)
    say({"end": True})


if __name__ == "__main__":
    main(sys.argv[1])
