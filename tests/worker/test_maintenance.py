"""Maintenance: one leader reaps, expires and prunes for all workers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.faulty import Around, FaultyQueue
from tests.waiting import ended, give_way, in_status, until
from tests.worker.conftest import Start
from treadle import CancelPolicy, Queue
from treadle.maintenance import Leader, Maintenance, Reaper, Retention, Scheduler
from treadle.maintenance.scheduler import LEAST_PAUSE_S
from treadle.model.errors import StoreUnavailable
from treadle.model.settings import Settings
from treadle.queue.background import forever
from treadle.queue.runtime_settings import RuntimeSettings
from treadle.store.values import Wants
from treadle.store.views import Leadership
from treadle.store.wakeups import LATER

pytestmark = pytest.mark.every_store


async def test_one_of_many_leads_and_another_follows_when_it_resigns(queue: Queue) -> None:
    leaders = [Leader(queue.store, name, 60_000) for name in "abc"]
    tasks = {leader: asyncio.create_task(_tick(leader)) for leader in leaders}
    await until(lambda: sum(leader.leads for leader in leaders) == 1)
    first = next(leader for leader in leaders if leader.leads)
    await _end([tasks.pop(first)])
    await first.resign()
    others = [leader for leader in leaders if leader is not first]
    again = [asyncio.create_task(_tick(leader)) for leader in others]
    await until(lambda: sum(leader.leads for leader in others) == 1)
    assert not first.leads
    await _end([*tasks.values(), *again])


async def test_a_leader_that_dies_is_followed_when_its_term_is_over(queue: Queue) -> None:
    first, second = Leader(queue.store, "first", 500), Leader(queue.store, "second", 500)
    task = asyncio.create_task(_tick(first))
    await until(lambda: first.leads)
    await _end([task])
    task = asyncio.create_task(_tick(second))
    await until(lambda: second.leads)
    assert not first.leads
    await _end([task])


async def test_a_leader_that_cannot_reach_the_store_stops_leading_when_its_term_is_over(
    queue: FaultyQueue,
) -> None:
    leader = Leader(queue.store, "lonely", 200)
    task = asyncio.create_task(_tick(leader))
    await until(lambda: leader.leads)
    queue.faults.fail("elect", error=ConnectionError("away"))
    await until(lambda: not leader.leads)
    await asyncio.gather(task, return_exceptions=True)


async def _tick(leader: Leader) -> None:
    while True:
        await leader.tick()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_reaper_takes_back_jobs_of_a_lease_that_ran_out(queue: Queue) -> None:
    job = await queue.enqueue("orphan")
    lease = await queue.store.open_lease("gone", 100)
    await queue.store.claim(lease, Wants(["orphan"], [], 1, 1))
    assert (await job.refresh()).status == "processing"
    reaper = Reaper(queue.store)

    async def reclaimed() -> bool:
        await reaper.sweep()
        return (await job.refresh()).status == "pending"

    await until(reclaimed)
    assert (await job.refresh()).attempt == 1


async def test_the_reaper_knows_the_grace_of_every_topic(queue: Queue, start: Start) -> None:
    @queue.job(cancel=CancelPolicy(grace="100ms"))
    async def short() -> None: ...

    @queue.job(cancel=CancelPolicy(grace="1h"))
    async def long() -> None: ...

    await queue.save_templates()
    jobs = [await short.enqueue(), await long.enqueue()]
    lease = await queue.store.open_lease("busy", 3_600_000)
    await queue.store.claim(lease, Wants(["short", "long"], [], 2, 2))
    for job in jobs:
        await job.cancel()
    reaper = Reaper(queue.store)

    async def cancelled() -> bool:
        await reaper.sweep()
        return (await jobs[0].refresh()).status == "cancelled"

    await until(cancelled)
    assert (await jobs[1].refresh()).status == "cancelling"


async def test_a_pending_job_past_its_deadline_expires_without_any_worker_for_it(queue: Queue, start: Start) -> None:
    job = await queue.enqueue("nobodys", expires="50ms")
    await start(queue, reap_interval="50ms")
    assert (await ended(queue, job)).status == "expired"


async def test_retention_deletes_what_ended_long_ago_and_nothing_else(queue: Queue, start: Start) -> None:
    @queue.job
    async def quick() -> None: ...

    worker = await start(queue)
    done = await quick.enqueue_many([{}] * 5)
    await until(lambda: worker.metrics.completed == 5)
    waiting = await queue.enqueue("other")
    await _keeping(queue, 3_600_000).prune()
    assert await queue.count() == 6
    now = await queue.store.now()
    await until(lambda: _is_after(queue, now + 5))
    await _keeping(queue, 1).prune()
    assert await queue.count() == 1
    assert (await waiting.refresh()).status == "pending"
    assert len(done) == 5


def _keeping(queue: Queue, ms: int) -> Retention:
    return Retention(queue.store, RuntimeSettings(queue.store, Settings(stale_after_ms=0, delete_after_ms=ms)))


async def _is_after(queue: Queue, ms: int) -> bool:
    return await queue.store.now() > ms


async def test_two_workers_of_one_name_never_both_lead(queue: Queue) -> None:
    leaders = [Leader(queue.store, "same", 60_000) for _ in range(3)]
    ticks = [asyncio.create_task(leader.tick()) for leader in leaders]
    await until(lambda: any(leader.leads for leader in leaders))
    await _end(ticks)
    assert sum(leader.leads for leader in leaders) == 1


async def test_only_the_leader_serves(queue: FaultyQueue) -> None:
    sweeps: list[str] = []
    parts = [Maintenance(queue, name, 20) for name in "abc"]

    def note(*arguments: Any) -> None:
        task = asyncio.current_task()
        assert task
        sweeps.append(task.get_name())

    queue.faults.before("reap", note)
    tasks = [
        asyncio.create_task(_forever(step), name=name)
        for part, name in zip(parts, "abc", strict=True)
        for _, step in part.duties()
    ]
    await until(lambda: len(sweeps) >= 10)
    await _end(tasks)
    assert len(set(sweeps)) == 1


async def _forever(step: Any) -> None:
    while True:
        await step()


async def test_the_leader_reports_what_it_did(queue: FaultyQueue) -> None:
    asked: list[int] = []

    async def reap(call: Around, *arguments: Any) -> Any:
        asked.append(1)
        if len(asked) == 1:
            raise StoreUnavailable("the network is down")
        return await call(*arguments)

    queue.faults.around("reap", reap)
    part = Maintenance(queue, "w", 50)
    tasks = [asyncio.create_task(forever(name, step, queue.store.outage)) for name, step in part.duties()]

    async def reported() -> Leadership | None:
        for leader in await queue.store.leaders():
            if any((one.name, one.outcome) == ("reaper", "nothing to take back") for one in leader.duties):
                return leader
        return None

    leader = await until(reported)
    await _end(tasks)
    duties = {one.name: one for one in leader.duties}
    assert leader.worker == "w"
    assert list(duties) == [
        *("reaper", "schedules", "webhooks", "stale", "retention", "operations", "tidying", "audit")
    ]
    assert {one.name: one.every_ms for one in leader.duties} == {
        "reaper": 50,
        "schedules": None,
        "webhooks": None,
        "stale": 10_000,
        "retention": queue.settings.retention_interval_ms,
        "operations": 30_000,
        "tidying": 60_000,
        "audit": 3_600_000,
    }
    for one in leader.duties:
        if one.ended_ms_ago is not None:
            assert one.ended_ms_ago >= 0
            assert one.took_ms is not None
            assert one.took_ms >= 0
            assert not one.failed
    assert duties["retention"].outcome in ("", "nothing to delete")


async def test_a_duty_that_failed_says_so(queue: FaultyQueue) -> None:
    async def tidy(call: Around) -> None:
        raise StoreUnavailable("the network is\x00 down")

    queue.faults.around("tidy", tidy)
    part = Maintenance(queue, "w", 50)
    tasks = [asyncio.create_task(forever(name, step, queue.store.outage)) for name, step in part.duties()]

    async def failed() -> bool:
        return any(
            (one.name, one.failed, one.outcome) == ("tidying", True, "failed, it is tried again: the network is  down")
            for leader in await queue.store.leaders()
            for one in leader.duties
        )

    await until(failed)
    await _end(tasks)


async def test_a_stopped_worker_hands_over_immediately(queue: FaultyQueue, start: Start) -> None:
    elected: list[str] = []

    async def elect(call: Around, name: str, holder: str, *term: Any) -> Any:
        answer = await call(name, holder, *term)
        if answer:
            elected.append(holder.split(maxsplit=1)[0])
        return answer

    queue.faults.around("elect", elect)
    first = await start(queue, name="first", reap_interval="20s", lease="1h")
    await until(lambda: elected == ["first"])
    await start(queue, name="second", reap_interval="100ms")
    first.stop()
    await until(lambda: "second" in elected, 40)  # long before the first one's term of 80 s is over


async def test_recovery_needs_nothing_but_another_worker(queue: Queue, start: Start) -> None:
    @queue.job
    async def quick() -> str:
        return "recovered"

    job = await quick.enqueue()
    lease = await queue.store.open_lease("gone", 300)
    await queue.store.claim(lease, Wants(["quick"], [], 1, 1))
    await in_status(queue, job, "processing")
    await start(queue, lease="1s", reap_interval="100ms")
    assert await job.result("60s") == "recovered"
    assert (await job.refresh()).attempt == 2


async def test_a_scheduler_that_hears_of_a_change_during_its_stop_stops(queue: FaultyQueue) -> None:
    heard: list[Callable[[str], None]] = []

    def subscribe(wake: Callable[[str], None], **_: Any) -> Callable[[], None]:
        heard.append(wake)
        return lambda: None

    queue.faults.subscribe = subscribe
    scheduler = Scheduler(queue)
    waits = asyncio.Event()
    scheduler.fire_due = _then_wait(waits)  # type: ignore[method-assign, assignment]
    # The wake-up takes a few turns of the loop to get through, and the stop may come after any of them.
    for turns in range(6):
        waits.clear()
        step = asyncio.create_task(scheduler.step())
        await waits.wait()
        await asyncio.sleep(2 * LEAST_PAUSE_S)  # an earlier wake-up would be put off
        heard[-1](LATER)
        await give_way(turns)
        if not step.done():
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
            assert step.cancelled(), turns


def _then_wait(waits: asyncio.Event) -> Callable[[], Awaitable[int]]:
    async def fire_due() -> int:
        waits.set()
        return 3_600_000

    return fire_due
