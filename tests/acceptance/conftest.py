"""Fixtures for acceptance tests: the public queue, real workers here and in processes, and a way to let time pass."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.relational import RelationalDatabase
from tests.waiting import give_way
from treadle import Queue, Worker

Another = Callable[[], Awaitable[Queue]]
Start = Callable[..., Awaitable[Worker]]
Travel = Callable[[float], Awaitable[None]]


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


@pytest.fixture
async def another(url: str) -> AsyncIterator[Another]:
    """One more queue on the same database, as another program would have it."""
    async with contextlib.AsyncExitStack() as stack:

        async def another() -> Queue:
            return await stack.enter_async_context(Queue(url))

        yield another


@pytest.fixture
async def start(another: Another) -> AsyncIterator[Start]:
    """Start a worker that looks often; it is stopped when the test is over, before any queue is closed."""
    running: list[tuple[Worker, asyncio.Task[None]]] = []

    async def start(queue: Queue, **options: Any) -> Worker:
        worker = Worker(queue, **{"poll_interval": "50ms", "reap_interval": "50ms", "drain": "5s", **options})
        running.append((worker, asyncio.create_task(worker.run())))
        await give_way()
        return worker

    yield start
    for worker, _ in running:
        worker.stop()
    for _, task in running:
        await task


@pytest.fixture
def travel(url: str) -> Travel:
    """Let this many seconds pass in the database: everything stored gets older."""

    async def travel(seconds: float) -> None:
        await RelationalDatabase(url).pass_time(round(seconds * 1000))

    return travel


class Program:
    """A worker process (`tests.acceptance.program`) and what its handlers wrote down."""

    def __init__(self, url: str, folder: Path, options: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.acceptance.program", url, str(folder), json.dumps(options)]
        self.process = subprocess.Popen(command)
        self.pid = self.process.pid

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0


StartProgram = Callable[..., Program]


@pytest.fixture
def program(url: str, tmp_path: Path) -> Iterator[StartProgram]:
    running: list[Program] = []

    def program(**options: Any) -> Program:
        running.append(Program(url, tmp_path, options))
        return running[-1]

    yield program
    for one in running:
        one.kill9()
