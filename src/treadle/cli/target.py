"""The queue in the user's code that a command works on: `treadle jobs list app:queue`.

`worker` and `serve` have an argument for it. Every other command takes it as the first word after its name. It can't be
mistaken for anything else there, because neither a topic nor a job id contains a colon.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
WITH_AN_ARGUMENT = ("worker", "serve")

_named: str | None = None


def named() -> str | None:
    """The queue that this command names."""
    return _named


def take(argv: Sequence[str], groups: Collection[str]) -> list[str]:
    """The command without the queue that it names; `groups` are commands with subcommands."""
    global _named  # noqa: PLW0603 - one command a process
    _named = None
    place = 2 if argv and argv[0] in groups else 1
    if len(argv) <= place or argv[0] in WITH_AN_ARGUMENT or not _TARGET.fullmatch(argv[place]):
        return list(argv)
    _named = argv[place]
    return [*argv[:place], *argv[place + 1 :]]
