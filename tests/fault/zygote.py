"""Starts processes of `tests.fault.app` in milliseconds: this one has imported everything and forks them.

They are processes like any other. It reaps one only when asked how it ended, so until then its number
is not reused and can be killed safely.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SET_PARENT_DEATH_SIGNAL = 1


class Zygote:
    """The test's end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fault.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )
        self._line = ours.makefile("rw")
        ours.close()

    def start(self, argv: Sequence[str], log: Path) -> int:
        return int(self._ask(start=list(argv), log=str(log)))

    def ended(self, pid: int) -> int | None:
        """How it ended, as subprocess says it; None: it has not."""
        code: int | None = self._ask(ended=pid)
        return code

    def close(self) -> None:
        self._line.close()
        self._process.wait(30)

    def _ask(self, **request: Any) -> Any:
        self._line.write(json.dumps(request) + "\n")
        self._line.flush()
        return json.loads(self._line.readline())


def serve(connection: socket.socket) -> None:
    line = connection.makefile("rw")
    children: dict[int, int | None] = {}
    for text in line:
        match json.loads(text):
            case {"start": argv, "log": log}:
                pid = _fork(connection, argv, log)
                children[pid] = None
                answer: Any = pid
            case {"ended": pid}:
                if children[pid] is None:
                    children[pid] = _how_it_ended(pid)
                answer = children[pid]
        line.write(json.dumps(answer) + "\n")
        line.flush()
    for pid, code in children.items():
        if code is None:
            os.kill(pid, signal.SIGKILL)


def _fork(connection: socket.socket, argv: list[str], log: str) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.close(connection.fileno())
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = app.main(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _how_it_ended(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


if __name__ == "__main__":
    from tests.fault import app

    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)
