"""What handlers did, in a file that outlives every process: each line is one O_APPEND write."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from treadle import Context


class Entry(NamedTuple):
    at_ns: int
    worker: str
    pid: int
    phase: str
    job_id: str
    attempt: int
    token: int


class Pen:
    """The writing end, in the process that runs the handlers."""

    def __init__(self, path: str | Path, worker: str) -> None:
        self.path = Path(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._worker = worker

    def write(self, phase: str, ctx: Context | None = None) -> None:
        if ctx is None:
            self._put(phase, "-", 0, 0)
        else:
            self._put(phase, ctx.job_id, ctx.attempt, ctx._call.job.token)

    def note(self, phase: str, what: str) -> None:
        """Anything else worth knowing, such as the id of a job that was acknowledged."""
        self._put(phase, what, 0, 0)

    def _put(self, phase: str, job_id: str, attempt: int, token: int) -> None:
        line = f"{time.time_ns()} {self._worker} {os.getpid()} {phase} {job_id} {attempt} {token}\n"
        os.write(self._file, line.encode())


class Journal:
    """The reading end, in the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def entries(self, phase: str | None = None, since: int = 0) -> list[Entry]:
        """All lines of this phase, or the ones written after the file had the size `since`."""
        with self.path.open("rb") as file:
            file.seek(since)
            text = file.read().decode()
        # A reader can come in the middle of a write: what follows the last newline is not there yet.
        found = [_entry(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [one for one in found if phase in (None, one.phase)]

    def by_job(self, phase: str) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries(phase):
            found[entry.job_id].append(entry)
        return found

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def _entry(line: str) -> Entry:
    at, worker, pid, phase, job_id, attempt, token = line.split()
    return Entry(int(at), worker, int(pid), phase, job_id, int(attempt), int(token))
