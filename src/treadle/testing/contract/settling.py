"""The end of an attempt: only its owner can report it, and it is written atomically."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from treadle.model.status import Status
from treadle.policy.lifecycle import CancelAcknowledged, Completed, Failed, Outcome, Released, Snoozed
from treadle.queue import steering
from treadle.store.values import Checkpoint, Claimed, Touch
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, SECOND, TOPIC, Workbench, eventually, settlement

ENDINGS: list[Outcome] = [
    Completed('{"a": 1}'),
    Failed("Boom: no", "Boom"),
    Failed("Boom: again", "Boom", retry_in_ms=MINUTE),
    Snoozed(MINUTE, "not yet"),
    Released("shutdown"),
]
# With and without dependent rows: plain jobs are settled by a separate statement.
KINDS: list[dict[str, Any]] = [{}, {"dedupe_key": "d", "expires_in_ms": HOUR}]


def name_of(outcome: object) -> str:
    retried = isinstance(outcome, Failed) and outcome.retry_in_ms is not None
    return "Retried" if retried else type(outcome).__name__


class SettleContract(ContractPart):
    @pytest.mark.parametrize("options", KINDS, ids=["plain", "keyed"])
    async def test_completed(self, bench: Workbench, options: dict[str, Any]) -> None:
        id = await bench.enqueue_one(**options)
        job = await bench.claim_one()
        assert await bench.settle(job, Completed('{"sent": [1, "ü"]}'), ran_ms=1500)
        seen = await bench.job(id)
        assert (seen.status, seen.attempt, seen.retries, seen.progress) == (Status.COMPLETED, 1, 0, 100)
        assert seen.result_value == {"sent": [1, "ü"]}
        assert (seen.locked_by, seen.locked_until, seen.last_heartbeat_at) == (None, None, None)
        assert seen.completed_at is not None
        assert seen.started_at is not None
        assert seen.completed_at - seen.started_at == timedelta(milliseconds=1500)
        assert seen.updated_at == seen.completed_at
        assert (seen.failed_at, seen.cancelled_at, seen.last_error) == (None, None, None)
        assert await bench.history(id) == []
        assert seen.events_count == 3  # enqueued, started, completed

    async def test_completed_without_a_result(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        assert await bench.settle(await bench.claim_one(), Completed(None))
        assert (await bench.job(id)).result_value is None

    @pytest.mark.parametrize("text", ["null", "0", '""', "[]", '"\\u0000"', "1e2", '{"a":"\\ud83d\\ude00"}'])
    async def test_any_json_is_a_result(self, bench: Workbench, text: str) -> None:
        id = await bench.enqueue_one()
        assert await bench.settle(await bench.claim_one(), Completed(text))
        values: dict[str, Any] = {"null": None, "0": 0, '""': "", "[]": [], '"\\u0000"': "\0", "1e2": 100.0}
        assert (await bench.job(id)).result_value == values.get(text, {"a": "😀"})

    async def test_failed(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(max_attempts=5)
        job = await bench.claim_one()
        assert await bench.settle(job, Failed("Traceback …\nBoom: no\n", "Boom"))
        seen = await bench.job(id)
        assert (seen.status, seen.attempt, seen.retries) == (Status.FAILED, 1, 1)
        assert (seen.last_error, seen.error_type) == ("Traceback …\nBoom: no\n", "Boom")
        assert seen.failed_at is not None
        assert await bench.history(id) == ["failed"]

    async def test_retried(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        before = await bench.store.now()
        assert await bench.settle(job, Failed("Boom: again", "Boom", retry_in_ms=4 * MINUTE))
        seen = await bench.job(id)
        assert (seen.status, seen.attempt, seen.retries) == (Status.PENDING, 1, 1)
        assert (seen.last_error, seen.error_type, seen.locked_by) == ("Boom: again", "Boom", None)
        due = seen.run_at.timestamp() * 1000 - before
        assert 4 * MINUTE <= due < 5 * MINUTE
        assert await bench.history(id) == ["retrying"]
        (event,) = await bench.store.events(id) or ()
        assert (event.from_status, event.to_status, event.message) == ("processing", "pending", "Boom: again")
        started_at = event.created_at - 5
        assert event.metadata == {
            "attempt": 1,
            "startedAt": started_at,
            "delayMs": 4 * MINUTE,
            "worker": "w1",
            "errorType": "Boom",
            "error": "Boom: again",
        }

    async def test_the_last_attempt_is_not_retried(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(max_attempts=2)
        for attempt in (1, 2):
            job = await bench.claim_one()
            assert job.attempt == attempt
            assert await bench.settle(job, Failed("Boom", "Boom", retry_in_ms=1))
            if attempt == 1:
                await eventually(bench.promoted)
        seen = await bench.job(id)
        assert (seen.status, seen.attempt, seen.retries) == (Status.FAILED, 2, 2)
        assert await bench.history(id) == ["retrying", "failed"]

    async def test_a_job_that_failed_once_and_then_completed(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        await bench.settle(await bench.claim_one(), Failed("Boom", "Boom", retry_in_ms=1))
        await eventually(bench.promoted)
        await bench.settle(await bench.claim_one(), Completed('"ok"'))
        seen = await bench.job(id)
        assert (seen.status, seen.attempt, seen.retries, seen.result_value) == (Status.COMPLETED, 2, 1, "ok")

    @pytest.mark.parametrize("outcome", [Snoozed(MINUTE, "not yet"), Released("shutdown")], ids=name_of)
    async def test_the_attempt_is_given_back(self, bench: Workbench, outcome: Outcome) -> None:
        id = await bench.enqueue_one(max_attempts=1)
        tokens = []
        for _ in range(3):
            job = await bench.claim_one()
            tokens.append(job.token)
            assert job.attempt == 1
            assert await bench.settle(job, outcome)
            seen = await bench.job(id)
            assert (seen.status, seen.attempt, seen.locked_by) == (Status.PENDING, 0, None)
            await bench.pass_time(2 * MINUTE)
            await bench.store.advance()
        assert tokens == sorted(set(tokens)), "a token is never given back"
        event = {"Snoozed": "snoozed", "Released": "released"}[name_of(outcome)]
        assert await bench.history(id) == [event] * 3

    async def test_snoozed_waits_and_released_does_not(self, bench: Workbench) -> None:
        snoozed, released = await bench.enqueue(2)
        first, second = await bench.claim(2)
        await bench.settle(first, Snoozed(HOUR))
        await bench.settle(second, Released())
        assert await bench.claimable() == [released]
        await bench.pass_time(2 * HOUR)
        await bench.store.advance()
        assert sorted(await bench.claimable()) == sorted([snoozed, released])

    async def test_any_endings_in_one_call(self, bench: Workbench) -> None:
        ids = await bench.enqueue(len(ENDINGS))
        jobs = await bench.claim(10)
        endings = [settlement(job, outcome) for job, outcome in zip(jobs, ENDINGS, strict=True)]
        assert await bench.store.settle(endings) == []
        assert await bench.statuses(ids) == ["completed", "failed", "pending", "pending", "pending"]

    async def test_endings_under_several_leases_in_one_call(self, bench: Workbench) -> None:
        ids = await bench.enqueue(6)
        jobs = [await bench.claim_one() for _ in ids]
        await bench.store.close_lease(jobs[2].lease)
        await bench.reap()
        lost = await bench.store.settle([settlement(job, Completed()) for job in jobs])
        assert [one.job.id for one in lost] == [ids[2]]
        assert (await bench.store.stats()).counts["completed"] == 5

    async def test_settling_nothing_is_nothing(self, bench: Workbench) -> None:
        assert await bench.store.settle([]) == []

    async def test_many_topics_in_one_call(self, bench: Workbench) -> None:
        for topic in "abc":
            await bench.enqueue(3, topic=topic)
        jobs = await bench.claim(20, topics=["a", "b", "c"])
        await bench.store.settle([settlement(job, Completed(), ran_ms=10) for job in jobs])
        stats = await bench.store.stats()
        assert {topic: counts["completed"] for topic, counts in stats.topics.items()} == {"a": 3, "b": 3, "c": 3}
        assert stats.run_ms == 90

    @pytest.mark.parametrize("outcome", ENDINGS, ids=name_of)
    async def test_a_started_handler_is_seen_in_the_outcome(self, bench: Workbench, outcome: Outcome) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        begun = time.monotonic()
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 3 * SECOND, None, None)])
        started = (await bench.job(id)).started_at
        assert await bench.settle(job, outcome, ran_ms=3 * SECOND)
        took = time.monotonic() - begun
        seen = await bench.job(id)
        if seen.ended:
            assert seen.started_at is not None
            assert started is not None
            assert abs(seen.started_at - started) < timedelta(seconds=took + 0.05)
        else:
            assert (seen.started_at, seen.claimed_at) == (None, None)

    async def test_a_handler_that_never_started(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        assert await bench.settle(await bench.claim_one(), Failed("no such handler", "NoHandler"), ran_ms=None)
        assert (await bench.job(id)).started_at is None


class GuardContract(ContractPart):
    """A caller that does not own the job changes nothing and is told so."""

    @pytest.mark.parametrize("options", KINDS, ids=["plain", "keyed"])
    @pytest.mark.parametrize("outcome", ENDINGS, ids=name_of)
    async def test_a_stale_token_is_refused(self, bench: Workbench, outcome: Outcome, options: dict[str, Any]) -> None:
        id = await bench.enqueue_one(**options)
        lease = await bench.lease()
        old = await bench.claim_one(lease=lease)
        await steering.release(bench.store, [id])
        await bench.claim_one(lease=lease)
        before = await bench.job(id)
        assert not await bench.settle(old, outcome)
        assert await bench.job(id) == before

    @pytest.mark.parametrize("options", KINDS, ids=["plain", "keyed"])
    @pytest.mark.parametrize("outcome", ENDINGS, ids=name_of)
    async def test_a_late_outcome_counts_until_the_lease_is_taken_back(
        self, bench: Workbench, outcome: Outcome, options: dict[str, Any]
    ) -> None:
        """Finished work survives an outage that is longer than the lease."""
        id = await bench.enqueue_one(**options)
        job = await bench.claim_one(lease=await bench.lease(MINUTE))
        await bench.pass_time(2 * MINUTE)
        assert await bench.settle(job, outcome)
        assert await bench.status(id) is not Status.PROCESSING
        assert await bench.reap() == []

    @pytest.mark.parametrize("options", KINDS, ids=["plain", "keyed"])
    @pytest.mark.parametrize("outcome", ENDINGS, ids=name_of)
    async def test_a_lease_that_was_taken_back_is_refused(
        self, bench: Workbench, outcome: Outcome, options: dict[str, Any]
    ) -> None:
        id = await bench.enqueue_one(**options)
        job = await bench.claim_one(lease=await bench.lease(MINUTE))
        await bench.pass_time(2 * MINUTE)
        await bench.reap()
        assert not await bench.settle(job, outcome)
        seen = await bench.job(id)
        assert (seen.status, seen.attempt) == (Status.PENDING, 1)

    @pytest.mark.parametrize("outcome", ENDINGS, ids=name_of)
    async def test_another_lease_is_refused(self, bench: Workbench, outcome: Outcome) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        assert not await bench.settle(job._replace(lease=await bench.lease()), outcome)
        assert await bench.status(id) is Status.PROCESSING
        assert await bench.settle(job, outcome)

    async def test_an_unknown_job_is_refused(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        assert not await bench.settle(job._replace(n=job.n + 1000), Completed())
        assert await bench.settle(job, Completed())

    async def test_a_deleted_job_is_refused(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        await steering.release(bench.store, [job.id])
        await steering.delete(bench.store, [job.id])
        assert not await bench.settle(job, Completed())
        assert await bench.store.get([job.id]) == [None]

    async def test_in_a_batch_only_the_lost_ones_are_lost(self, bench: Workbench) -> None:
        ids = await bench.enqueue(6)
        jobs = await bench.claim(6)
        await steering.release(bench.store, [ids[1], ids[4]])
        kinds: list[Outcome] = [Completed(), Completed(), Failed("Boom", "Boom"), Completed(), Snoozed(1), Released()]
        endings = [settlement(job, outcome) for job, outcome in zip(jobs, kinds, strict=True)]
        lost = await bench.store.settle(endings)
        assert sorted(one.job.id for one in lost) == sorted([ids[1], ids[4]])
        assert await bench.statuses(ids) == ["completed", "pending", "failed", "completed", "pending", "pending"]

    async def test_of_two_endings_of_one_job_in_one_call_only_that_of_the_newest_claim_counts(
        self, bench: Workbench
    ) -> None:
        """A worker that lost a job and claimed it again may report both runs in one call."""
        (id,) = await bench.enqueue(1)
        old = await bench.claim_one()
        await steering.release(bench.store, [id])
        new = await bench.claim_one()
        endings = [settlement(new, Completed('"new"')), settlement(old, Completed('"old"'))]
        assert await bench.store.settle(endings) == endings[1:]
        assert (await bench.job(id)).result_value == "new"

    async def test_a_batch_under_a_lost_lease_is_lost_whole(self, bench: Workbench) -> None:
        ids = await bench.enqueue(3)
        jobs = await bench.claim(3)
        await bench.store.close_lease(jobs[0].lease)
        await bench.reap()
        lost = await bench.store.settle([settlement(job, Completed()) for job in jobs])
        assert [one.job.id for one in lost] == ids
        assert await bench.statuses(ids) == [Status.PENDING] * 3

    @pytest.mark.parametrize("options", KINDS, ids=["plain", "keyed"])
    async def test_an_ending_can_be_sent_again_if_the_answer_was_lost(
        self, bench: Workbench, options: dict[str, Any]
    ) -> None:
        (id,) = await bench.enqueue(1, **options)
        job = await bench.claim_one()
        assert await bench.settle(job, Completed('"first"'))
        assert await bench.settle(job, Completed('"second"'))
        assert (await bench.job(id)).result_value == "first"
        assert (await bench.store.stats()).counts["completed"] == 1

    @pytest.mark.parametrize("options", KINDS, ids=["plain", "keyed"])
    @pytest.mark.parametrize("fails", [True, False])
    async def test_another_ending_of_the_same_claim_is_refused(
        self, bench: Workbench, options: dict[str, Any], fails: bool
    ) -> None:
        (id,) = await bench.enqueue(1, **options)
        job = await bench.claim_one()
        endings: list[Outcome] = [Failed("too late", "Error"), Completed('"done"')]
        first, second = endings if fails else reversed(endings)
        assert await bench.settle(job, first)
        assert not await bench.settle(job, second)
        assert await bench.settle(job, first)
        ended = await bench.job(id)
        assert (ended.status, ended.result_value) == (("failed", None) if fails else ("completed", "done"))

    async def test_even_after_the_lease_was_given_up(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        await bench.settle(job, Completed())
        await bench.store.close_lease(job.lease)
        await bench.reap()
        assert await bench.settle(job, Completed())

    async def test_some_sent_again_and_some_new(self, bench: Workbench) -> None:
        await bench.enqueue(3)
        jobs = await bench.claim(3)
        endings = [settlement(job, Completed(), ran_ms=7) for job in jobs]
        assert await bench.store.settle(endings[:2]) == []
        assert await bench.store.settle(endings) == []
        stats = await bench.store.stats()
        assert (stats.counts["completed"], stats.run_ms) == (3, 21)

    async def test_an_ending_of_another_claim_is_not_mine(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        lease = await bench.lease()
        old = await bench.claim_one(lease=lease)
        await bench.settle(old, Released())
        new = await bench.claim_one(lease=lease)
        assert await bench.settle(new, Completed('"new"'))
        assert not await bench.settle(old, Completed('"old"'))
        assert (await bench.job(new.id)).result_value == "new"


class CancelledWhileRunningContract(ContractPart):
    """A cancel was requested while the job ran, and the reporting worker may not know about it yet."""

    async def cancelling(self, bench: Workbench, **options: Any) -> Claimed:
        await bench.enqueue(1, **options)
        job = await bench.claim_one()
        await steering.cancel(bench.store, [job.id], "changed my mind")
        return job

    @pytest.mark.parametrize("options", KINDS, ids=["plain", "keyed"])
    async def test_done_first_is_done(self, bench: Workbench, options: dict[str, Any]) -> None:
        job = await self.cancelling(bench, **options)
        assert await bench.settle(job, Completed('"done"'))
        seen = await bench.job(job.id)
        assert (seen.status, seen.result_value, seen.cancel_reason) == (Status.COMPLETED, "done", "changed my mind")
        assert seen.cancel_requested_at is not None

    @pytest.mark.parametrize("outcome", [*ENDINGS[1:], CancelAcknowledged("as asked")], ids=name_of)
    async def test_everything_else_ends_as_cancelled(self, bench: Workbench, outcome: Outcome) -> None:
        job = await self.cancelling(bench)
        assert await bench.settle(job, outcome)
        seen = await bench.job(job.id)
        assert (seen.status, seen.cancel_reason, seen.locked_by) == (Status.CANCELLED, "changed my mind", None)
        assert (seen.attempt, seen.cancelled_at is not None) == (1, True)
        assert await bench.history(job.id) == ["cancelling", "cancelled"]
        assert (await bench.store.stats()).counts["cancelled"] == 1

    async def test_a_lost_lease_ends_as_cancelled(self, bench: Workbench) -> None:
        job = await self.cancelling(bench)
        await bench.store.close_lease(job.lease)
        (moved,) = await bench.reap()
        assert (moved.id, moved.status, moved.event) == (job.id, Status.CANCELLED, "job:cancelled")
        assert await bench.status(job.id) is Status.CANCELLED

    async def test_after_the_grace_it_is_cancelled(self, bench: Workbench) -> None:
        job = await self.cancelling(bench)
        assert await bench.reap(30 * SECOND) == []
        await bench.pass_time(31 * SECOND)
        (moved,) = await bench.reap(30 * SECOND)
        assert (moved.id, moved.topic, moved.status) == (job.id, TOPIC, Status.CANCELLED)
        events = await bench.store.events(job.id) or ()
        assert "timeout" in events[-1].message
        assert not await bench.settle(job, CancelAcknowledged())

    async def test_an_answer_after_the_grace_is_not_taken_for_a_repeat(self, bench: Workbench) -> None:
        """The stored outcome carries the attempt's token, but it is not the ending that the worker reports."""
        job = await self.cancelling(bench)
        await bench.pass_time(31 * SECOND)
        await bench.reap(30 * SECOND)
        assert not await bench.settle(job, Completed('"late"'))
        seen = await bench.job(job.id)
        assert (seen.status, seen.result_value) == (Status.CANCELLED, None)

    async def test_every_topic_has_its_own_grace(self, bench: Workbench) -> None:
        quick, slow = await bench.enqueue_one(topic="quick"), await bench.enqueue_one(topic="slow")
        await bench.claim(2, topics=["quick", "slow"])
        await steering.cancel(bench.store, [quick, slow], "")
        await bench.pass_time(MINUTE)
        assert [moved.id for moved in await bench.reap(SECOND, {"slow": HOUR})] == [quick]
        assert await bench.reap(SECOND, {"slow": HOUR}) == []
        assert [moved.id for moved in await bench.reap(HOUR, {"slow": SECOND})] == [slow]

    @pytest.mark.parametrize("cancelled_first", [False, True])
    async def test_the_grace_counts_from_the_end_of_a_step_that_must_finish(
        self, bench: Workbench, cancelled_first: bool
    ) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        if cancelled_first:
            await steering.cancel(bench.store, [id], "")
        await bench.store.checkpoint(job.lease, [Checkpoint(job.n, job.token, 0, grace_ms=2 * MINUTE)])
        if not cancelled_first:
            await steering.cancel(bench.store, [id], "")
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, 50, "half")])
        await bench.pass_time(MINUTE)
        assert await bench.reap(SECOND) == []
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, None, None, grace_ms=0)])
        assert await bench.reap(SECOND) == []
        await bench.pass_time(2 * SECOND)
        assert [moved.id for moved in await bench.reap(SECOND)] == [id]

    async def test_the_time_limit_of_a_step_that_must_finish_is_the_bound(self, bench: Workbench) -> None:
        job = await self.cancelling(bench)
        touches = [Touch(job.n, job.token, 0, None, None, MINUTE), Touch(job.n, job.token, 0, None, None)]
        await bench.store.touch(job.lease, touches)
        await bench.pass_time(MINUTE + 2 * SECOND)
        assert await bench.reap(30 * SECOND) == []
        assert [moved.id for moved in await bench.reap(SECOND)] == [job.id]

    async def test_a_step_that_ended_before_the_cancel_does_not_shorten_the_grace(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, None, None, 0)])
        await bench.pass_time(MINUTE)
        await steering.cancel(bench.store, [id], "")
        assert await bench.reap(SECOND) == []

    async def test_what_was_not_asked_to_stop_has_no_grace(self, bench: Workbench) -> None:
        id = await bench.make("processing")
        await bench.pass_time(30 * MINUTE)
        assert await bench.reap(0) == []
        assert await bench.status(id) is Status.PROCESSING
