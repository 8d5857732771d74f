"""The real command in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.forks import forks

TREADLE = str(Path(sys.executable).with_name("treadle"))
SECONDS = 60


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
    """Runs `treadle` in a folder of its own, with nobody else's settings."""

    def __init__(self, folder: Path, database: str | None = None) -> None:
        self.folder = folder
        self.database = database

    def __call__(self, *words: str, stdin: str = "", **environment: str) -> Ran:
        """`treadle WORDS --db DATABASE`."""
        at = [] if self.database is None else ["--db", self.database]
        return self.bare(*words, *at, stdin=stdin, **environment)

    def bare(self, *words: str, stdin: str = "", **environment: str) -> Ran:
        return Ran(*forks().run(words, self.folder, self.environment(environment), stdin, SECONDS))

    def from_shell(self, *words: str, stdin: str = "", **environment: str) -> Ran:
        """Started as a shell does it, for what starts processes of its own."""
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

    def on_terminal(self, *words: str, **environment: str) -> Ran:
        """On a terminal of its own, where stdout and stderr are the same."""
        leader, follower = pty.openpty()
        environment = self.environment({"TERM": "xterm", "COLUMNS": "110", "LINES": "40"} | environment)
        with subprocess.Popen(
            [TREADLE, *words], cwd=self.folder, env=environment, stdin=follower, stdout=follower, stderr=follower
        ) as process:
            os.close(follower)
            text = _read_all(leader)
            return Ran(process.wait(SECONDS), text, "")

    @contextlib.contextmanager
    def started(self, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """One that goes on until it is told to stop; killed at the latest when the test is over."""
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
        return kept | more


def _read_all(descriptor: int) -> str:
    parts = []
    try:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except OSError:  # Linux ends a terminal that nobody holds with EIO
        pass
    os.close(descriptor)
    return b"".join(parts).decode()
