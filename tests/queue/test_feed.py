"""The events of every job, live, in process."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.faulty import faulty
from tests.queue.hands import Hands, eventually
from tests.waiting import give_way
from treadle import Queue, StoreUnavailable
from treadle.events import feed
from treadle.events.feed import Feed, FeedStopped, Listener
from treadle.events.ring import Ring
from treadle.model.fields import JSON_NAMES
from treadle.store.views import Listing


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


@pytest.fixture
async def events(queue: Queue) -> AsyncIterator[Feed]:
    events = Feed(queue)
    yield events
    await events.stop()


async def heard(listener: Listener, count: int, seconds: float = 10) -> list[tuple[str, str]]:
    """The next `count` events: (name, job)."""
    told: list[tuple[str, str]] = []
    async with asyncio.timeout(seconds):
        while len(told) < count:
            one = await listener.next()
            assert one
            told.append((one.event.removeprefix("job:"), one.facts.get("id", "")))
    return told


async def nothing_more(listener: Listener) -> bool:
    return await listener.next(timeout=0.3) is None


async def test_a_job_from_beginning_to_end(queue: Queue, events: Feed) -> None:
    listener = await events.listener()
    job = await queue.enqueue("mail", {"to": "ann"})
    await Hands(queue).do(job, {"sent": 1})
    assert await heard(listener, 3) == [("enqueued", job.id), ("started", job.id), ("completed", job.id)]
    assert await nothing_more(listener)


async def test_what_an_event_looks_like(queue: Queue, events: Feed) -> None:
    listener = await events.listener()
    job = await queue.enqueue("mail", {"to": "ann"})
    told = await listener.next(10)
    assert told
    assert told.event == "job:enqueued"
    assert told.payload.keys() == {"event", "at", "job"}
    assert told.payload["event"] == "job:enqueued"
    assert told.payload["at"] == told.payload["job"]["createdAt"]
    assert told.payload["job"].keys() == JSON_NAMES
    assert (told.payload["job"]["id"], told.payload["job"]["payload"]) == (job.id, {"to": "ann"})


async def test_a_deleted_job_is_named_by_its_id(queue: Queue, events: Feed) -> None:
    job = await queue.enqueue("mail", scope="user", scope_id="ann")
    listener = await events.listener(match=lambda job: job["scopeId"] == "ann")
    await queue.delete(job.id)
    told = await listener.next(10)
    assert told
    assert dict(told.payload) == {"event": "job:deleted", "at": told.payload["at"], "deletedJobId": job.id}


async def test_each_listener_hears_what_matches(queue: Queue, events: Feed) -> None:
    everything = await events.listener()
    mail = await events.listener(match=lambda job: job["topic"] == "mail")
    a, b = await queue.enqueue("mail"), await queue.enqueue("report")
    assert await heard(everything, 2) == [("enqueued", a.id), ("enqueued", b.id)]
    assert await heard(mail, 1) == [("enqueued", a.id)]
    assert await nothing_more(mail)


async def test_it_goes_on_where_a_reader_left(queue: Queue, events: Feed) -> None:
    listener = await events.listener()
    jobs = [await queue.enqueue("mail") for _ in range(6)]
    first = await listener.next(10)
    assert first
    await listener.close()
    again = await events.listener(after=first.id)
    assert await heard(again, 5) == [("enqueued", job.id) for job in jobs[1:]]


async def test_after_an_unknown_event_comes_a_resync(queue: Queue, events: Feed) -> None:
    for after in (0, -1, 12345, 2**63):
        listener = await events.listener(after=after)
        told = await listener.next(1)
        assert told
        assert told.event == "resync"
        job = await queue.enqueue("mail")
        assert await heard(listener, 1) == [("enqueued", job.id)]


async def test_who_is_too_slow_gets_a_resync(queue: Queue, events: Feed) -> None:
    events._ring = Ring(most=10)
    slow, quick = await events.listener(), await events.listener()
    await queue.enqueue_many("mail", [{}] * 5)
    await heard(quick, 5)
    await queue.enqueue_many("mail", [{}] * 8)
    assert {name for name, _ in await heard(quick, 8)} == {"enqueued"}
    told = await slow.next(1)
    assert told
    assert told.event == "resync"
    last, jobs = await slow.snapshot(Listing(limit=100))
    assert len(jobs) == 13
    assert last == slow.behind
    assert await nothing_more(slow)


async def test_a_snapshot_and_what_follows(queue: Queue, events: Feed) -> None:
    before = [await queue.enqueue("mail") for _ in range(3)]
    listener = await events.listener()
    meanwhile = await queue.enqueue("mail")
    _, jobs = await listener.snapshot(Listing(limit=100))
    assert {job.id for job in jobs} == {job.id for job in [*before, meanwhile]}
    after = await queue.enqueue("mail")
    assert await heard(listener, 1) == [("enqueued", after.id)]


async def test_a_snapshot_of_one_job(queue: Queue, events: Feed) -> None:
    job = await queue.enqueue("mail")
    await queue.enqueue("mail")
    listener = await events.listener()
    _, jobs = await listener.snapshot([job.id])
    assert [one.id for one in jobs] == [job.id]


async def test_thousands_of_events_in_order(queue: Queue, events: Feed) -> None:
    listener = await events.listener()
    jobs = await queue.enqueue_many("mail", [{"n": n} for n in range(2500)])
    assert await heard(listener, 2500, seconds=60) == [("enqueued", job.id) for job in jobs]


async def test_what_another_queue_does_is_heard(queue: Queue, events: Feed, url: str) -> None:
    listener = await events.listener()
    async with Queue(url) as other:
        job = await other.enqueue("mail")
        await Hands(other).do(job)
    assert await heard(listener, 3) == [("enqueued", job.id), ("started", job.id), ("completed", job.id)]


async def test_it_reads_only_while_it_has_listeners(
    queue: Queue, events: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LINGER_S", 0.0)
    assert events._follower is None
    listener = await events.listener()
    assert events._follower
    await listener.close()
    await listener.close()
    await queue.enqueue("mail")
    await eventually(lambda: events._follower is None)
    again = await events.listener()
    job = await queue.enqueue("mail")
    assert await heard(again, 1) == [("enqueued", job.id)]


async def test_a_stop_ends_all_who_listen(queue: Queue, events: Feed) -> None:
    listeners = [await events.listener() for _ in range(3)]
    waiting = [asyncio.create_task(listener.next()) for listener in listeners]
    await give_way()
    await events.stop()
    for task in waiting:
        with pytest.raises(FeedStopped):
            await task
    with pytest.raises(FeedStopped):
        await listeners[0].snapshot(Listing())
    again = await events.listener()
    job = await queue.enqueue("mail")
    assert await heard(again, 1) == [("enqueued", job.id)]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ZeroDivisionError("a bug")])
async def test_when_the_store_is_away_nothing_is_lost(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(feed, "ERROR_PAUSE_S", 0.01)
    faults = faulty(queue)
    events = Feed(queue)
    listener = await events.listener()
    failures = faults.fail("changes", 3, error)
    job = await queue.enqueue("mail")
    assert await heard(listener, 1) == [("enqueued", job.id)]
    assert not failures.left
    await events.stop()


async def test_who_is_far_behind_starts_anew(queue: Queue, events: Feed) -> None:
    listener = await events.listener()
    async with events._reading:
        events._fresh_at = time.monotonic() - feed.BEHIND_S - 1
    told = await listener.next(10)
    assert told
    assert told.event == "resync"
    job = await queue.enqueue("mail")
    assert await heard(listener, 1) == [("enqueued", job.id)]


async def test_listen_gives_them_one_by_one(queue: Queue, events: Feed) -> None:
    async def collect() -> list[str]:
        return [told.event async for told in events.listen(match=lambda job: job["topic"] == "mail")]

    collecting = asyncio.create_task(collect())
    await eventually(lambda: events._follower is not None)
    job = await queue.enqueue("mail")
    await queue.enqueue("other")
    await queue.cancel(job.id)
    listener = await events.listener()
    await queue.enqueue("other")
    await heard(listener, 1)
    await events.stop()
    assert await collecting == ["job:enqueued", "job:cancelled"]
    assert events._listeners == 1
