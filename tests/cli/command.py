"""The command: in this process, in a separate one, or at a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli import inside
from tests.cli.forks import forks

# Makes the terminal the one of its session, so that a typed Ctrl-C is a signal, and goes on as the command.
_IN_FRONT = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
TREADLE = str(Path(sys.executable).with_name("treadle"))
SECONDS = 120
ON_ITS_OWN = {"bench", "demo", "serve", "top", "worker"}


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def done(self) -> Ran:
        assert self.code == 0, self.err
        assert self.err == ""
        return self

    def refused(self, code: int) -> str:
        """The one line on stderr; nothing on stdout, no trace."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("treadle: ")
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.removeprefix("treadle: ").rstrip("\n")


class Command:
    """Runs `treadle` in a fresh folder, without settings from outside."""

    def __init__(self, folder: Path, database: str | None = None) -> None:
        self.folder = folder
        self.database = database

    def __call__(self, *words: str, stdin: str = "", **environment: str) -> Ran:
        """`treadle WORDS --db DATABASE`."""
        at = [] if self.database is None else ["--db", self.database]
        return self.bare(*words, *at, stdin=stdin, **environment)

    def bare(self, *words: str, stdin: str = "", **environment: str) -> Ran:
        """In this process, or in one of its own if the command runs jobs, or a browser's driver runs a loop here."""
        if ON_ITS_OWN & set(words[:1]) or asyncio._get_running_loop() is not None:
            return Ran(*forks().run(words, self.folder, self.environment(environment), stdin, SECONDS))
        return Ran(*inside.call(words, self.folder, self.environment(environment), stdin))

    def from_shell(self, *words: str, stdin: str = "", **environment: str) -> Ran:
        """Started as a shell does it, for commands that start processes."""
        done = subprocess.run(
            [TREADLE, *words],
            input=stdin,
            cwd=self.folder,
            env=self.environment(environment),
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def on_terminal(self, *words: str, columns: int = 110, **environment: str) -> Ran:
        """On a separate terminal, where stdout and stderr are the same."""
        with self.at_terminal(*words, columns=columns, **environment) as terminal:
            terminal.read_all()
            return Ran(terminal.process.wait(SECONDS), terminal.shown, "")

    @contextlib.contextmanager
    def at_terminal(self, *words: str, columns: int = 110, **environment: str) -> Iterator[Terminal]:
        """The same while it runs, for what is typed; killed at the latest when the test is over."""
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-c", _IN_FRONT, TREADLE, *words],
            cwd=self.folder,
            env=self.environment({"TERM": "xterm"} | environment),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        try:
            yield Terminal(process, leader)
        finally:
            process.kill()
            process.wait(SECONDS)
            os.close(leader)

    @contextlib.contextmanager
    def started(self, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """A command that runs until it is told to stop; killed when the test ends at the latest."""
        process = subprocess.Popen(
            [TREADLE, *words],
            cwd=self.folder,
            env=self.environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        try:
            with process:
                try:
                    yield process
                finally:
                    process.kill()
        finally:
            process.wait(SECONDS)

    @contextlib.contextmanager
    def worker(self, *options: str, target: str = "app:queue") -> Iterator[subprocess.Popen[str]]:
        """A worker that is running."""
        at = [] if self.database is None else ["--db", self.database]
        with self.started("worker", target, *options, *at) as process:
            assert process.stderr
            line = process.stderr.readline()
            assert " runs " in line, line + process.stderr.read()
            yield process

    def module(self, name: str, code: str) -> None:
        (self.folder / f"{name}.py").write_text(code)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        ours = ("TREADLE_", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "PG")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return kept | {"PYTHONDONTWRITEBYTECODE": "1"} | more


class Terminal:
    """A terminal: what it shows, and what is typed."""

    def __init__(self, process: subprocess.Popen[bytes], leader: int) -> None:
        self.process = process
        self.shown = ""
        self._leader = leader

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def until(self, text: str) -> None:
        """Read on until it shows this."""
        while text not in self.shown:
            assert self._read(), f"{text!r} was never shown:\n{self.shown}"

    def read_all(self) -> None:
        while self._read():
            pass

    def _read(self) -> bool:
        readable, _, _ = select.select([self._leader], [], [], SECONDS)
        assert readable, f"nothing more is shown:\n{self.shown}"
        try:
            part = os.read(self._leader, 65536)
        except OSError:  # on Linux, reading a terminal without a holder ends with EIO
            return False
        self.shown += part.decode()
        return bool(part)
