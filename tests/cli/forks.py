"""Runs the command in milliseconds: a process that has imported it forks for every call.

What is forked is a process like any other, with its own arguments, folder, environment and streams. How a shell
starts the command is shown by the tests that use `Command.started` and `Command.on_terminal`.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coverage import Coverage

ROOT = Path(__file__).parents[2]


class Forks:
    """The test's end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.forks", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )
        self._connection = ours
        self._line = ours.makefile("rw")

    def run(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: str, seconds: float
    ) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        with tempfile.TemporaryDirectory() as place:
            files = [Path(place) / name for name in ("in", "out", "err")]
            files[0].write_text(stdin, encoding="utf-8")
            request = {
                "words": words,
                "folder": str(folder),
                "environment": environment,
                "files": list(map(str, files)),
            }
            self._connection.settimeout(seconds)
            self._line.write(json.dumps(request) + "\n")
            self._line.flush()
            code = int(self._line.readline())
            return code, files[1].read_text(encoding="utf-8"), files[2].read_text(encoding="utf-8")

    def close(self) -> None:
        self._line.close()
        self._connection.close()
        self._process.wait(30)


@functools.cache
def forks() -> Forks:
    """One for all tests of a process."""
    made = Forks()
    atexit.register(made.close)
    return made


def serve(connection: socket.socket) -> None:
    if measuring := Coverage.current():
        measuring.save()  # once, or every child would save it again
    line = connection.makefile("rw")
    for text in line:
        pid = os.fork()
        if not pid:
            connection.close()
            _child(json.loads(text))
        _, status = os.waitpid(pid, 0)
        line.write(f"{os.waitstatus_to_exitcode(status)}\n")
        line.flush()


def _child(request: dict[str, Any]) -> None:
    code: object = 1
    try:
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["treadle", *request["words"]]
        for number, file in enumerate(request["files"]):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
        code = main()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    finally:
        if isinstance(code, str):
            print(code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


NEEDED = """
pydantic.fields pydantic.types rich.console rich.live rich.table typer.rich_utils
treadle.accounts treadle.cli.app
treadle.store.connect treadle.store.postgres.store treadle.store.sqlite.store treadle.worker
"""

if __name__ == "__main__":
    for name in NEEDED.split():
        importlib.import_module(name)
    from treadle.cli import main

    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != ROOT]
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)
