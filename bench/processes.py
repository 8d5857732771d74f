"""Worker and producer processes, and the CPU time that they and the database spend."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parent.parent


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(int(x) for x in fields[11:15]) / TICK


def tree_cpu_seconds(pid: int) -> float:
    """CPU time of a process with all its living children (a PostgreSQL postmaster and its backends)."""
    total = cpu_seconds(pid)
    for task in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            if int((task / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
                total += (int(fields[11]) + int(fields[12])) / TICK
    return total


def stolen_seconds() -> float:
    """Processor time that this machine wanted and its host gave to others, since it started."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    return int(fields[8]) / TICK


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


class Workers:
    """Worker processes and what they have counted in their tally files."""

    def __init__(self, folder: Path, url: str, count: int = 1, **options: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.files = [folder / f"{time.monotonic_ns()}-{i}.tally" for i in range(count)]
        self.processes = [self._start(url, file, options) for file in self.files]

    def _start(self, url: str, file: Path, options: dict[str, object]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bench.work", url, str(file), json.dumps(options)]
        return subprocess.Popen(command, cwd=ROOT)

    def read(self) -> tuple[int, float, float]:
        """Jobs handled, first and last handler start (0 if none)."""
        count, first, last = 0, float("inf"), 0.0
        for file in self.files:
            if file.exists() and file.stat().st_size >= 24:
                hits, began, latest = struct.unpack("qdd", file.read_bytes()[:24])
                if hits:
                    count, first, last = count + hits, min(first, began), max(last, latest)
        return count, (first if count else 0.0), last

    def ready(self, seconds: float = 60) -> None:
        """Wait until every worker is up."""
        deadline = time.monotonic() + seconds
        while not all(file.with_suffix(".ready").exists() for file in self.files):
            if time.monotonic() > deadline or any(p.poll() is not None for p in self.processes):
                raise RuntimeError("a worker did not start")
            time.sleep(0.005)

    def cpu(self) -> float:
        return sum(cpu_seconds(p.pid) for p in self.processes)

    def memory(self) -> float:
        return max(memory_mb(p.pid) for p in self.processes)

    def latencies(self) -> list[float]:
        found: list[float] = []
        for file in self.files:
            path = file.with_suffix(".latencies")
            if path.exists():
                found += [float(line) for line in path.read_text().split()]
        return found

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def workers(folder: Path, url: str, count: int = 1, **options: object) -> Iterator[Workers]:
    group = Workers(folder, url, count, **options)
    try:
        yield group
    finally:
        group.stop()
