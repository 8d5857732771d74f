"""cancel, requeue, release, reschedule, delete, pause and resume."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.queue.hands import WITHOUT_ZONE, Hands
from tests.queue.test_looking import history
from treadle import CancelPolicy, InvalidInput, Job, JobNotFound, NotCancelable, Queue, Status, WrongState
from treadle.model.errors import TemplateDisabled
from treadle.policy.lifecycle import CancelAcknowledged, Completed, Failed, RowState, decide
from treadle.store.values import Settlement


async def running(queue: Queue, hands: Hands) -> tuple[Job, Any]:
    job = await queue.enqueue("mail")
    return job, await hands.claim_one("mail")


async def ended(queue: Queue, hands: Hands, status: str) -> Job:
    if status == "expired":
        job = await queue.enqueue("mail", expires="0s")
        await queue.store.advance()
        return job
    if status == "cancelled":
        return await (await queue.enqueue("mail")).cancel()
    job, claimed = await running(queue, hands)
    await (hands.complete(claimed, 1) if status == "completed" else hands.fail(claimed))
    return job


# -- cancel ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"delay": "1h"}])
async def test_a_pending_job_is_cancelled_immediately(queue: Queue, hands: Hands, options: dict[str, Any]) -> None:
    job = await queue.enqueue("mail", **options)
    cancelled = await queue.cancel(job.id, "not wanted")
    assert (cancelled.status, cancelled.cancel_reason) == (Status.CANCELLED, "not wanted")
    assert cancelled.cancelled_at is not None
    assert await hands.claim("mail") == []
    assert await history(queue, job.id) == ["enqueued", "cancelled"]


async def test_a_running_job_is_asked_to_stop(queue: Queue, hands: Hands) -> None:
    job, claimed = await running(queue, hands)
    asked = await queue.cancel(job.id, "not wanted")
    assert (asked.status, asked.cancel_reason) == (Status.CANCELLING, "not wanted")
    assert asked.cancel_requested_at is not None
    renewed = await queue.store.renew(claimed.lease, 60_000)
    assert renewed
    assert [one.reason for one in renewed.cancels] == ["not wanted"]
    state = RowState(Status.CANCELLING, claimed.attempt, claimed.max_attempts)
    assert not await queue.store.settle([Settlement(claimed, decide(state, CancelAcknowledged()), hands.ran_ms())])
    assert (await job.refresh()).status is Status.CANCELLED
    assert [one for one in await history(queue, job.id) if one != "started"] == ["enqueued", "cancelling", "cancelled"]


async def test_asking_twice_changes_nothing(queue: Queue, hands: Hands) -> None:
    job, _ = await running(queue, hands)
    first = await queue.cancel(job.id, "once")
    second = await queue.cancel(job.id, "twice")
    assert second.status is Status.CANCELLING
    assert (second.cancel_reason, second.cancel_requested_at) == ("once", first.cancel_requested_at)
    assert (await history(queue, job.id)).count("cancelling") == 1


async def test_a_job_that_was_done_first_stays_completed(queue: Queue, hands: Hands) -> None:
    job, claimed = await running(queue, hands)
    await queue.cancel(job.id)
    assert await hands.settle(claimed, Completed('{"sent": 1}'))
    assert (await job.refresh()).status is Status.COMPLETED
    assert await job.result() == {"sent": 1}


async def test_a_job_that_fails_after_the_cancel_is_cancelled(queue: Queue, hands: Hands) -> None:
    job, claimed = await running(queue, hands)
    await queue.cancel(job.id)
    assert await hands.settle(claimed, Failed("Boom: late", "Boom", retry_in_ms=1))
    assert (await job.refresh()).status is Status.CANCELLED


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "expired"])
async def test_an_ended_job_can_not_be_cancelled(queue: Queue, hands: Hands, status: str) -> None:
    job = await ended(queue, hands, status)
    with pytest.raises(WrongState, match=f"the job is {status}") as refused:
        await queue.cancel(job.id)
    assert refused.value.data["status"] == status


async def test_a_template_may_forbid_to_cancel_what_runs(queue: Queue, hands: Hands, url: str) -> None:
    queue.register("mail", lambda: None, cancel=CancelPolicy(supported=False))
    await queue.save_templates()
    job, _ = await running(queue, hands)
    async with Queue(url) as other:
        for anybody in (queue, other):
            with pytest.raises(NotCancelable, match="mail does not support cancelling"):
                await anybody.cancel(job.id)
        assert (await other.get(job.id)).status is Status.PROCESSING
        waiting = await queue.enqueue("mail")
        assert (await other.cancel(waiting.id)).status is Status.CANCELLED


@pytest.mark.parametrize("reason", ["nul\x00", "\ud800", "r" * 1001, 5, None])
async def test_a_reason_that_no_database_keeps_is_refused_by_name(queue: Queue, reason: Any) -> None:
    job = await queue.enqueue("mail")
    with pytest.raises(InvalidInput, match="reason"):
        await queue.cancel(job.id, reason)
    assert (await queue.cancel(job.id, "zu spät\n— 太晚了")).cancel_reason == "zu spät\n— 太晚了"


# -- requeue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
async def test_an_ended_job_is_put_back_with_all_its_attempts(queue: Queue, hands: Hands, status: str) -> None:
    job = await ended(queue, hands, status)
    back = await queue.requeue(job.id)
    assert (back.status, back.attempt, back.retries, back.expires_at) == (Status.PENDING, 0, 0, None)
    assert back.run_at <= datetime.now(UTC) + timedelta(seconds=1)
    assert (await history(queue, job.id))[-1] == "requeued"
    await hands.do(back, "second life")
    assert await back.result() == "second life"


async def test_a_completed_job_is_put_back_only_with_force(queue: Queue, hands: Hands) -> None:
    job = await ended(queue, hands, "completed")
    with pytest.raises(WrongState, match="with force"):
        await queue.requeue(job.id)
    back = await queue.requeue(job.id, force=True)
    assert (back.status, back.result_value, back.progress) == (Status.PENDING, None, 0)
    assert (await queue.events(job.id))[-1].metadata["outcome"]["result"] == 1


async def test_a_stale_job_is_requeued_without_force(url: str) -> None:
    async with Queue(url, stale_after="0s") as queue:
        job = await ended(queue, Hands(queue), "completed")
        assert (await queue.requeue(job.id)).status is Status.PENDING


async def test_a_live_job_can_not_be_requeued(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    for status in ("pending", "processing", "cancelling"):
        if status == "processing":
            await hands.claim_one("mail")
        if status == "cancelling":
            await queue.cancel(job.id)
        with pytest.raises(WrongState, match="requeue is not possible") as refused:
            await queue.requeue(job.id)
        assert refused.value.data["status"] == status


# -- release ---------------------------------------------------------------------------------------------------


async def test_a_released_job_is_unspent_and_its_worker_is_refused(queue: Queue, hands: Hands) -> None:
    job, claimed = await running(queue, hands)
    back = await queue.release(job.id)
    assert (back.status, back.attempt, back.locked_by) == (Status.PENDING, 0, None)
    assert not await hands.settle(claimed, Completed())
    assert (await job.refresh()).status is Status.PENDING
    again = await hands.claim_one("mail")
    assert (again.id, again.attempt) == (job.id, 1)
    assert again.token > claimed.token


async def test_only_a_running_job_can_be_released(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    for status in ("pending", "cancelled"):
        if status == "cancelled":
            await queue.cancel(job.id)
        with pytest.raises(WrongState, match="release is not possible") as refused:
            await queue.release(job.id)
        assert refused.value.data["status"] == status


# -- reschedule ------------------------------------------------------------------------------------------------


async def test_a_pending_job_gets_another_time(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    assert (await queue.reschedule(job.id, run_at=when)).run_at == when
    assert await hands.claim("mail") == []
    await queue.reschedule(job.id, run_at=datetime.now(UTC) - timedelta(seconds=1))
    assert await hands.claimable("mail") == [job.id]


async def test_a_pending_job_gets_another_priority_and_more_attempts(queue: Queue, hands: Hands) -> None:
    first, second = await queue.enqueue("mail"), await queue.enqueue("mail")
    changed = await queue.reschedule(second.id, priority="critical", max_attempts=9)
    assert (changed.priority, changed.max_attempts, changed.run_at) == (100, 9, second.run_at)
    assert await hands.claimable("mail") == [second.id, first.id]


async def test_fewer_attempts_than_were_made_are_refused(queue: Queue, hands: Hands) -> None:
    job, claimed = await running(queue, hands)
    await hands.fail(claimed, retry_in_ms=60_000)
    with pytest.raises(InvalidInput, match="has used 1 attempts"):
        await queue.reschedule(job.id, max_attempts=1)
    changed = await queue.reschedule(job.id, max_attempts=2, run_at=datetime.now(UTC) - timedelta(seconds=1))
    assert (changed.attempt, changed.max_attempts) == (1, 2)
    assert (await hands.claim_one("mail")).attempt == 2


async def test_a_disabled_template_refuses_requeue(queue: Queue, hands: Hands) -> None:
    job, claimed = await running(queue, hands)
    await hands.fail(claimed)
    queue.register("mail", lambda ctx: None, enabled=False)
    with pytest.raises(TemplateDisabled) as refusal:
        await queue.requeue(job.id)
    assert refusal.value.code == "template_disabled"
    (error,) = await queue.requeue_many([job.id])
    assert isinstance(error, TemplateDisabled)
    assert (await job.refresh()).status == "failed"


async def test_only_a_pending_job_can_be_changed(queue: Queue, hands: Hands) -> None:
    job, claimed = await running(queue, hands)
    for status in ("processing", "completed"):
        if status == "completed":
            await hands.complete(claimed)
        with pytest.raises(WrongState, match="reschedule is not possible") as refused:
            await queue.reschedule(job.id, priority=1)
        assert refused.value.data["status"] == status


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("run_at", {"run_at": WITHOUT_ZONE}),
        ("priority", {"priority": "urgent"}),
        ("max_attempts", {"max_attempts": 0}),
        ("max_attempts", {"max_attempts": "many"}),
    ],
)
async def test_a_bad_change_is_refused_by_name(queue: Queue, field: str, change: dict[str, Any]) -> None:
    job = await queue.enqueue("mail")
    with pytest.raises(InvalidInput, match=field):
        await queue.reschedule(job.id, **change)


# -- delete ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["pending", "failed", "cancelled", "expired"])
async def test_a_deleted_job_is_gone_with_all_that_hangs_on_it(queue: Queue, hands: Hands, status: str) -> None:
    job = await queue.enqueue("mail") if status == "pending" else await ended(queue, hands, status)
    await queue.delete(job.id)
    for look in (queue.get(job.id), queue.events(job.id), queue.delete(job.id)):
        with pytest.raises(JobNotFound):
            await look
    assert await queue.list() == []
    assert await hands.claim("mail") == []


async def test_a_completed_job_is_deleted_only_with_force(queue: Queue, hands: Hands) -> None:
    job = await ended(queue, hands, "completed")
    with pytest.raises(WrongState) as refused:
        await queue.delete(job.id)
    assert refused.value.data["status"] == "completed"
    await queue.delete(job.id, force=True)
    assert await queue.count() == 0


@pytest.mark.parametrize("status", ["processing", "cancelling"])
async def test_a_running_job_is_never_deleted(queue: Queue, hands: Hands, status: str) -> None:
    job, claimed = await running(queue, hands)
    if status == "cancelling":
        await queue.cancel(job.id)
    for force in (False, True):
        with pytest.raises(WrongState) as refused:
            await queue.delete(job.id, force=force)
        assert refused.value.data["status"] == status
    await hands.complete(claimed)


async def test_a_deleted_jobs_idempotency_key_is_free_again(queue: Queue) -> None:
    job = await queue.enqueue("mail", idempotency_key="a")
    await queue.delete(job.id)
    again = await queue.enqueue("mail", {"other": True}, idempotency_key="a")
    assert again.id != job.id
    assert not again.deduplicated


# -- pause -----------------------------------------------------------------------------------------------------


async def test_a_paused_topic_takes_jobs_but_starts_none(queue: Queue, hands: Hands) -> None:
    before = await queue.enqueue("mail")
    await queue.pause("mail")
    after = await queue.enqueue("mail")
    other = await queue.enqueue("report")
    assert after.status is Status.PENDING
    assert await hands.claimable("mail", "report") == [other.id]
    await queue.resume("mail")
    assert await hands.claimable("mail") == [before.id, after.id]


async def test_a_pause_may_have_an_end(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail")
    await queue.pause("mail", until=datetime.now(UTC) + timedelta(hours=1))
    assert await hands.claim("mail") == []
    await queue.pause("mail", until=datetime.now(UTC) - timedelta(seconds=1))
    assert await hands.claimable("mail") == [job.id]
    with pytest.raises(InvalidInput, match="until"):
        await queue.pause("mail", until=WITHOUT_ZONE)
