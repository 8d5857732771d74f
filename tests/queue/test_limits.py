"""Concurrency policies by scope and key, rates, deadlines."""

import asyncio
from typing import Any

import pytest

import treadle.worker.interrupts
from tests.queue.hands import Hands, eventually
from treadle import Concurrency, ConcurrencyRejected, Job, JobRequest, Queue, Rate, Status, Worker
from treadle.testing.workbench import LEASES_ONLY

USER_A: dict[str, Any] = {"scope": "user", "scope_id": "a"}
USER_B: dict[str, Any] = {"scope": "user", "scope_id": "b"}


async def status(queue: Queue, job: Job) -> Status:
    return (await queue.get(job.id)).status


def register(queue: Queue, policy: Any, *, keys: list[str] | None = None, limit: int = 1) -> None:
    queue.register("sync", lambda: None, concurrency=Concurrency(policy, keys or (), limit))


async def test_allow_lets_any_number_run(queue: Queue, hands: Hands) -> None:
    register(queue, "allow")
    await queue.enqueue_many("sync", [{}] * 5, **USER_A)
    assert len(await hands.claim("sync")) == 5


# -- reject ----------------------------------------------------------------------------------------------------


async def test_reject_refuses_a_second_job_of_the_same_scope(queue: Queue, hands: Hands) -> None:
    register(queue, "reject_same_scope")
    first = await queue.enqueue("sync", **USER_A)
    with pytest.raises(ConcurrencyRejected, match="still live for the same key") as refused:
        await queue.enqueue("sync", **USER_A)
    assert refused.value.data["jobId"] == first.id
    await queue.enqueue("sync", **USER_B)
    await queue.enqueue("sync")
    await queue.enqueue("sync", scope="account", scope_id="a")
    await hands.do(first)
    assert (await queue.enqueue("sync", **USER_A)).id != first.id


async def test_reject_by_a_key_of_the_payload_with_a_limit(queue: Queue) -> None:
    register(queue, "reject_same_scope", keys=["input.account"], limit=2)
    await queue.enqueue_many("sync", [{"account": 1}, {"account": 1}, {"account": 2}])
    with pytest.raises(ConcurrencyRejected):
        await queue.enqueue("sync", {"account": 1})
    await queue.enqueue("sync", {"account": 2})


async def test_reject_in_a_batch_refuses_the_whole_batch(queue: Queue) -> None:
    register(queue, "reject_same_scope")
    with pytest.raises(ConcurrencyRejected):
        await queue.enqueue_many([JobRequest("sync"), JobRequest("other"), JobRequest("sync")])
    assert await queue.count() == 0
    await queue.enqueue("sync")


async def test_a_rejected_job_leaves_its_keys_free(queue: Queue, hands: Hands) -> None:
    register(queue, "reject_same_scope")
    first = await queue.enqueue("sync", {"n": 1}, idempotency_key="a")
    with pytest.raises(ConcurrencyRejected):
        await queue.enqueue("sync", {"n": 2}, idempotency_key="b")
    await hands.do(first)
    assert not (await queue.enqueue("sync", {"n": 3}, idempotency_key="b")).deduplicated


async def test_reject_lets_one_of_a_hundred_concurrent_jobs_through(queue: Queue) -> None:
    register(queue, "reject_same_scope")
    answers = await asyncio.gather(*(queue.enqueue("sync", **USER_A) for _ in range(100)), return_exceptions=True)
    made = [answer for answer in answers if isinstance(answer, Job)]
    assert len(made) == 1
    assert all(isinstance(answer, ConcurrencyRejected) for answer in answers if answer not in made)


# -- queue -----------------------------------------------------------------------------------------------------


async def test_queue_runs_jobs_of_one_scope_one_after_the_other(queue: Queue, hands: Hands) -> None:
    register(queue, "queue_same_scope")
    jobs = await queue.enqueue_many("sync", [{}] * 3, **USER_A)
    other = await queue.enqueue("sync", **USER_B)
    claimed = await hands.claim("sync")
    assert {one.id for one in claimed} == {jobs[0].id, other.id}
    (reason,) = await queue.why(jobs[1].id)
    assert f"waits for job {jobs[0].id}" in reason
    for following in jobs[1:]:
        await hands.complete(next(one for one in claimed if one.id != other.id))
        claimed = await hands.claim("sync")
        assert [one.id for one in claimed] == [following.id]


async def test_queue_with_a_limit_by_key(queue: Queue, hands: Hands) -> None:
    register(queue, "queue_same_scope", keys=["account"], limit=2)
    await queue.enqueue_many("sync", [{"account": n % 2} for n in range(10)])
    claimed = await hands.claim("sync")
    assert sorted(one.payload for one in claimed) == ['{"account":0}'] * 2 + ['{"account":1}'] * 2
    await hands.complete(claimed[0])
    assert [one.payload for one in await hands.claim("sync")] == [claimed[0].payload]


async def test_a_waiting_job_goes_by_priority_and_can_be_cancelled_or_deleted(queue: Queue, hands: Hands) -> None:
    register(queue, "queue_same_scope")
    await queue.enqueue("sync")
    running = await hands.claim_one("sync")
    low, high, gone, away = [await queue.enqueue("sync", priority=p) for p in ("low", "high", "critical", "critical")]
    assert await hands.claim("sync") == []
    await queue.cancel(gone.id)
    await queue.delete(away.id)
    await hands.complete(running)
    await hands.do(high)
    await hands.do(low)


@pytest.mark.parametrize("leave", ["cancel", "release", "retry", "reclaim"])
async def test_a_job_that_leaves_makes_room_for_the_next(queue: Queue, hands: Hands, leave: str) -> None:
    register(queue, "queue_same_scope")
    first, second = await queue.enqueue_many("sync", [{}] * 2)
    if leave == "cancel":
        await queue.cancel(first.id)
        assert await hands.claimable("sync") == [second.id]
        return
    claimed = await hands.claim_one("sync")
    if leave == "retry":
        await hands.fail(claimed, retry_in_ms=60_000)
        assert await hands.claimable("sync") == [second.id]
        return
    if leave == "release":
        await queue.release(first.id)
    else:
        await queue.store.close_lease(claimed.lease)
        await queue.store.reap(LEASES_ONLY)
    # It keeps its turn: exactly one of the two is there to be claimed.
    assert await Hands(queue).claimable("sync") == [first.id]


async def test_no_more_than_the_limit_run_concurrently_across_workers(queue: Queue) -> None:
    register(queue, "queue_same_scope", limit=3)
    await queue.enqueue_many("sync", [{}] * 30)
    workers = [Hands(queue) for _ in range(4)]
    done = 0
    while done < 30:
        claims = await asyncio.gather(*(one.claim("sync") for one in workers))
        claimed = [(worker, job) for worker, jobs in zip(workers, claims, strict=True) for job in jobs]
        assert 1 <= len(claimed) <= 3
        await asyncio.gather(*(worker.complete(job) for worker, job in claimed))
        done += len(claimed)


# -- replace ---------------------------------------------------------------------------------------------------


async def test_replace_cancels_the_one_that_waits(queue: Queue, hands: Hands) -> None:
    register(queue, "replace_same_scope")
    first = await queue.enqueue("sync", **USER_A)
    other = await queue.enqueue("sync", **USER_B)
    second = await queue.enqueue("sync", **USER_A)
    replaced = await queue.get(first.id)
    assert (replaced.status, replaced.cancel_reason) == (Status.CANCELLED, f"replaced by job {second.id}")
    assert await hands.claimable("sync") == [other.id, second.id]


async def test_replace_asks_the_one_that_runs_to_stop_and_waits_for_it(queue: Queue, hands: Hands) -> None:
    register(queue, "replace_same_scope")
    first = await queue.enqueue("sync")
    claimed = await hands.claim_one("sync")
    second = await queue.enqueue("sync")
    assert await status(queue, first) is Status.CANCELLING
    assert await hands.claim("sync") == []
    await hands.fail(claimed)
    assert await status(queue, first) is Status.CANCELLED
    assert await hands.claimable("sync") == [second.id]


async def test_replace_reaches_a_running_handler_immediately(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker polls for cancels once an hour here, so only a hint can have told it."""
    monkeypatch.setattr(treadle.worker.interrupts, "LOOK_EVERY_S", 3600.0)
    started: list[int] = []

    async def handler(payload: dict[str, int]) -> int:
        started.append(payload["n"])
        if payload["n"] == 1:
            await asyncio.Event().wait()
        return payload["n"]

    queue.register("sync", handler, concurrency=Concurrency("replace_same_scope"))
    worker = Worker(queue, lease="10h", poll_interval="1h", maintenance=False)
    running = asyncio.create_task(worker.run())
    first = await queue.enqueue("sync", {"n": 1})
    await eventually(lambda: started == [1])
    second = await queue.enqueue("sync", {"n": 2})
    assert await second.result(timeout="60s") == 2
    assert await status(queue, first) is Status.CANCELLED
    worker.stop()
    await running


async def test_replace_keeps_the_last_of_many_concurrent_jobs(queue: Queue, hands: Hands) -> None:
    register(queue, "replace_same_scope", limit=2)
    jobs = await asyncio.gather(*(queue.enqueue("sync", {"n": n}) for n in range(20)))
    live = [job.id for job in await queue.list(status="pending")]
    assert len(live) == 2
    assert len(await queue.list(status="cancelled")) == 18
    assert set(await hands.claimable("sync")) == set(live) <= {job.id for job in jobs}


# -- rates -----------------------------------------------------------------------------------------------------


async def test_no_more_starts_than_the_rate_allows(queue: Queue, hands: Hands) -> None:
    queue.register("mail", lambda: None, rate=Rate(3, "1h"))
    await queue.save_templates()
    jobs = await queue.enqueue_many("mail", [{}] * 5)
    claimed = await hands.claim("mail")
    assert [one.id for one in claimed] == [job.id for job in jobs[:3]]
    for one in claimed:
        await hands.complete(one)
    assert await hands.claim("mail") == []
    assert "its topic's rate limit of 3 per 1h is used up" in await queue.why(jobs[3].id)


async def test_a_rate_lets_more_through_when_its_window_is_over(queue: Queue, hands: Hands) -> None:
    queue.register("mail", lambda: None, rate=(2, "100ms"))
    await queue.save_templates()
    await queue.enqueue_many("mail", [{}] * 4)
    assert len(await hands.claim("mail")) == 2
    more: list[Any] = []

    async def two_more() -> bool:
        more.extend(await hands.claim("mail"))
        return len(more) == 2

    await eventually(two_more)


async def test_other_topics_do_not_feel_a_rate(queue: Queue, hands: Hands) -> None:
    queue.register("mail", lambda: None, rate=Rate(1, "1h"))
    await queue.save_templates()
    await queue.enqueue_many("mail", [{}] * 3)
    await queue.enqueue_many("report", [{}] * 3)
    assert sorted(one.topic for one in await hands.claim("mail", "report")) == ["mail", "report", "report", "report"]


# -- deadlines -------------------------------------------------------------------------------------------------


async def test_a_job_that_was_not_started_in_time_expires(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail", expires="0s")
    kept = await queue.enqueue("mail", expires="1h")
    assert [one.id for one in await hands.claim("mail")] == [kept.id]
    await queue.store.advance()
    expired = await queue.get(job.id)
    assert (expired.status, expired.last_error, expired.error_type) == (
        Status.EXPIRED,
        "deadline passed",
        "DeadlinePassed",
    )


async def test_the_deadline_may_come_from_the_template(queue: Queue) -> None:
    queue.register("mail", lambda: None, expires="1h")
    job = await queue.enqueue("mail")
    assert job.expires_at is not None
    assert (await queue.enqueue("mail", expires="2h")).expires_at != job.expires_at


async def test_an_expired_job_gives_up_its_place_under_a_limit(queue: Queue, hands: Hands) -> None:
    register(queue, "queue_same_scope")
    await queue.enqueue("sync", expires="0s")
    second = await queue.enqueue("sync")
    await queue.store.advance()
    assert await hands.claimable("sync") == [second.id]
