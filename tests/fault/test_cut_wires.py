"""Fault 23: the connection is lost at any request, also at a COMMIT. The outcome is read again, never assumed."""

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from uuid_utils import uuid7

from tests.fault.audit import in_order
from tests.fault.proxy import Cut, Proxy
from tests.fault.scale import stride
from tests.fault.test_nth_call import scenario
from tests.waiting import until
from treadle import Queue, Worker
from treadle.model.errors import KeyReused, StoreUnavailable
from treadle.model.fields import Given
from treadle.store.values import Inserted, NewJob


def new_job(key: str | None = None, payload: str = "{}") -> NewJob:
    return NewJob(str(uuid7()), "quick", payload, given=Given(idempotency_key=key))


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name.lower())
async def test_an_answered_enqueue_is_stored_for_every_cut_of_the_wire(postgres_url: str, cut: Cut) -> None:
    async with Queue(postgres_url) as sober:
        first = new_job("taken")
        await sober.store.insert([first])
        answers: Counter[str] = Counter()
        for nth in itertools.count(1):
            jobs = [new_job("taken"), new_job(), new_job(f"key-{nth}"), new_job("taken", '{"another": 1}')]
            async with Proxy(postgres_url).listening() as proxy, Queue(proxy.url) as cautious:
                await cautious.store.insert([new_job()])  # it has a connection, which will break
                proxy.cut_next(nth, cut)
                try:
                    given = await cautious.store.insert(jobs, atomic=False)
                except StoreUnavailable:
                    answers["unavailable"] += 1
                else:
                    answers["answered"] += 1
                    await _as_answered(sober, first.id, jobs, given)
                if proxy.requests < proxy.cut_at:
                    break
        assert answers["answered"] > 5, answers
        await in_order(sober)


async def _as_answered(sober: Queue, taken: str, jobs: list[NewJob], given: list[Any]) -> None:
    again, plain, keyed, refused = given
    assert again == Inserted(again.at, taken)
    assert isinstance(refused, KeyReused)
    there = [job is not None for job in await sober.store.get([job.id for job in jobs])]
    assert there == [False, plain.existing_id is None, keyed.existing_id is None, False]
    assert there[1:3] == [True, True]


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name.lower())
async def test_opening_a_queue_succeeds_or_says_that_the_store_is_unavailable(postgres_url: str, cut: Cut) -> None:
    async with Queue(postgres_url):
        pass
    unavailable = 0
    for nth in itertools.count(1):
        async with Proxy(postgres_url).listening() as proxy:
            proxy.cut_next(nth, cut)
            try:
                async with Queue(proxy.url) as queue:
                    await queue.stats()
            except StoreUnavailable:
                unavailable += 1
            if proxy.requests < proxy.cut_at:
                break
    assert unavailable > 3


async def test_a_worker_goes_on_after_every_cut_of_its_wire(postgres_server: Any, tmp_path: Path) -> None:
    with postgres_server.database() as name:
        async with Proxy(postgres_server.url(name)).listening() as proxy:
            await scenario(proxy.url, tmp_path, sober_url=postgres_server.url(name))
            total = proxy.requests
    step = stride(80, 4)
    limit = asyncio.Semaphore(12)

    async def one(number: int, nth: int, cut: Cut) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        name = f"wire_{number}"
        async with limit:
            url = await asyncio.to_thread(postgres_server.create_database, name)
            async with Proxy(url).listening() as proxy:
                proxy.cut_next(nth, cut)
                try:
                    await scenario(proxy.url, folder, sober_url=url)
                except BaseException as error:
                    error.add_note(f"request {nth} of {total}: {cut.value}")
                    raise
            await asyncio.to_thread(postgres_server.drop_database, name)

    cuts = [(nth, cut) for nth in range(1, total, step) for cut in Cut]
    async with asyncio.TaskGroup() as group:
        for number, (nth, cut) in enumerate(cuts):
            group.create_task(one(number, nth, cut))
    print(f"\n{len(cuts)} cuts in {total} requests")


async def test_a_claim_that_commits_after_its_worker_gave_it_up_is_not_stuck(postgres_url: str) -> None:
    """The wire breaks while the claim waits in the server: the worker asks, finds nothing, and then it commits."""
    done = asyncio.Event()
    async with Queue(postgres_url) as sober, Proxy(postgres_url).listening() as proxy:
        queue = Queue(proxy.url)

        @queue.job
        async def touching() -> None:
            done.set()

        async with queue:
            # Long enough to outlive the blocker, which also stops its renewal: the claim needs a lease in time.
            worker = Worker(queue, lease="20s", poll_interval="100ms", maintenance=False)
            working = asyncio.create_task(worker.run())
            await sober.enqueue("touching")
            await until(done.is_set)  # from now on it claims; before, it may wait for other locks
            done.clear()
            with psycopg.connect(postgres_url) as blocker, psycopg.connect(postgres_url, autocommit=True) as look:
                blocker.execute("SELECT 1 FROM treadle.leases FOR UPDATE")
                await sober.enqueue("touching")
                await until(lambda: _waits(look, "treadle.token"))
                proxy.sever()
                await until(lambda: worker.metrics.store_errors)
                await asyncio.sleep(0.3)  # time enough to ask
                assert _waits(look, "treadle.token")
            await until(done.is_set)
            worker.stop()
            await working


def _waits(connection: psycopg.Connection, what: str) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ %s"
    row = connection.execute(waiting, [what]).fetchone()
    return bool(row and row[0])
