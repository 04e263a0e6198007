"""The door of the command line: ``python -m hierpart COMMAND``."""

from __future__ import annotations

import sys

from hierpart.cli import main

if __name__ == "__main__":
    sys.exit(main())
