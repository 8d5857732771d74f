"""Retention in workers: stale jobs are told, topics with hooks are left to processes that have them."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.faulty import Around, FaultyQueue
from tests.waiting import give_way, until
from tests.worker.conftest import Start
from treadle import InvalidInput, Job, Queue
from treadle.maintenance import Retention
from treadle.maintenance.hook_calls import HookCalls
from treadle.maintenance.hooked_retention import HookedRetention
from treadle.queue.handlers.retention_hooks import Registration, forget, registered
from treadle.store.views import Listing

pytestmark = pytest.mark.every_store

MINUTE_MS = 60_000


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endings count as committed, and a hook that failed is called again in the next pass."""
    monkeypatch.setattr("treadle.maintenance.retention.COMMITTED_MS", 0)
    monkeypatch.setattr("treadle.maintenance.hooked_retention.FIRST_PAUSE_S", 0)
    monkeypatch.setattr("treadle.queue.runtime_settings.READ_EVERY_S", -1)


async def cancelled(queue: Queue, topic: str, count: int = 1) -> list[Job]:
    jobs = [await queue.enqueue(topic) for _ in range(count)]
    for job in jobs:
        await queue.cancel(job.id)
    now = await queue.store.now()

    async def passed() -> bool:
        return await queue.store.now() > now + 1

    await until(passed)
    return jobs


async def stale_at_once(queue: Queue, delete_after_ms: int = MINUTE_MS) -> None:
    await queue.site.change({"stale_after_ms": 0, "delete_after_ms": delete_after_ms})


async def elected(queue: Queue, calls: HookCalls | None = None) -> HookedRetention:
    """The part of a process with hooks, once it is elected for all of them."""
    hooked = HookedRetention(queue, "w", 60_000, calls)

    async def holds() -> bool:
        task = asyncio.create_task(hooked.tick())
        held = await _has(lambda: len(hooked._holds()) == len(queue.retention_hooks.registrations), task)
        task.cancel()
        await asyncio.wait([task])
        return held

    await until(holds)
    return hooked


async def _has(condition: Callable[[], bool], task: asyncio.Task[None]) -> bool:
    for _ in range(200):
        if condition() or task.done():
            break
        await asyncio.sleep(0.01)  # until it is so, or the task has ended
    return condition()


async def left(queue: Queue, topic: str) -> int:
    return await queue.store.count(Listing(topic=topic))


# -- the event -------------------------------------------------------------------------------------


async def test_listeners_hear_once_that_a_job_is_stale(queue: FaultyQueue, start: Start) -> None:
    heard: list[tuple[str, str]] = []

    async def listen() -> None:
        async for told in queue.stream():
            if told["event"] in ("job:stale", "job:deleted"):
                heard.append((told["event"], told["job"]["id"]))

    task = asyncio.create_task(listen())
    await give_way()
    (job,) = await cancelled(queue, "mail")
    await stale_at_once(queue)
    retention = Retention(queue.store, queue.site)
    assert await retention.mark() == "1 stale now"
    assert await retention.mark() == "nothing to mark"
    assert await Retention(queue.store, queue.site).mark() == "nothing to mark", "another leader"
    await until(lambda: heard == [("job:stale", job.id)])
    (other,) = await cancelled(queue, "mail")
    await Retention(queue.store, queue.site).mark()
    await until(lambda: len(heard) == 2)
    assert heard[1] == ("job:stale", other.id)
    task.cancel()


async def test_a_worker_tells_it_by_itself(queue: FaultyQueue, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.maintenance.duties.MARK_EVERY_S", 0.05)
    (job,) = await cancelled(queue, "mail")
    await stale_at_once(queue)
    await start(queue)

    async def marked() -> bool:
        return ("mail", "cancelled") in await queue.store.stale_marks()

    await until(marked)
    assert "job:stale" in [event.type for event in await queue.events(job.id)]


async def test_a_job_is_kept_as_long_as_its_topic_and_its_status_say(queue: FaultyQueue) -> None:
    for topic in ("mail", "log", "other"):
        await cancelled(queue, topic, 2)
    await queue.site.change(
        {
            "stale_after_ms": 0,
            "delete_after_ms": MINUTE_MS,
            "by_status": {"cancelled": {"delete_after_ms": 0}},
            "by_topic": {"mail": {"stale_after_ms": MINUTE_MS}, "log": {"delete_after_ms": MINUTE_MS}},
        }
    )
    assert await Retention(queue.store, queue.site).prune() == "2 deleted"
    assert [await left(queue, topic) for topic in ("mail", "log", "other")] == [2, 2, 0]


async def test_a_template_says_how_long_its_jobs_are_kept(queue: FaultyQueue) -> None:
    @queue.job(retention={"stale_after": "0s", "delete_after": "0s"})
    async def short() -> None: ...

    @queue.job(retention={"delete_after": "100d"})
    async def longer() -> None: ...

    await queue.save_templates()
    await cancelled(queue, "short")
    await cancelled(queue, "longer")
    await cancelled(queue, "other")
    assert await Retention(queue.store, queue.site).prune() == "1 deleted"
    await queue.site.change({"stale_after_ms": 0, "delete_after_ms": 0})
    assert await Retention(queue.store, queue.site).prune() == "1 deleted", "of the topic without a template"
    await queue.site.change({"by_topic": {"longer": {"delete_after_ms": 0}}})
    assert await Retention(queue.store, queue.site).prune() == "1 deleted", "an operator has the last word"


async def test_many_jobs_are_walked_through_in_small_spans(queue: FaultyQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.maintenance.ended_walk.BATCH", 3)
    monkeypatch.setattr("treadle.maintenance.retention.PAUSE_S", 0)
    for _ in range(4):
        await cancelled(queue, "mail", 5)
    await cancelled(queue, "kept", 5)
    await stale_at_once(queue, 0)
    await queue.site.change({"by_topic": {"kept": {"delete_after_ms": 10**9}}})
    retention = Retention(queue.store, queue.site)
    assert await retention.mark() == "25 stale now"
    assert await retention.delete() == 20
    assert await left(queue, "kept") == 5


# -- hooks -----------------------------------------------------------------------------------------


async def test_a_hook_gets_the_job_before_it_is_deleted(queue: FaultyQueue) -> None:
    seen: list[tuple[str, str, int]] = []

    @queue.on_delete("mail")
    async def gone(job: Job) -> None:
        seen.append(("async", job.id, await left(queue, "mail")))

    @queue.on_delete()
    def gone_too(job: Job) -> None:
        seen.append((threading.current_thread().name, job.id, 0))

    (job,) = await cancelled(queue, "mail")
    (other,) = await cancelled(queue, "other")
    await stale_at_once(queue, 0)
    hooked = await elected(queue)
    assert await hooked.delete() == 2
    assert sorted(seen) == sorted(
        [("treadle-gone_too", job.id, 0), ("async", job.id, 1), ("treadle-gone_too", other.id, 0)]
    )
    assert await queue.count() == 0


async def test_a_leader_without_the_hook_never_deletes_or_marks_these(queue: FaultyQueue, url: str) -> None:
    @queue.on_delete("mail")
    @queue.on_stale("mail")
    def hook(job: Job) -> None: ...

    await cancelled(queue, "mail")
    await cancelled(queue, "other")
    await stale_at_once(queue, 0)
    hooked = await elected(queue)
    async with Queue(url) as plain:
        leader = Retention(plain.store, plain.site)
        await leader.prune()
        assert [await left(queue, topic) for topic in ("mail", "other")] == [1, 0]
        assert set(await plain.store.stale_marks()) == {("other", "cancelled")}
        await hooked.mark()
        await hooked.delete()
        assert await queue.count() == 0
        await cancelled(queue, "mail")
        for one in queue.retention_hooks.registrations:
            assert await forget(plain.store, one)
        await leader.prune()
        assert await queue.count() == 0, "an operator let everybody delete them"


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_hook_that_raises_anything_keeps_the_job_and_is_tried_again(
    queue: FaultyQueue, error: BaseException, kind: str
) -> None:
    errors: list[BaseException] = [error]

    def fail() -> None:
        if errors:
            raise errors.pop()

    async def gone(job: Job) -> None:
        fail()

    def gone_sync(job: Job) -> None:
        fail()

    queue.on_delete("mail")(gone if kind == "async" else gone_sync)
    await cancelled(queue, "mail")
    await stale_at_once(queue, 0)
    hooked = await elected(queue)
    assert await hooked.delete() == 0
    assert await left(queue, "mail") == 1
    assert await hooked.delete() == 1
    assert await left(queue, "mail") == 0


@pytest.mark.parametrize("kind", ["async", "sync", "stubborn"])
async def test_a_hook_that_hangs_holds_up_nobody(queue: FaultyQueue, kind: str) -> None:
    release = threading.Event()
    seen: list[str] = []

    @queue.on_delete("slow")
    async def hang(job: Job) -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(3600)  # until it is cancelled
            except asyncio.CancelledError:
                if kind == "async":
                    raise

    def hang_sync(job: Job) -> None:
        release.wait(60)

    if kind == "sync":
        queue.retention_hooks._hooks[Registration("on_delete", "slow")] = [hang_sync]

    @queue.on_delete("quick")
    def quick(job: Job) -> None:
        seen.append(job.id)

    await cancelled(queue, "slow", 20)
    await cancelled(queue, "quick", 20)
    await stale_at_once(queue, 0)
    hooked = await elected(queue, HookCalls(timeout_s=0.05))
    assert await hooked.delete() == 20
    assert len(seen) == 20
    assert await left(queue, "slow") == 20
    release.set()
    await asyncio.sleep(0)  # a turn of the loop


async def test_a_failing_stale_hook_holds_up_its_own_kind_only_and_not_for_ever(
    queue: FaultyQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.maintenance.ended_walk.BATCH", 2)
    monkeypatch.setattr("treadle.maintenance.retention.PAUSE_S", 0)
    first = await cancelled(queue, "mail")
    others = await cancelled(queue, "mail", 5)
    await cancelled(queue, "log", 3)
    calls: list[str] = []

    @queue.on_stale()
    async def fails(job: Job) -> None:
        calls.append(job.id)
        if job.id == first[0].id:
            raise RuntimeError("no")

    await stale_at_once(queue)
    hooked = await elected(queue)
    assert await hooked.mark() == "3 stale now"
    for _ in range(3):
        assert await hooked.mark() == "nothing to mark"
    assert await hooked.mark() == "6 stale now"
    assert calls.count(first[0].id) == 5
    assert {job.id for job in others} <= set(calls)


async def test_a_job_is_not_deleted_before_its_stale_hook_was_called(queue: FaultyQueue) -> None:
    order: list[str] = []

    @queue.on_stale("mail")
    def stale(job: Job) -> None:
        order.append("stale")

    await cancelled(queue, "mail")
    await stale_at_once(queue, 0)
    hooked = await elected(queue)
    leader = Retention(queue.store, queue.site)
    assert await leader.delete() == 0
    await hooked.mark()
    assert await leader.delete() == 1
    assert order == ["stale"]


async def test_no_hook_is_called_for_a_job_whose_webhook_is_still_to_be_sent(queue: FaultyQueue) -> None:
    calls: list[str] = []

    @queue.on_delete("mail")
    def hook(job: Job) -> None:
        calls.append(job.id)

    kept = await queue.enqueue("mail", webhook_url="https://example.com/hook")
    await queue.cancel(kept.id)
    (gone,) = await cancelled(queue, "mail")
    await stale_at_once(queue, 0)
    hooked = await elected(queue)
    assert await hooked.delete() == 1
    assert calls == [gone.id]
    assert (await queue.get(kept.id)).status == "cancelled"


async def test_one_of_two_processes_with_the_hook_calls_it_and_the_other_follows(queue: FaultyQueue, url: str) -> None:
    calls: list[str] = []

    def hook(job: Job) -> None:
        calls.append(job.id)

    async with Queue(url) as other:
        for one in (queue, other):
            one.on_delete("mail")(hook)
        await cancelled(queue, "mail", 10)
        await stale_at_once(queue, 0)
        first = await elected(queue)
        second = HookedRetention(other, "v", 60_000)
        task = asyncio.create_task(second.tick())
        await give_way()
        deleted = await asyncio.gather(first.delete(), second.delete())
        assert list(deleted) == [10, 0]
        task.cancel()
        await first.resign()
        await cancelled(queue, "mail", 2)
        second = await elected(other)
        assert await second.delete() == 2
    assert len(calls) == 12


async def test_a_job_that_is_requeued_while_its_hook_runs_is_kept(queue: FaultyQueue) -> None:
    @queue.on_delete("mail")
    async def requeued(job: Job) -> None:
        await queue.requeue(job.id)

    (job,) = await cancelled(queue, "mail")
    await stale_at_once(queue, 0)
    hooked = await elected(queue)
    assert await hooked.delete() == 0
    assert (await job.refresh()).status == "pending"


async def test_a_crash_between_the_hook_and_the_deletion_calls_it_again(queue: FaultyQueue) -> None:
    calls: list[str] = []

    @queue.on_delete("mail")
    def hook(job: Job) -> None:
        calls.append(job.id)

    async def dies(prune: Around, *arguments: Any) -> Any:
        raise ConnectionError("killed")

    (job,) = await cancelled(queue, "mail")
    await stale_at_once(queue, 0)
    hooked = await elected(queue)
    queue.faults.around("prune", dies)
    with pytest.raises(ConnectionError):
        await hooked.delete()
    queue.faults.around("prune", lambda prune, *arguments: prune(*arguments))
    assert await hooked.delete() == 1
    assert calls == [job.id, job.id]


async def test_a_worker_with_hooks_calls_them(queue: FaultyQueue, start: Start, url: str) -> None:
    calls: list[str] = []
    async with Queue(url, retention_interval="20ms") as hooked:

        @hooked.on_stale("mail")
        async def stale(job: Job) -> None:
            calls.append(f"stale {job.id}")

        @hooked.on_delete("mail")
        def gone(job: Job) -> None:
            calls.append(f"gone {job.id}")

        (job,) = await cancelled(queue, "mail")
        await stale_at_once(queue, 0)
        await start(hooked)

        async def none_left() -> bool:
            return await left(queue, "mail") == 0

        await until(none_left)
        assert calls == [f"stale {job.id}", f"gone {job.id}"]
        assert (await registered(queue.store)).all == set(hooked.retention_hooks.registrations)


async def test_hooks_that_are_none_are_refused(queue: FaultyQueue) -> None:
    with pytest.raises(InvalidInput, match=r"on_stale: 3 is not a function"):
        queue.on_stale()(3)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match=r"write @queue.on_delete\(\)"):
        queue.on_delete(lambda job: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        queue.on_delete("No Topic")
