"""The command line, `treadle …`: one file per command group, on top of what users can import."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 it failed, 2 it was asked wrongly, 130 interrupted."""
    from treadle.cli.app import run

    return run(sys.argv[1:] if argv is None else list(argv))
