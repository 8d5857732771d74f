"""The server that browser tests look at, and hands that work on its database."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.dashboard.flow_jobs import FlowJobs
from tests.queue.hands import Hands, eventually
from treadle import Job, Queue
from treadle.accounts import Accounts
from treadle.dashboard import create_app
from treadle.queue.audit import Actor, AuditLog
from treadle.store.values import Claimed, DutyReport, Touch


class Site:
    """API and dashboard on a port of this machine; jobs are made and worked on through the same queue."""

    def __init__(self, database: str, *, prefix: str = "", **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.queue: Queue = self.run(Queue(database, **options).open())
        self.hands = Hands(self.queue)
        self.flows = FlowJobs(self.queue, self.hands)
        self.accounts = self.run(self._accounts())
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}"
        # Under a prefix as users do it: the queue in an application of theirs.
        app = Starlette(routes=[Mount(prefix, self.queue.asgi())]) if prefix else create_app(self.queue)
        config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._serving = asyncio.run_coroutine_threadsafe(self._server.serve(sockets=[listener]), self._loop)
        self.run(eventually(lambda: self._server.started))

    async def _accounts(self) -> Accounts:
        return Accounts(self.queue.store)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self.run(self._stop_streams())
        self._server.should_exit = True
        self._serving.result(30)
        self.run(self.queue.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _stop_streams(self) -> None:
        await self.queue.feed.stop()

    def enqueue(self, topic: str = "mail", payload: dict[str, Any] | None = None, **options: Any) -> Job:
        job: Job = self.run(self.queue.enqueue(topic, payload or {"userId": "123"}, **options))
        return job

    def enqueue_many(self, topic: str, count: int, **options: Any) -> list[Job]:
        jobs: list[Job] = self.run(self.queue.enqueue_many(topic, [{"n": n} for n in range(count)], **options))
        return jobs

    def get(self, id: str) -> Job:
        job: Job = self.run(self.queue.get(id))
        return job

    def fail(self, topic: str = "mail", error: str = "SmtpError: connection refused", **options: Any) -> Job:
        job = self.enqueue(topic, **{"max_attempts": 1, **options})
        self.run(self._fail(topic, error))
        return self.get(job.id)

    async def _fail(self, topic: str, error: str) -> None:
        for claimed in await self.hands.claim(topic, limit=1):
            await self.hands.fail(claimed, error)

    def complete(self, topic: str = "mail", result: Any = None) -> Job:
        job = self.enqueue(topic)
        self.run(self._complete(topic, result))
        return self.get(job.id)

    async def _complete(self, topic: str, result: Any) -> None:
        for claimed in await self.hands.claim(topic, limit=1):
            await self.hands.complete(claimed, result)

    def worker(self, name: str, capability: str = "gpu") -> int:
        """The lease of a worker that does nothing."""

        async def open_lease() -> int:
            serves = {"topics": ["mail"], "capabilities": [capability], "slots": 3}
            return await self.queue.store.open_lease(name, 3_600_000, serves)

        lease: int = self.run(open_lease())
        return lease

    def leader(self, name: str, duties: Sequence[DutyReport]) -> None:
        async def elect() -> bool:
            return await self.queue.store.elect(name, name, 600_000, duties)

        assert self.run(elect())

    def draining(self, lease: int) -> bool:
        async def renewed() -> bool:
            found = await self.queue.store.renew(lease, 600_000)
            return found is not None and found.draining

        return bool(self.run(renewed()))

    def report(self, claimed: Claimed, message: str) -> None:
        async def touch() -> None:
            await self.queue.store.touch(claimed.lease, [Touch(claimed.n, claimed.token, 5, 10, message)])

        self.run(touch())

    def audit(self, text: str) -> None:
        """An audit entry with this text in every field."""

        async def add() -> None:
            await AuditLog(self.queue).add(Actor(text, text), text, text, filter=text, reason=text)

        self.run(add())

    def start(self, topic: str) -> Any:
        """Claim one job; it runs until the test settles it."""
        return self.run(self.hands.claim_one(topic))


@contextlib.contextmanager
def site(database: str, **options: Any) -> Iterator[Site]:
    found = Site(database, **options)
    try:
        yield found
    finally:
        found.close()
