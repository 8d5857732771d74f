"""The dashboard over many jobs: how long the server takes for each page, and how much it sends."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

import httpx

from bench.scenarios import Figures, percentile, settle_disk
from bench.work import payload
from treadle import Fail, Queue, Worker
from treadle.accounts import Accounts
from treadle.dashboard.app import Dashboard
from treadle.dashboard.state import State
from treadle.http import create_app
from treadle.http.server import Servers

TOPICS = 20
WAITING = 2
"""Topics without a handler, with jobs that stay pending."""
SITE = "http://bench.test"
EMAIL, PASSWORD = "bench@example.com", "correct horse battery"
PAGES = (
    "/",
    "/?range=7d",
    "/jobs",
    "/jobs?status=completed",
    "/jobs?status=failed",
    "/jobs?status=pending",
    "/jobs?topic=topic_7",
    "/jobs?topic=topic_7&status=failed&page=3",
    "/jobs?sort=runAt&status=pending",
    "/jobs/{failed}",
    "/jobs/{completed}",
    "/errors",
    "/topics",
    "/workers",
    "/system",
)

SEARCHES = ("/jobs?q=error%3Arefused", "/jobs?q=refused", "/jobs?q=nowhere", "/jobs?q=payload.n%3A77")


async def pages(url: str, jobs: int, rounds: int = 20) -> Figures:
    async with Queue(url) as queue:
        await _fill(queue, jobs)
        await settle_disk(queue.store)
        await Accounts(queue.store).upsert_superuser(EMAIL, PASSWORD)
        boards: list[Dashboard] = []

        def board(servers: Servers) -> Dashboard:
            boards.append(Dashboard(servers))
            return boards[0]

        app = create_app(queue, pages=board)
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=SITE) as client:
            fields = {"identity": EMAIL, "password": PASSWORD}
            answer = await client.post("/_/login", data=fields, headers={"Origin": SITE})
            assert answer.status_code == 303, answer.text
            (state,) = boards[0]._states.values()
            return await _measure(client, state, await _paths(queue), rounds)


async def _fill(queue: Queue, jobs: int) -> None:
    """Most have completed, one in fifty has failed, one in ten waits for a worker, one in twenty for its time."""

    async def handle(ctx: Any, job: dict[str, Any]) -> None:
        if job["n"] % 50 == 0:
            raise Fail(f"connection {job['n']} refused")

    for number in range(WAITING, TOPICS):
        queue.register(f"topic_{number}", handle)
    for start in range(0, jobs, 1000):
        topic = f"topic_{start // 1000 % TOPICS}"
        batch = range(start, min(start + 1000, jobs))
        delay = timedelta(hours=1 + start % 7) if start // 1000 % TOPICS == TOPICS - 1 else None
        await queue.enqueue_many(topic, [{**payload(), "n": n} for n in batch], delay=delay)
    logging.getLogger("treadle").setLevel(logging.CRITICAL)  # a line per failed job
    await Worker(queue, slots=10, burst=True).run()


async def _paths(queue: Queue) -> list[str]:
    ids = {status: (await queue.list(status=status, limit=1))[0].id for status in ("failed", "completed")}
    return [path.format(**ids) for path in PAGES]


async def _measure(client: httpx.AsyncClient, state: State, paths: list[str], rounds: int) -> Figures:
    """Each answer is made from the database: what pages keep for some seconds is dropped before.

    The first round opens connections and reads templates, so it does not count.
    """
    took: dict[str, list[float]] = {path: [] for path in (*paths, *SEARCHES)}
    largest = 0
    for number in range(rounds + 1):
        for path, values in took.items():
            state.forget()
            started = time.perf_counter()
            async with client.stream("GET", f"/_{path}") as answer:
                assert answer.status_code == 200, (path, answer.status_code)
                await answer.aread()
                largest = max(largest, answer.num_bytes_downloaded)
            if number:
                values.append((time.perf_counter() - started) * 1e3)
    searches = [value for path in SEARCHES for value in took[path]]
    slowest = max(took, key=lambda path: percentile(took[path], 0.95))
    for path, values in took.items():
        print(f"    {percentile(values, 0.5):7.1f} {percentile(values, 0.95):7.1f} ms  {path[:60]}", flush=True)
    print(f"    slowest: {slowest}", flush=True)
    every = [value for values in took.values() for value in values]
    return {
        "text search p95 ms": percentile(searches, 0.95),
        "pages p50 ms": percentile(every, 0.5),
        "pages p95 ms": percentile(every, 0.95),
        "slowest page p95 ms": percentile(took[slowest], 0.95),
        "largest page kB": largest / 1000,
    }
