"""Completion of commands and options in a shell, for the shell that is named or the one that started the command.

typer's own options only know the shell that started the command. In a container, in CI and under `sh` that is one
without completion, or none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script, install

from treadle.model.errors import InvalidInput

SHELLS = ("bash", "zsh", "fish")
SHOW, INSTALL = "--show-completion", "--install-completion"
_PROGRAM, _VARIABLE = "treadle", "_TREADLE_COMPLETE"

completion_init()  # typer does this only for its own options


def with_shell(argv: Sequence[str]) -> list[str]:
    """The command line, with the current shell after an option that names none."""
    if len(argv) == 1 and argv[0] in (SHOW, INSTALL):
        return [argv[0], _current_shell(argv[0])]
    return list(argv)


def _current_shell(option: str) -> str:
    import shellingham

    try:
        name: str = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        known = f"{name} has no completion" if name else "the current shell can't be detected"
        raise InvalidInput(f"{known}; name one of {', '.join(SHELLS)}: treadle {option} bash")
    return name


def _checked(shell: str, option: str) -> str:
    if shell not in SHELLS:
        raise InvalidInput(f"{option}: {shell[:40]!r} is not one of {', '.join(SHELLS)}")
    return shell


def _show(shell: str | None) -> None:
    if shell is not None:
        print(get_completion_script(prog_name=_PROGRAM, complete_var=_VARIABLE, shell=_checked(shell, SHOW)))
        raise typer.Exit


def _install(shell: str | None) -> None:
    if shell is not None:
        _, path = install(_checked(shell, INSTALL), _PROGRAM, _VARIABLE)
        print(f"completion for {shell} is in {path}; open a new terminal to use it")
        raise typer.Exit


Show = Annotated[
    str | None,
    typer.Option(
        SHOW, metavar="[SHELL]", callback=_show, is_eager=True, help="Print the completion for bash, zsh or fish."
    ),
]
Install = Annotated[
    str | None,
    typer.Option(
        INSTALL,
        metavar="[SHELL]",
        callback=_install,
        is_eager=True,
        help="Install the completion for bash, zsh or fish.",
    ),
]
