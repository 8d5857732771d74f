"""The queue in the user's code that a command works on: `treadle jobs list app:queue`.

`worker` and `serve` have an argument for it. Every other command takes it before its own arguments, with options before
or after it. It can't be mistaken for anything else there, because neither a topic nor a job id contains a colon.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
WITH_AN_ARGUMENT = ("worker", "serve")

_named: str | None = None


def named() -> str | None:
    """The queue that this command names."""
    return _named


def take(argv: Sequence[str], command: Any) -> list[str]:
    """The words without the queue that they name; `command` is the whole application, as typer builds it."""
    global _named  # noqa: PLW0603 - one command a process
    _named = None
    if not argv or argv[0] in WITH_AN_ARGUMENT:
        return list(argv)
    place = _after_name_and_options(argv, command)
    if place == len(argv) or not _TARGET.fullmatch(argv[place]):
        return list(argv)
    _named = argv[place]
    return [*argv[:place], *argv[place + 1 :]]


def _after_name_and_options(argv: Sequence[str], command: Any) -> int:
    place = 0
    while place < len(argv) and argv[place] in getattr(command, "commands", ()):
        command = command.commands[argv[place]]
        place += 1
    with_value = {
        name
        for option in command.params
        if option.param_type_name == "option" and not option.is_flag
        for name in option.opts
    }
    while place < len(argv) and argv[place].startswith("--") and argv[place] != "--":
        place += 2 if argv[place] in with_value else 1
    return min(place, len(argv))
