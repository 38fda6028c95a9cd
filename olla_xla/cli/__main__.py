"""Makes `python -m olla_xla.cli` run the `olla_xla` command."""

import sys

from olla_xla.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
