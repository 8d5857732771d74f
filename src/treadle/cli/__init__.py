"""The command line, `treadle …`: one file per command group, built on the public API."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    from treadle.cli.app import run

    return run(sys.argv[1:] if argv is None else list(argv))
