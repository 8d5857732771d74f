"""Users with legal but costly filters next to all other users, on a server that also runs jobs.

Searches have separate threads or connections and are stopped after two seconds. A call that takes longer than that has
waited for one.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fault.scale import ASKED, scaled
from tests.http.api import PASSWORD
from tests.http.served import Served, served
from tests.waiting import until
from treadle import Queue
from treadle.queue import JobRequest
from treadle.store.sql.lists import SEARCH_SECONDS

APP = """
from treadle import Queue

queue = Queue("sqlite:///unused.db")


@queue.job
async def ping() -> str:
    return "pong"
"""
JOBS = scaled(2_000, 100_000)
LARGE = scaled(10, 40)
SECONDS = scaled(6, 30)
PATHS = " || ".join(f"payload.p{n}.q = 'none'" for n in range(30))
TOO_MANY = " || ".join(f"payload.p{n} = {n}" for n in range(150))
PATTERN = f"payload.text ~ '%{'a' * 195}b%' || payload.text ~ '%{'a' * 195}c%'"
"""Of a megabyte of a's, each is tried for nearly 200 steps."""


async def fill(url: str) -> None:
    async with Queue(url) as queue:
        document = {f"p{n}": {"q": f"value {n}"} for n in range(30)}
        for _ in range(0, JOBS, 1_000):
            await queue.enqueue_many([JobRequest("mail", document, {}) for _ in range(1_000)])
        text = {"text": "a" * 1_000_000}
        for _ in range(LARGE):
            await queue.enqueue("large", text)


class Visitor:
    """Calls a server until the time is over, and remembers how long each kind of call took at most."""

    def __init__(self, client: httpx.AsyncClient, until: float) -> None:
        self.client = client
        self.until = until
        self.slowest: dict[str, float] = defaultdict(float)
        self.answers: dict[str, set[int]] = defaultdict(set)
        self.calls = 0

    async def call(self, name: str, method: str, path: str, **options: Any) -> httpx.Response:
        begun = time.monotonic()
        answer = await self.client.request(method, path, **options)
        self.slowest[name] = max(self.slowest[name], time.monotonic() - begun)
        self.answers[name].add(answer.status_code)
        self.calls += 1
        return answer

    async def again(self, turn: Callable[[], Awaitable[Any]]) -> None:
        while time.monotonic() < self.until:
            await turn()


async def search(visitor: Visitor, filter: str) -> None:
    await visitor.call(f"filter {filter[:30]}", "GET", "/api/jobs", params={"filter": filter})


async def ordinary(visitor: Visitor, job_id: str) -> None:
    credentials = {"identity": "root@example.com", "password": PASSWORD}
    await visitor.call("health", "GET", "/api/health")
    await visitor.call("sign-in", "POST", "/api/collections/_superusers/auth-with-password", json=credentials)
    await visitor.call("get", "GET", f"/api/jobs/{job_id}")
    await visitor.call("enqueue", "POST", "/api/jobs/enqueue", json={"topic": "elsewhere"})
    await visitor.call("claim", "POST", "/api/workers/claim", json={"workerId": "w", "topics": ["elsewhere"]})
    await pick_up(visitor)


async def pick_up(visitor: Visitor) -> None:
    """From an enqueue to the start of its handler in the same process, by the job's own times."""
    made = (await visitor.call("enqueue", "POST", "/api/jobs/enqueue", json={"topic": "ping"})).json()

    async def done() -> Any:
        job = (await visitor.call("get", "GET", f"/api/jobs/{made['id']}")).json()
        return job if job["status"] == "completed" else None

    job = await until(done, every=0.02)
    waited = _seconds(job["startedAt"]) - _seconds(job["createdAt"])
    visitor.slowest["pick-up"] = max(visitor.slowest["pick-up"], waited)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def attack(server: Served, token: str) -> tuple[Visitor, Visitor]:
    until = time.monotonic() + SECONDS
    async with (
        httpx.AsyncClient(base_url=server.url, headers={"Authorization": token}, timeout=120) as for_readers,
        httpx.AsyncClient(base_url=server.url, headers={"Authorization": token}, timeout=120) as for_others,
    ):
        heavy, other = Visitor(for_readers, until), Visitor(for_others, until)
        job = (await other.call("enqueue", "POST", "/api/jobs/enqueue", json={"topic": "elsewhere"})).json()
        filters = [PATHS] * 3 + [TOO_MANY] + [PATTERN] * 2
        await asyncio.gather(
            *(heavy.again(partial(search, heavy, text)) for text in filters),
            other.again(lambda: ordinary(other, job["id"])),
        )
    return heavy, other


@pytest.mark.timeout(600)
async def test_no_caller_waits_for_the_searches_of_others(url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    await fill(url)
    with served(tmp_path, url, "app:queue") as server:
        token = await asyncio.to_thread(server.superuser)
        heavy, other = await attack(server, token)
    assert heavy.answers[f"filter {TOO_MANY[:30]}"] == {400}
    assert all(codes <= {200, 400, 429} for codes in heavy.answers.values()), heavy.answers
    assert {name: codes for name, codes in other.answers.items() if codes != {200}} == {}
    assert {"health", "sign-in", "get", "enqueue", "claim", "pick-up"} <= other.slowest.keys()
    late = {name: seconds for name, seconds in other.slowest.items() if seconds >= SEARCH_SECONDS}
    assert ASKED == "short" or not late, late  # the short form runs beside other tests
