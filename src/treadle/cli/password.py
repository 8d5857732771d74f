"""Reads a password for a command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from treadle.model.errors import InvalidInput

STDIN = "-"

Password = Annotated[
    str | None,
    typer.Argument(
        metavar="[PASSWORD]",
        help="At least 8 characters; prompted for if left out. - reads it from stdin.",
        show_default=False,
    ),
]


def password(given: str | None) -> str:
    """The given one, or from the terminal (hidden, asked twice), or the first line of stdin."""
    if given is not None and given != STDIN:
        return given
    if sys.stdin is not None and sys.stdin.isatty():
        asked: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return asked
    if given is None:
        raise InvalidInput("there is no password; write it after the e-mail address, or - to read it from stdin")
    return _first_line()


def _first_line() -> str:
    if sys.stdin is None:
        raise InvalidInput("the password can't be read: stdin is closed")
    try:
        return sys.stdin.buffer.readline().decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise InvalidInput("the password on stdin is not UTF-8") from None
