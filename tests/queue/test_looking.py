"""get, list, count, stats, events, why and result."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tests.faulty import Around, faulty
from tests.queue.hands import HOUR_MS, WITHOUT_ZONE, Hands, eventually
from tests.waiting import give_way, until
from treadle import InvalidInput, JobFailed, JobNotFound, Queue, ResultTimeout, Status
from treadle.model.fields import JSON_NAMES
from treadle.model.job import from_ms, rfc3339
from treadle.policy.lifecycle import Failed, Released, RowState, Snoozed, decide
from treadle.store.values import Claimed, Settlement, Touch, Wants
from treadle.testing.workbench import LEASES_ONLY

A_UUID = "01890a5d-ac96-774b-bcce-b302099a8057"
NOBODY = ["", "x", "..", A_UUID, A_UUID.upper(), "%", "' OR 1=1--", "\x00", 5, None]


@pytest.mark.parametrize("id", NOBODY)
async def test_an_unknown_id_is_not_found_by_every_method(queue: Queue, id: Any) -> None:
    await queue.enqueue("mail")
    for call in (
        queue.get(id),
        queue.events(id),
        queue.why(id),
        queue.result(id, timeout="5s"),
        queue.cancel(id),
        queue.requeue(id),
        queue.release(id),
        queue.reschedule(id, priority=1),
        queue.delete(id),
    ):
        with pytest.raises(JobNotFound):
            await call


async def test_a_job_in_json_has_every_field(queue: Queue) -> None:
    data = (await queue.get((await queue.enqueue("mail", {"a": 1})).id)).as_json()
    assert set(data) == JSON_NAMES
    assert (data["status"], data["payload"], data["result"], data["maxRetries"], data["steps"]) == (
        "pending",
        {"a": 1},
        None,
        3,
        [],
    )
    assert data["createdAt"].endswith("Z")


# -- list and count --------------------------------------------------------------------------------------------


async def test_lists_are_newest_first_and_paged(queue: Queue) -> None:
    ids = [job.id for job in await queue.enqueue_many("mail", [{}] * 7)]
    newest = ids[::-1]
    assert [job.id for job in await queue.list()] == newest
    assert [job.id for job in await queue.list(limit=3)] == newest[:3]
    assert [job.id for job in await queue.list(limit=3, offset=3)] == newest[3:6]
    assert [job.id for job in await queue.list(limit=3, offset=6)] == newest[6:]
    assert await queue.list(offset=7) == []


async def test_a_senseless_limit_or_offset_is_clamped(queue: Queue) -> None:
    await queue.enqueue_many("mail", [{}] * 3)
    assert len(await queue.list(limit=-1)) == 1
    assert len(await queue.list(limit=10**30)) == 3
    assert len(await queue.list(offset=-5)) == 3
    assert await queue.list(offset=10**30) == []


async def make_one_of_each(queue: Queue, hands: Hands) -> dict[str, str]:
    """A job in every state, each in a separate topic, so that tests can claim the one they want."""
    made = {"pending": (await queue.enqueue("t_pending")).id, "later": (await queue.enqueue("t_later", delay="1h")).id}
    for name in ("processing", "cancelling", "completed", "failed", "retrying"):
        made[name] = (await queue.enqueue(f"t_{name}")).id
        claimed = await hands.claim_one(f"t_{name}")
        if name == "cancelling":
            await queue.cancel(made[name], "enough")
        elif name == "completed":
            await hands.complete(claimed, {"sent": 1})
        elif name == "failed":
            await hands.fail(claimed)
        elif name == "retrying":
            await hands.fail(claimed, retry_in_ms=60_000)
    made["cancelled"] = (await queue.enqueue("t_cancelled")).id
    await queue.cancel(made["cancelled"])
    made["expired"] = (await queue.enqueue("t_expired", expires="0s")).id
    await queue.store.advance()
    return made


async def test_lists_and_counts_by_every_status(queue: Queue, hands: Hands) -> None:
    made = await make_one_of_each(queue, hands)
    by_status = {
        "pending": {made["pending"], made["later"], made["retrying"]},
        **{name: {made[name]} for name in "processing cancelling completed failed cancelled expired".split()},
        "waiting": set(),
        "stale": set(),
    }
    for status, ids in by_status.items():
        assert {job.id for job in await queue.list(status=status)} == ids, status
        assert await queue.count(status=status) == len(ids), status
    assert {job.id for job in await queue.list()} == set(made.values())
    assert await queue.count() == len(made)
    for status in Status:
        assert {job.id for job in await queue.list(status=status)} == by_status[status.value]


async def test_lists_and_counts_by_topic_and_scope(queue: Queue, hands: Hands) -> None:
    a = await queue.enqueue("mail", scope="user", scope_id="a")
    b = await queue.enqueue("mail", scope="user", scope_id="b")
    c = await queue.enqueue("report", scope="account", scope_id="a")
    await hands.do(a)

    async def found(**wanted: Any) -> set[str]:
        listed = {job.id for job in await queue.list(**wanted)}
        assert await queue.count(**wanted) == len(listed)
        return listed

    assert await found(topic="mail") == {a.id, b.id}
    assert await found(topic="nobody") == set()
    assert await found(scope="user") == {a.id, b.id}
    assert await found(scope_id="a") == {a.id, c.id}
    assert await found(scope="user", scope_id="a") == {a.id}
    assert await found(topic="mail", status="pending") == {b.id}
    assert await found(topic="mail", status="completed", scope_id="a") == {a.id}
    assert await found(scope="user", status="completed", scope_id="b") == set()


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("status", {"status": "done"}),
        ("status", {"status": ""}),
        ("topic", {"topic": "no\x00"}),
        ("topic", {"topic": "' OR 1=1--"}),
        ("scope", {"scope": "\ud800"}),
        ("scope_id", {"scope_id": "a\x00"}),
        ("scope_id", {"scope_id": 5}),
    ],
)
async def test_a_senseless_filter_is_refused_by_name(queue: Queue, field: str, wanted: dict[str, Any]) -> None:
    for call in (queue.list(**wanted), queue.count(**wanted)):
        with pytest.raises(InvalidInput, match=field) as refused:
            await call
        assert refused.value.data["field"] == field


async def test_a_count_is_exact_to_ten_thousand(queue: Queue) -> None:
    await queue.enqueue_many("mail", [{}] * 10_002)
    assert await queue.count() == 10_001
    assert (await queue.count()).capped
    assert not (await queue.count(topic="none")).capped


async def test_stale_jobs_are_marked_listed_and_still_what_they_were(url: str) -> None:
    async with Queue(url, stale_after="0s") as queue:
        hands = Hands(queue)
        job = await queue.enqueue("mail")
        await hands.do(job)
        live = await queue.enqueue("mail")
        now = await queue.get(job.id)
        assert now.status is Status.COMPLETED
        assert now.stale_at is not None
        assert [one.id for one in await queue.list(status="stale")] == [job.id]
        assert [one.id for one in await queue.list(status="completed")] == [job.id]
        assert await queue.count(status="stale") == 1
        assert (await queue.get(live.id)).stale_at is None


# -- stats and topics ------------------------------------------------------------------------------------------


async def test_stats_count_every_status(queue: Queue, hands: Hands) -> None:
    await make_one_of_each(queue, hands)
    stats = await queue.stats()
    assert stats.as_json() | {"avgExecutionTime": 0, "topics": {}} == {
        "pending": 3,
        "processing": 1,
        "waiting": 0,
        "cancelling": 1,
        "completed": 1,
        "failed": 1,
        "cancelled": 1,
        "expired": 1,
        "successRate": pytest.approx(1 / 3),
        "avgExecutionTime": 0,
        "topics": {},
    }
    assert stats.avg_execution_time is not None
    assert stats.topics["t_failed"]["failed"] == 1


async def test_stats_of_nothing(queue: Queue) -> None:
    stats = await queue.stats()
    assert (stats.pending, stats.completed, stats.success_rate, stats.avg_execution_time) == (0, 0, None, None)
    await queue.enqueue("mail")
    assert (await queue.stats()).success_rate is None


async def test_stats_of_one_topic_and_of_a_time(queue: Queue, hands: Hands) -> None:
    await make_one_of_each(queue, hands)
    one = await queue.stats(topic="t_failed")
    assert (one.failed, one.completed, one.pending, one.success_rate) == (1, 0, 0, 0.0)
    assert set(one.topics) == {"t_failed"}
    assert (await queue.stats(since=datetime.now(UTC) - timedelta(minutes=5))).failed == 1
    later = await queue.stats(since=datetime.now(UTC) + timedelta(minutes=5))
    assert (later.failed, later.pending) == (0, 3)
    with pytest.raises(InvalidInput, match="since"):
        await queue.stats(since=WITHOUT_ZONE)
    with pytest.raises(InvalidInput, match="topic"):
        await queue.stats(topic="No Topic")


async def test_a_requeue_and_a_delete_take_an_ending_out_of_the_stats(queue: Queue, hands: Hands) -> None:
    made = await make_one_of_each(queue, hands)
    await queue.requeue(made["failed"])
    await queue.delete(made["cancelled"])
    stats = await queue.stats()
    assert (stats.failed, stats.cancelled, stats.pending) == (0, 0, 4)


async def test_topics_with_their_pause_and_what_waits_there(queue: Queue, hands: Hands) -> None:
    await queue.enqueue_many("mail", [{}] * 3)
    await hands.claim_one("mail")
    await queue.pause("report")
    topics = {topic.topic: topic for topic in await queue.topics()}
    assert (topics["mail"].pending, topics["mail"].processing, topics["mail"].paused_until) == (2, 1, None)
    assert topics["report"].paused_until is not None


# -- events and why --------------------------------------------------------------------------------------------


async def history(queue: Queue, id: str) -> list[str]:
    return [event.type.removeprefix("job:") for event in await queue.events(id)]


async def test_the_plain_path_is_read_from_the_jobs_own_timestamps(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    assert await history(queue, job.id) == ["enqueued"]
    await hands.do(job)
    assert await history(queue, job.id) == ["enqueued", "started", "completed"]
    events = await queue.events(job.id)
    assert [(event.from_status, event.to_status) for event in events] == [
        (None, "pending"),
        ("pending", "processing"),
        ("processing", "completed"),
    ]
    assert all(event.job_id == job.id for event in events)
    assert (await queue.get(job.id)).events_count == 3


async def test_everything_else_is_stored(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    await hands.fail(await hands.claim_one("mail"), "Traceback …\nBoom: first", retry_in_ms=1)
    await queue.cancel(job.id, "enough")
    await queue.requeue(job.id)
    assert await history(queue, job.id) == ["enqueued", "started", "retrying", "cancelled", "requeued"]
    retrying, cancelled, requeued = (await queue.events(job.id))[2:]
    assert (retrying.message, cancelled.message, requeued.message) == ("Boom: first", "enough", "was cancelled")
    assert retrying.metadata["attempt"] == 1
    assert requeued.metadata["outcome"]["status"] == "cancelled"
    assert (await queue.get(job.id)).events_count == 5


async def whole_story(queue: Queue, id: str) -> str:
    """The timeline in words, after checks that hold for every timeline."""
    events = await queue.events(id)
    assert [event.created_at for event in events] == sorted(event.created_at for event in events)
    plain = {"job:enqueued", "job:started", "job:completed"}
    assert all((event.id is None) == (event.type in plain) for event in events)
    assert (await queue.get(id)).events_count == len(events)
    return " ".join(event.type.removeprefix("job:") for event in events)


async def start(queue: Queue, job: Claimed) -> None:
    """The handler has begun, and the store was told."""
    assert await queue.store.touch(job.lease, [Touch(job.n, job.token, 0, None, None)]) == []


async def lose(queue: Queue, hands: Hands, job: Claimed) -> None:
    await queue.store.close_lease(job.lease)
    await queue.store.reap(LEASES_ONLY)
    await hands.arrive("mail")


async def test_the_timeline_has_the_start_of_every_attempt_that_was_retried(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    for _ in range(2):
        await hands.fail(await hands.claim_one("mail"), retry_in_ms=1)
        await eventually(hands.promoted)
    assert await whole_story(queue, job.id) == "enqueued started retrying started retrying"
    await hands.do(job)
    assert await whole_story(queue, job.id) == "enqueued started retrying started retrying started completed"


async def test_the_timeline_of_a_failed_job_that_is_put_back(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    await hands.fail(await hands.claim_one("mail"))
    assert await whole_story(queue, job.id) == "enqueued started failed"
    await queue.requeue(job.id)
    assert await whole_story(queue, job.id) == "enqueued started failed requeued"
    await hands.do(job)
    assert await whole_story(queue, job.id) == "enqueued started failed requeued started completed"


async def test_the_timeline_of_a_completed_job_that_is_put_back_again_and_again(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    await hands.do(job)
    first = (await queue.events(job.id))[1:]
    await queue.requeue(job.id, force=True)
    assert await whole_story(queue, job.id) == "enqueued started completed requeued"
    assert (await queue.events(job.id))[1:3] == first
    await hands.do(job)
    await queue.requeue(job.id, force=True)
    await start(queue, await hands.claim_one("mail"))
    assert await whole_story(queue, job.id) == (
        "enqueued started completed requeued started completed requeued started"
    )


@pytest.mark.parametrize("started", [True, False])
async def test_the_timeline_of_a_job_that_is_given_back(queue: Queue, hands: Hands, started: bool) -> None:
    job = await queue.enqueue("mail")
    claimed = await hands.claim_one("mail")
    if started:
        await start(queue, claimed)
    await queue.release(job.id)
    once = "enqueued started released" if started else "enqueued released"
    assert await whole_story(queue, job.id) == once
    await hands.do(job)
    assert await whole_story(queue, job.id) == f"{once} started completed"


async def test_a_worker_that_gives_back_what_it_never_started_tells_of_no_start(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    claimed = await hands.claim_one("mail")
    state = RowState(Status.PROCESSING, claimed.attempt, claimed.max_attempts)
    assert not await queue.store.settle([Settlement(claimed, decide(state, Released("stopping")), None)])
    assert await whole_story(queue, job.id) == "enqueued released"


@pytest.mark.parametrize("started", [True, False])
async def test_the_timeline_of_a_job_after_its_worker_was_lost(queue: Queue, hands: Hands, started: bool) -> None:
    job = await queue.enqueue("mail", max_retries=2)
    told = "enqueued"
    for ending in ("reclaimed", "expired"):
        claimed = await hands.claim_one("mail")
        if started:
            await start(queue, claimed)
        await lose(queue, hands, claimed)
        told += f" started {ending}" if started else f" {ending}"
        assert await whole_story(queue, job.id) == told
    await queue.requeue(job.id)
    await hands.do(job)
    assert await whole_story(queue, job.id) == f"{told} requeued started completed"


async def test_the_timeline_of_a_job_that_snoozes(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    assert await hands.settle(await hands.claim_one("mail"), Snoozed(1, "not yet"))
    await eventually(hands.promoted)
    await hands.do(job)
    assert await whole_story(queue, job.id) == "enqueued started snoozed started completed"


async def test_the_timeline_of_a_job_that_is_cancelled_while_it_runs(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    claimed = await hands.claim_one("mail")
    await start(queue, claimed)
    await queue.cancel(job.id, "enough")
    assert await whole_story(queue, job.id) == "enqueued started cancelling"
    await hands.fail(claimed)
    assert await whole_story(queue, job.id) == "enqueued started cancelling cancelled"
    await queue.requeue(job.id)
    assert await whole_story(queue, job.id) == "enqueued started cancelling cancelled requeued"


async def test_a_start_that_is_told_late_still_comes_before_the_cancel(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    claimed = await hands.claim_one("mail")
    await queue.cancel(job.id)
    asked = (await queue.events(job.id))[-1].created_at
    while await queue.store.now() <= asked:
        pass
    state = RowState(Status.CANCELLING, claimed.attempt, claimed.max_attempts)
    assert not await queue.store.settle([Settlement(claimed, decide(state, Failed("Boom", "Boom")), 0)])
    assert await whole_story(queue, job.id) == "enqueued started cancelling cancelled"


async def test_a_job_that_was_done_before_it_could_be_cancelled(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    claimed = await hands.claim_one("mail")
    await start(queue, claimed)
    await queue.cancel(job.id)
    await hands.complete(claimed)
    assert await whole_story(queue, job.id) == "enqueued started cancelling completed"
    await queue.requeue(job.id, force=True)
    assert await whole_story(queue, job.id) == "enqueued started cancelling completed requeued"


async def test_a_job_that_moves_while_its_timeline_is_read(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    claimed = await hands.claim_one("mail")
    await start(queue, claimed)
    faults = faulty(queue)

    async def read_late(read: Around, id: str) -> Any:
        faults.heal()
        await hands.fail(claimed, retry_in_ms=HOUR_MS)
        return await read(id)

    faults.around("events", read_late)
    assert await whole_story(queue, job.id) == "enqueued started retrying"


async def test_times_and_results_in_the_timeline_are_as_in_json(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    await hands.fail(await hands.claim_one("mail"), retry_in_ms=1)
    await eventually(hands.promoted)
    await hands.do(job, {"ok": [True, "ü"]})
    done = (await queue.get(job.id)).as_json()
    await queue.requeue(job.id, force=True)
    _, started, retrying, *_, requeued = await queue.events(job.id)
    assert retrying.metadata == {
        "attempt": 1,
        "startedAt": rfc3339(from_ms(started.created_at)),
        "delayMs": 1,
        "worker": "hands",
        "errorType": "Boom",
        "error": "Boom: no more",
    }
    assert requeued.metadata["outcome"] == {
        "status": "completed",
        "attempt": 2,
        "startedAt": done["startedAt"],
        "endedAt": done["completedAt"],
        "result": {"ok": [True, "ü"]},
        "error": None,
        "errorType": None,
        "worker": "hands",
    }


async def test_why_says_what_a_job_waits_for(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    assert await queue.why(job.id) == ["no live worker serves topic mail"]
    await hands.arrive("mail")
    assert await queue.why(job.id) == []
    await queue.pause("mail")
    assert await queue.why(job.id) == ["topic mail is paused until it is resumed"]
    await queue.pause("mail", until=datetime.now(UTC) + timedelta(hours=1))
    assert (await queue.why(job.id))[0].startswith("topic mail is paused until 2")
    await queue.resume("mail")
    later = await queue.enqueue("mail", delay="10m")
    (reason,) = await queue.why(later.id)
    assert reason.startswith("it is due at ")
    media = await queue.enqueue("mail", capability="media")
    assert await queue.why(media.id) == ["no live worker that serves topic mail has the capability 'media'"]


async def test_why_of_a_job_that_runs_failed_once_or_has_ended(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    claimed = await hands.claim_one("mail")
    assert await queue.why(job.id) == []
    await hands.fail(claimed, retry_in_ms=60_000)
    (reason,) = await queue.why(job.id)
    assert reason.startswith("attempt 1 of 3 failed; it is tried again at ")
    await queue.cancel(job.id)
    assert (await queue.why(job.id))[0].startswith("it has ended: cancelled")
    other = await queue.enqueue("mail")
    await hands.fail(await hands.claim_one("mail"), "Traceback …\nBoom: no more")
    assert await queue.why(other.id) == ["it has ended: failed (Boom: no more)"]


# -- result ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [None, {"sent": 1}, [1, 2], "text", 0, False, 1.5])
async def test_a_result_is_what_the_handler_returned(queue: Queue, hands: Hands, result: Any) -> None:
    job = await queue.enqueue("mail")
    await hands.do(job, result)
    assert await job.result(timeout="5s") == result
    assert (await job.refresh()).result_value == result


async def test_a_result_is_waited_for(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    waiting = asyncio.create_task(job.result(timeout="60s"))
    await give_way()
    await hands.do(job, {"sent": 1})
    assert await waiting == {"sent": 1}


async def test_a_result_from_another_process_is_waited_for(queue: Queue, url: str) -> None:
    job = await queue.enqueue("mail")
    waiting = asyncio.create_task(queue.result(job.id, timeout="20s"))
    async with Queue(url) as other:
        await Hands(other).do(await other.get(job.id), 5)
    assert await waiting == 5


async def test_waiting_has_an_end(queue: Queue) -> None:
    job = await queue.enqueue("mail")
    with pytest.raises(ResultTimeout, match=r"has not ended within 0\.05 s") as late:
        await job.result(timeout="50ms")
    assert late.value.data["id"] == job.id
    with pytest.raises(TimeoutError):
        await job.result(timeout=0)
    with pytest.raises(InvalidInput, match="timeout"):
        await job.result(timeout="soon")


async def test_no_time_to_wait_is_enough_for_a_job_that_has_ended(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    await hands.do(job, 1)
    assert await job.result(timeout=0) == 1


async def test_the_result_of_a_failed_job_is_an_error_that_says_why(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    await hands.fail(await hands.claim_one("mail"), "Traceback …\nBoom: no more")
    with pytest.raises(JobFailed, match="Boom: no more") as failed:
        await job.result()
    assert failed.value.data == {"status": "failed", "id": job.id}


async def test_the_result_of_a_cancelled_job_is_an_error(queue: Queue) -> None:
    job = await queue.enqueue("mail")
    waiting = asyncio.create_task(job.result(timeout="60s"))
    await give_way()
    await job.cancel()
    with pytest.raises(JobFailed, match="is cancelled"):
        await waiting


async def test_a_result_has_the_type_that_the_handler_returns(queue: Queue, hands: Hands) -> None:
    class Sent(BaseModel):
        at: datetime

    @queue.job
    async def mail() -> Sent:
        return Sent(at=datetime.now(UTC))

    job = await mail.enqueue()
    await hands.do(job, {"at": "2026-01-01T00:00:00Z"})
    assert await job.result() == Sent(at=datetime(2026, 1, 1, tzinfo=UTC))
    assert (await job.refresh()).result_value == {"at": "2026-01-01T00:00:00Z"}


async def test_a_deleted_job_has_no_result(queue: Queue) -> None:
    job = await queue.enqueue("mail")
    waiting = asyncio.create_task(job.result(timeout="60s"))
    await give_way()
    await queue.delete(job.id)
    with pytest.raises(JobNotFound):
        await waiting


async def test_why_says_when_all_slots_are_busy(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    ran = [await queue.enqueue("mail") for _ in range(2)]
    serves = {"topics": ["mail"], "capabilities": ["media"], "slots": 1}
    leases = [await queue.store.open_lease(name, 3_600_000, serves) for name in ("a", "b")]
    await queue.store.claim(leases[0], Wants(["mail"], [], 1, 1))
    assert await job.why() == [] or (await job.refresh()).status == "processing"
    await queue.store.claim(leases[1], Wants(["mail"], [], 1, 1))
    assert await ran[1].why() == ["all 2 slots of the 2 workers that serve topic mail are busy"]
    capable = await queue.enqueue("mail", capability="media")
    assert await capable.why() == ["all 2 slots of the 2 workers that serve topic mail are busy"]
    await queue.store.open_lease("outside", 3_600_000, serves | {"slots": 0})
    assert await ran[1].why() == [], "how much an external worker can do is not known"


async def test_why_says_when_the_worker_of_a_running_job_is_silent(queue: Queue) -> None:
    job = await queue.enqueue("mail")
    lease = await queue.store.open_lease("ada", 300, {"topics": ["mail"], "slots": 1})
    await queue.store.claim(lease, Wants(["mail"], [], 1, 1))

    async def told(word: str) -> str:
        return next((one for one in await job.why() if word in one), "")

    text = await until(lambda: told("its lease ended"))
    assert re.fullmatch(r"its worker ada was last heard of \d+ s ago; its lease ended \d\d:\d\d:\d\d UTC", text)
    await queue.store.renew(lease, 3_600_000)
    assert await job.why() == []
