"""How much: a short form for `make test`, the figures of RELIABILITY.md for `make fault`."""

import os

ASKED = os.environ.get("TREADLE_FAULT", "short")


def scaled(short: int, full: int) -> int:
    """`short`, or `full` with TREADLE_FAULT=full, or a part of it with TREADLE_FAULT=0.1."""
    if ASKED == "short":
        return short
    return full if ASKED == "full" else max(short, round(full * float(ASKED)))


def stride(short: int, full: int) -> int:
    """The other way round: every `short`-th, or every `full`-th, or something between."""
    if ASKED == "short":
        return short
    return full if ASKED == "full" else min(short, round(full / float(ASKED)))
