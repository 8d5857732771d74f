"""Faults 22 and 23 and the figures: PostgreSQL restarts, crashes and loses connections while everything goes on."""

import asyncio
import contextlib
import itertools
import random
import time
from pathlib import Path

import psycopg

from tests.fault.audit import audit
from tests.fault.crew import Crew
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.scale import ASKED, scaled
from tests.fault.zygote import Zygote
from tests.servers import PostgresServer
from tests.waiting import certainly, nothing_live, until
from treadle import JobRequest, Queue

BACK_WITHIN_S = 5.0
TOPICS = ["quick", "threaded", "slow", "shaky", "gated"]


def assert_in_time(seconds: float) -> None:
    """Only in the full form: the short one runs beside other tests, and `until` bounds it."""
    assert ASKED == "short" or seconds < BACK_WITHIN_S


class Client:
    """Enqueues with keys, batch after batch, and asks again whenever it got no answer."""

    def __init__(self, queue: Queue, chance: random.Random) -> None:
        self.acknowledged: dict[str, str] = {}
        self._queue = queue
        self._chance = chance
        self._numbers = itertools.count()

    async def enqueue(self, count: int) -> None:
        while count > 0:
            batch = [self._request(next(self._numbers)) for _ in range(min(count, 20))]
            jobs = await certainly(self._queue.enqueue_many, batch, max_attempts=50)
            for request, job in zip(batch, jobs, strict=True):
                self.acknowledged[(request.options or {})["idempotency_key"]] = job.id
            count -= len(batch)

    def _request(self, number: int) -> JobRequest:
        topic = self._chance.choice(TOPICS)
        return JobRequest(topic, {"key": number % 5, "ms": 5}, {"idempotency_key": f"key-{number}"})


class Outages:
    def __init__(
        self, server: PostgresServer, database: str, crew: Crew, client: Client, chance: random.Random
    ) -> None:
        self._server = server
        self._database = database
        self._crew = crew
        self._client = client
        self._chance = chance
        self.back_after_s: list[float] = []

    async def happen(self, kind: str) -> None:
        if kind == "terminate":
            return await asyncio.to_thread(self._terminate_one)
        if kind == "kill9":
            await asyncio.to_thread(self._server.kill9)
            await asyncio.to_thread(self._server.start)
        else:
            await asyncio.to_thread(self._server.restart, kind)  # type: ignore[arg-type]
        await self._working_again(time.time_ns())

    def _terminate_one(self) -> None:
        with contextlib.closing(psycopg.connect(self._server.url(), autocommit=True)) as connection:
            mine = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() ORDER BY pid"
            pids = [row[0] for row in connection.execute(mine, [self._database])]
            if pids:
                connection.execute("SELECT pg_terminate_backend(%s)", [self._chance.choice(pids)])

    async def _working_again(self, since_ns: int) -> None:
        journal = self._crew.journal
        size = journal.size
        await self._client.enqueue(5)  # or there may be nothing left to do
        first = await until(lambda: journal.entries("done", since=size), 60, self._crew.tails)
        self.back_after_s.append((first[0].at_ns - since_ns) / 1e9)


async def outlive(server: PostgresServer, kinds: list[str], jobs: int, folder: Path, zygote: Zygote) -> list[float]:
    """Let all of these happen while jobs are enqueued and done; nothing may be lost."""
    chance = random.Random(22)
    chance.shuffle(kinds)
    with server.database() as name:
        crew = Crew(server.url(name), folder, zygote)
        try:
            for _ in range(2):
                crew.hire(lease="5s")
            async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
                client = Client(queue, chance)
                outages = Outages(server, name, crew, client, chance)
                await until(lambda: _both_work(crew, client), 60, crew.tails, every=0.05)
                for kind in kinds:
                    enqueuing = asyncio.create_task(client.enqueue(jobs // len(kinds)))
                    await outages.happen(kind)
                    await enqueuing
                await until(lambda: nothing_live(queue), 120, crew.tails, every=0.1)
                await crew.dismiss()
                ledger = await audit(queue, crew.journal, expected=client.acknowledged.values(), lost=crew.lost())
                assert {row.key for row in ledger.jobs.values()} == client.acknowledged.keys()
                assert len(ledger.with_status("completed")) == len(client.acknowledged)
                print(
                    f"\n{len(kinds)} outages, {len(ledger.jobs)} jobs, {ledger.count('job:reclaimed')} reclaimed, "
                    f"{ledger.count('job:released')} released; back after at most {max(outages.back_after_s):.2f} s"
                )
        finally:
            crew.kill_all()
    return outages.back_after_s


async def _both_work(crew: Crew, client: Client) -> bool:
    """Each has done something, because one that is still starting when the server goes away rightly gives up."""
    await client.enqueue(1)
    return len({entry.pid for entry in crew.journal.entries("done")}) == 2


async def test_restarts_and_broken_connections_lose_nothing(
    own_postgres: PostgresServer, tmp_path: Path, zygote: Zygote
) -> None:
    restarts, terminated = scaled(2, 50), scaled(10, 200)
    kinds = [("fast", "immediate")[number % 2] for number in range(restarts)] + ["terminate"] * terminated
    back = await outlive(own_postgres, kinds, scaled(500, 50_000), tmp_path, zygote)
    assert len(back) == restarts
    assert_in_time(max(back))


async def test_a_killed_server_comes_back_with_every_acknowledged_job(
    own_postgres: PostgresServer, tmp_path: Path, zygote: Zygote
) -> None:
    (back,) = await outlive(own_postgres, ["kill9"], scaled(100, 1_000), tmp_path, zygote)
    assert_in_time(back)


async def test_work_goes_on_soon_after_a_long_outage(
    own_postgres: PostgresServer, tmp_path: Path, zygote: Zygote
) -> None:
    """Waiting callers wait longer each time, but never so long that the target is missed."""
    with own_postgres.database() as name:
        crew = Crew(own_postgres.url(name), tmp_path, zygote)
        try:
            async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
                for _ in range(3):
                    crew.hire(lease="30s", topics="quick")
                await queue.enqueue("quick")
                await until(lambda: crew.journal.entries("done"), 60, crew.tails)
                own_postgres.stop("fast")
                await asyncio.sleep(scaled(6, 40))  # the outage itself
                own_postgres.start()
                back = time.monotonic()
                job = await queue.enqueue("quick")
                await until(lambda: job.id in crew.journal.by_job("done"), 60, crew.tails)
                waited = time.monotonic() - back
                await crew.dismiss()
        finally:
            crew.kill_all()
    assert_in_time(waited)
