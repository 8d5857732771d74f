"""A queue on each store, and workers that are stopped when their test is over."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import give_way, until
from treadle import Queue, Worker


class StartedWorker(Worker):
    """A worker with a run that a test can wait for."""

    done: asyncio.Task[None]


Start = Callable[..., Awaitable[StartedWorker]]


@pytest.fixture
async def queue(url: str) -> AsyncIterator[FaultyQueue]:
    queue = FaultyQueue(url)
    async with queue:
        yield queue


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start a worker; it runs until `worker.stop()` or the end of the test."""
    running: list[StartedWorker] = []

    async def start(queue: Queue, **options: Any) -> StartedWorker:
        worker = StartedWorker(queue, **{"drain": "5s", **options})
        worker.done = asyncio.create_task(worker.run())
        running.append(worker)
        await give_way()
        return worker

    yield start
    for worker in running:
        task = worker.done
        if not task.done():
            worker.stop()
            await asyncio.wait({task}, timeout=10)
        if not task.done():
            worker.stop()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


class Program:
    """A worker process started by a test."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._log = log

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def says(self, text: str) -> None:
        """Wait for it in the log."""
        await until(lambda: text in self._log.read_text(), explain=self._log.read_text)

    async def exit_code(self, seconds: float = 20) -> int:
        return await asyncio.to_thread(self.process.wait, seconds)


StartProgram = Callable[..., Program]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Paths through which a test and a handler in another process talk."""
    return {name: str(tmp_path / name) for name in ("started", "gate", "told", "cleaned")}


@pytest.fixture
def program(url: str, tmp_path: Path) -> Iterator[StartProgram]:
    """Start `tests.worker.program` on the same database; killed when the test is over."""
    running: list[subprocess.Popen[bytes]] = []

    def program(**options: Any) -> Program:
        command = [sys.executable, "-m", "tests.worker.program", url, json.dumps(options)]
        log = tmp_path / f"program-{len(running)}.log"
        with log.open("w") as output:
            running.append(subprocess.Popen(command, stderr=output))
        return Program(running[-1], log)

    yield program
    for process in running:
        process.kill()
        process.wait()
