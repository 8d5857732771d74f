"""Deliveries of webhooks from the outbox to a quick receiver on the same machine: signed, sent and written down."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import TYPE_CHECKING

from treadle import Queue
from treadle.maintenance.dispatcher import WebhookDispatcher
from treadle.maintenance.sender import Sender
from treadle.queue import steering
from treadle.queue.background import end, forever
from treadle.testing.workbench import new_job

if TYPE_CHECKING:
    from bench.scenarios import Figures

BATCH = 500
PATIENCE_S = 120.0


class _Quick(asyncio.Protocol):
    """Answers each request with 204 as soon as its body is there."""

    def __init__(self, received: Synchronized[int]) -> None:
        self._received = received
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]) if found else 0
        if found and len(body) >= length:
            self._data = body[length:]
            self._received.value += 1
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")


def _receive(port: Connection, received: Synchronized[int]) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: _Quick(received), "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, Synchronized[int]]]:
    """The URL of a receiver in another process, and how much it has received."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    received = context.Value("q", 0)
    process = context.Process(target=_receive, args=(theirs, received), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/hook", received
    finally:
        process.terminate()
        process.join()


async def _load(queue: Queue, url: str, count: int) -> None:
    for _ in range(0, count, BATCH):
        jobs = [new_job(webhook_url=url) for _ in range(BATCH)]
        await queue.store.insert(jobs)
        await steering.cancel(queue.store, [job.id for job in jobs])


async def deliveries(url: str, count: int) -> Figures:
    with receiver() as (hook, received):
        async with Queue(url) as queue:
            await _load(queue, hook, count)
            sender = Sender(
                queue.store, "bench", lambda: WebhookDispatcher(allow="127.0.0.1", secret="not much of a secret")
            )
            began, cpu = time.perf_counter(), time.process_time()
            sending = asyncio.create_task(forever("sending", lambda: sender.step(leads=True), queue.store.outage))
            async with asyncio.timeout(PATIENCE_S):
                while received.value < count or sender.busy:
                    await asyncio.sleep(0.01)
            took, cpu = time.perf_counter() - began, time.process_time() - cpu
            await end([sending])
            await sender.close()
    return {"webhooks /s": count / took, "webhook us/delivery": cpu / count * 1e6}
