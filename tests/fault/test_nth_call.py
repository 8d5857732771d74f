"""A fault at the n-th store call of a worker and a client, for every n, before and after the commit.

"After" is the hard case: the claim, the ending or the enqueue has happened, and its caller does not know.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fault.audit import audit
from tests.fault.flaky import Calls, Fault
from tests.fault.handlers import add_handlers
from tests.fault.journal import Journal, Pen
from tests.fault.scale import stride
from tests.faulty import FaultyQueue
from tests.servers import PostgresServer
from tests.waiting import certainly, until
from treadle import Job, Queue, Worker
from treadle.model.errors import WrongState

AT_ONCE = 12
STEP = stride(10, 1)
"""Every n in the long form, some of them in the short one."""
MUST_FAIL_ONCE = {"insert", "claim", "settle", "renew", "open_lease", "promote", "touch", "elect", "templates"}


@pytest.fixture(params=["sqlite", "postgres"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Makes databases, as many as asked for."""

    @contextlib.asynccontextmanager
    async def make(number: int) -> AsyncIterator[tuple[str, Path]]:
        folder = tmp_path / str(number)
        folder.mkdir()
        if request.param == "sqlite":
            yield f"sqlite:///{folder / 'jobs.db'}", folder
            return
        server: PostgresServer = request.getfixturevalue("postgres_server")
        name = f"fault_{id(request)}_{number}"
        url = await asyncio.to_thread(server.create_database, name)
        try:
            yield url, folder
        finally:
            await asyncio.to_thread(server.drop_database, name)

    return make


async def test_no_call_may_fail_in_a_way_that_breaks_an_invariant(fresh: Any) -> None:
    async with fresh(0) as (url, folder):
        calls = await scenario(url, folder)
    total = len(calls.made)
    faults = [Fault(n, when) for n in range(1, total + 1, STEP) for when in ("before", "after")]
    faults += [Fault(n, when, lasts=5) for n in range(2, total + 1, 2 * STEP) for when in ("before", "after")]
    failed: Counter[str] = Counter()
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, fault: Fault) -> None:
        async with limit, fresh(number) as (url, folder):
            try:
                calls = await scenario(url, folder, fault)
            except BaseException as error:
                error.add_note(f"{fault} in {folder}")
                raise
            failed.update(calls.failed)

    async with asyncio.TaskGroup() as group:
        for number, fault in enumerate(faults, start=1):
            group.create_task(one(number, fault))
    print(f"\n{len(faults)} faults in {total} calls: {dict(failed)}")
    assert set(failed) >= MUST_FAIL_ONCE or STEP > 1, MUST_FAIL_ONCE - set(failed)


async def scenario(url: str, folder: Path, fault: Fault | None = None, sober_url: str | None = None) -> Calls:
    """A client and a worker that go on in spite of the fault, then an audit of the result without faults."""
    calls = Calls(fault)
    journal = Journal(folder / "journal")
    queue = add_handlers(FaultyQueue(url, calls.make), Pen(journal.path, "worker"))
    working = asyncio.create_task(work(queue))
    jobs = await enqueue_all(queue)
    stopped = await certainly(queue.enqueue, "patient", {}, idempotency_key="stopped", max_attempts=20)
    await until(lambda: stopped.id in journal.by_job("start"), 60, lambda: f"{fault}: {calls.failed}")
    with contextlib.suppress(WrongState):
        await certainly(queue.cancel, stopped.id, "enough")
    async with Queue(sober_url or url) as sober:
        jobs.append(stopped)
        await until(lambda: all_ended(sober, jobs), 60, lambda: f"{fault}: {calls.failed}", every=0.05)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await queue.close()
        await audit(sober, journal, expected={job.id for job in jobs}, lost={"worker"})
        ends = Counter(str(job.status) for job in await sober.list(limit=100))
        # Stopped, unless its lease was lost in between and its next attempt was faster than the cancel.
        assert ends["completed"] >= len(jobs) - 1, ends
        assert ends["completed"] + ends["cancelled"] == len(jobs), ends
    return calls


QUICK: dict[str, Any] = {"lease": "1s", "reap_interval": "100ms", "poll_interval": "100ms"}


async def work(queue: Queue) -> None:
    """A worker that is started again when it could not start."""
    while True:
        await certainly(lambda: Worker(queue, name="worker", slots=3, **QUICK).run())


async def enqueue_all(queue: Queue) -> list[Job]:
    requests: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("quick", {}, {}),
        ("quick", {}, {"delay": "150ms"}),
        ("threaded", {}, {}),
        ("slow", {"ms": 400}, {}),
        ("doomed", {}, {}),
        ("gated", {"key": 1}, {}),
        ("gated", {"key": 1}, {}),
        ("gated", {"key": 1}, {}),
    ]
    return [
        await certainly(queue.enqueue, topic, payload, idempotency_key=f"job-{number}", max_attempts=20, **options)
        for number, (topic, payload, options) in enumerate(requests)
    ]


async def all_ended(queue: Queue, jobs: Sequence[Job]) -> bool:
    return all(job is not None and job.ended for job in await queue.store.get([job.id for job in jobs]))
