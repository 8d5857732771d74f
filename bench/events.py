"""Listeners and streams: how soon another process hears of an event, and what streams cost that wait or are busy."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import psutil

from bench.scenarios import Figures, percentile
from treadle import Queue
from treadle.accounts import Accounts

PAUSE_S = 0.15
CONNECTIONS_AT_ONCE = 50


async def hearing(url: str, jobs: int) -> Figures:
    """From the return of an enqueue in another process to the call of a listener here, and the same for completions."""
    queue = Queue(url)
    waits: dict[str, list[float]] = {"enqueued": [], "completed": []}

    @queue.on("job:enqueued")
    async def enqueued(event: dict[str, Any]) -> None:
        waits["enqueued"].append(time.time() - event["job"].payload["at"])

    @queue.on("job:completed")
    async def completed(event: dict[str, Any]) -> None:
        waits["completed"].append(time.time() - event["job"].result_value["at"])

    async with queue:
        other = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.events", url, str(jobs))
        await other.wait()
        async with asyncio.timeout(30):
            while min(map(len, waits.values())) < jobs:
                await asyncio.sleep(0.05)
    return {f"{name} heard in another process, p50 ms": percentile(found, 0.5) * 1e3 for name, found in waits.items()}


async def _cause(url: str, jobs: int) -> None:
    from treadle.worker import Worker

    queue = Queue(url)

    @queue.job(topic="heard")
    async def heard(payload: dict[str, Any]) -> dict[str, float]:
        return {"at": time.time()}

    async with queue:
        worker = Worker(queue, slots=1)
        working = asyncio.create_task(worker.run())
        for _ in range(jobs):
            job = await queue.enqueue("heard", {"at": time.time()})
            await job.result("30s")
            await asyncio.sleep(PAUSE_S)
        worker.stop()
        await working


@contextlib.asynccontextmanager
async def _server(url: str) -> AsyncIterator[tuple[str, psutil.Process, str]]:
    """`treadle serve` without a worker: its address, its process and a token."""
    async with Queue(url) as queue:
        _, token = await Accounts(queue.store).api_keys.create("bench", ["manage", "enqueue"])
    command = [sys.executable, "-m", "treadle", "serve", "--no-worker", "--port", "0", "--db", url]
    environment = {"TREADLE_STREAMS": "5000", "TREADLE_STREAMS_PER_CALLER": "5000"}
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE, env=_environment(environment))
    assert process.stderr
    try:
        address = ""
        while not address:
            line = (await process.stderr.readline()).decode()
            address = line.partition("serving on ")[2].split(",")[0].strip()
        yield address, psutil.Process(process.pid), token
    finally:
        process.kill()
        await process.communicate()


def _environment(more: dict[str, str]) -> dict[str, str]:
    import os

    return {**os.environ, **more}


async def _open(session: aiohttp.ClientSession, path: str, count: int) -> list[aiohttp.ClientResponse]:
    places = asyncio.Semaphore(CONNECTIONS_AT_ONCE)

    async def one() -> aiohttp.ClientResponse:
        async with places:
            response = await session.get(path)
            response.raise_for_status()
            return response

    return await asyncio.gather(*(one() for _ in range(count)))


def _session(address: str, token: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        address,
        headers={"Authorization": token},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
    )


async def idle_streams(url: str, count: int, seconds: float) -> Figures:
    """What so many streams cost a server while nothing happens."""
    async with _server(url) as (address, process, token), _session(address, token) as session:
        (first,) = await _open(session, "/api/jobs/stream", 1)
        before = process.memory_info().rss
        streams = await _open(session, "/api/jobs/stream", count)
        await asyncio.sleep(2)
        used, began = process.memory_info().rss - before, time.monotonic()
        cpu = sum(process.cpu_times()[:2])
        await asyncio.sleep(seconds)
        busy = (sum(process.cpu_times()[:2]) - cpu) / (time.monotonic() - began)
        for stream in (first, *streams):
            stream.close()
    return {"idle streams, MB": used / 1e6, "idle streams, % CPU": busy * 100}


async def busy_streams(url: str, count: int, seconds: float) -> Figures:
    """Enqueues over HTTP beside so many streams of one topic with many events."""
    async with _server(url) as (address, _, token), _session(address, token) as session:
        streams = await _open(session, "/api/jobs/stream?topic=busy&fields=status", count)
        heard = [asyncio.create_task(_drain(stream)) for stream in streams]
        took: list[float] = []
        until = time.monotonic() + seconds
        async with Queue(url) as queue:
            while time.monotonic() < until:
                events = asyncio.create_task(queue.enqueue_many("busy", [{}] * 100))
                began = time.perf_counter()
                async with session.post("/api/jobs/enqueue", json={"topic": "other"}) as answer:
                    await answer.read()
                took.append(time.perf_counter() - began)
                await events
                await asyncio.sleep(max(0.1 - (time.perf_counter() - began), 0))
        await asyncio.sleep(1)
        for task in heard:
            task.cancel()
        await asyncio.gather(*heard, return_exceptions=True)
        for stream in streams:
            stream.close()
    return {"enqueue beside busy streams, p99 ms": percentile(took, 0.99) * 1e3}


async def _drain(stream: aiohttp.ClientResponse) -> None:
    async for _ in stream.content.iter_any():
        pass


if __name__ == "__main__":
    asyncio.run(_cause(sys.argv[1], int(sys.argv[2])))
