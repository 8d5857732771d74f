"""Operator requests (cancel, requeue, release, reschedule, delete) on jobs in every state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.model.errors import InvalidInput, JobNotFound, NotCancelable, NotRepeatable, TemplateDisabled, WrongState
from treadle.model.job import Job, from_ms
from treadle.model.status import Status
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import (
    CancelRequested,
    Completed,
    Deleted,
    Failed,
    Patch,
    ReleasedByHand,
    Requeued,
    Rescheduled,
)
from treadle.queue import steering
from treadle.store.values import Judge, Refusal
from treadle.store.views import Listing
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import (
    DAY,
    ENDED,
    HOUR,
    MINUTE,
    PENDING,
    RUNNING,
    STATES,
    TOPIC,
    Workbench,
    new_job,
)

UNKNOWN = "01890000-0000-7000-8000-000000000000"
MALFORMED = ["", "x", "'; DROP TABLE jobs", "01890000-0000-7000-8000-00000000000G", UNKNOWN.replace("-", ""), "\0"]


def refused(answer: object) -> Refusal:
    assert isinstance(answer, Refusal), f"not refused: {answer}"
    return answer


def done(answer: object) -> Job:
    assert isinstance(answer, Job), f"refused: {answer}"
    return answer


def kind_of(answer: Job | Refusal | None) -> object:
    """The kind of the refusal, or what the job is now."""
    if isinstance(answer, Refusal):
        return type(answer.error)
    return "deleted" if answer is None else str(answer.status)


class CancelContract(ContractPart):
    @pytest.mark.parametrize("state", PENDING)
    async def test_a_pending_job_is_cancelled_immediately(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        job = done((await steering.cancel(bench.store, [id], "not needed"))[0])
        assert (job.id, job.status, job.cancel_reason) == (id, Status.CANCELLED, "not needed")
        assert job.cancelled_at is not None
        assert job.cancel_requested_at is not None
        assert await bench.history(id) == [*(["retrying"] if state == "retrying" else []), "cancelled"]
        assert id not in await bench.claimable()

    async def test_a_running_job_is_asked_to_stop(self, bench: Workbench) -> None:
        id = await bench.make("processing")
        job = done((await steering.cancel(bench.store, [id], "not needed"))[0])
        assert (job.status, job.cancel_reason, job.locked_by) == (Status.CANCELLING, "not needed", "w1")
        assert await bench.history(id) == ["cancelling"]

    async def test_asking_twice_changes_nothing(self, bench: Workbench) -> None:
        id = await bench.make("cancelling")
        before = await bench.job(id)
        assert done((await steering.cancel(bench.store, [id], "again"))[0]) == before

    @pytest.mark.parametrize("state", ENDED)
    async def test_an_ended_job_cannot_be_cancelled(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        before = await bench.job(id)
        error = refused((await steering.cancel(bench.store, [id], "too late"))[0]).error
        assert isinstance(error, WrongState)
        assert error.data["status"] == state
        assert await bench.job(id) == before

    async def test_a_running_job_of_an_uncancelable_topic_is_refused(self, bench: Workbench) -> None:
        running = await bench.make("processing")
        other = await bench.make("processing", topic="other")
        pending = await bench.make("pending")
        answers = await steering.cancel(bench.store, [running, pending, other], "", uncancelable=[TOPIC])
        assert isinstance(refused(answers[0]).error, NotCancelable)
        assert [done(answer).status for answer in answers[1:]] == [Status.CANCELLED, Status.CANCELLING]
        assert await bench.status(running) is Status.PROCESSING
        assert await bench.history(running) == []

    async def test_a_batch_of_all_kinds(self, bench: Workbench) -> None:
        ended = await bench.make("completed")
        running = await bench.make("processing")
        held, pending, delayed = [await bench.make(state) for state in ("held", "pending", "delayed")]
        ids = [pending, ended, UNKNOWN, running, "x", held, pending, delayed]
        answers = await steering.cancel(bench.store, ids, "all of them")
        assert [answer.id for answer in answers if answer] == ids
        kinds = [kind_of(answer) for answer in answers]
        assert kinds == [
            *("cancelled", WrongState, JobNotFound, "cancelling"),
            *(JobNotFound, "cancelled", "cancelled", "cancelled"),
        ]

    async def test_no_jobs_no_answers(self, bench: Workbench) -> None:
        assert await steering.cancel(bench.store, [], "") == []

    async def test_ids_of_no_job(self, bench: Workbench) -> None:
        answers = await steering.cancel(bench.store, [UNKNOWN, *MALFORMED], "")
        assert [type(refused(answer).error) for answer in answers] == [JobNotFound] * 7
        assert [refused(answer).id for answer in answers] == [UNKNOWN, *MALFORMED]

    async def test_a_reason_of_any_characters(self, bench: Workbench) -> None:
        reason = "ü'\"\\%_$1?1:x {}\n\t" * 20
        id = await bench.enqueue_one()
        assert done((await steering.cancel(bench.store, [id], reason))[0]).cancel_reason == reason

    async def test_without_a_reason(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = done((await steering.cancel(bench.store, [id], ""))[0])
        assert (job.status, job.cancel_reason or "") == (Status.CANCELLED, "")

    async def test_many_at_once(self, bench: Workbench) -> None:
        ids = await bench.enqueue(500)
        answers = await steering.cancel(bench.store, ids, "all")
        assert {done(answer).status for answer in answers} == {Status.CANCELLED}
        assert (await bench.store.stats()).counts["cancelled"] == 500


class RequeueContract(ContractPart):
    @pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
    async def test_an_ended_job_starts_again_from_zero(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        job = done((await steering.requeue(bench.store, [id]))[0])
        assert (job.id, job.status, job.attempt, job.retries) == (id, Status.PENDING, 0, 0)
        assert (job.claimed_at, job.started_at, job.failed_at, job.cancelled_at) == (None,) * 4
        assert (job.cancel_requested_at, job.cancel_reason, job.result_value) == (None,) * 3
        assert (await bench.history(id))[-1] == "requeued"
        claimed = await bench.claim_one()
        assert (claimed.id, claimed.attempt) == (id, 1)
        assert await bench.settle(claimed, Completed())
        assert await bench.status(id) is Status.COMPLETED

    async def test_the_old_outcome_is_kept_in_the_history(self, bench: Workbench) -> None:
        id = await bench.make("failed")
        before = await bench.job(id)
        await steering.requeue(bench.store, [id])
        event = (await bench.store.events(id) or ())[-1]
        assert (event.from_status, event.to_status) == ("failed", "pending")
        outcome = event.metadata["outcome"]
        assert (outcome["status"], outcome["attempt"]) == ("failed", before.attempt)
        assert (outcome["error"], outcome["errorType"]) == (before.last_error, before.error_type)
        assert from_ms(outcome["endedAt"]) == before.failed_at

    async def test_a_completed_job_only_with_force(self, bench: Workbench) -> None:
        id = await bench.make("completed")
        error = refused((await steering.requeue(bench.store, [id]))[0]).error
        assert isinstance(error, WrongState)
        assert error.data["status"] == "completed"
        job = done((await steering.requeue(bench.store, [id], force=True))[0])
        assert (job.status, job.result_value, job.progress) == (Status.PENDING, None, 0)
        event = (await bench.store.events(id) or ())[-1]
        assert event.metadata["outcome"]["result"] == '{"sent": 1}'

    async def test_a_stale_completed_job_without_force(self, bench: Workbench) -> None:
        id = await bench.make("completed")
        await bench.pass_time(8 * DAY)
        assert (await bench.job(id)).stale_at is not None
        job = done((await steering.requeue(bench.store, [id]))[0])
        assert (job.status, job.stale_at) == (Status.PENDING, None)

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("state", PENDING + RUNNING)
    async def test_a_live_job_is_not_requeued(self, bench: Workbench, state: str, force: bool) -> None:
        id = await bench.make(state)
        before = await bench.job(id)
        assert isinstance(refused((await steering.requeue(bench.store, [id], force))[0]).error, WrongState)
        assert await bench.job(id) == before

    async def test_twice_in_one_batch_is_once(self, bench: Workbench) -> None:
        id = await bench.make("failed")
        answers = await steering.requeue(bench.store, [id, id])
        assert [done(answer).status for answer in answers] == [Status.PENDING] * 2
        assert (await bench.history(id)).count("requeued") == 1

    async def test_a_batch_of_all_kinds(self, bench: Workbench) -> None:
        completed, failed, expired = [await bench.make(state) for state in ("completed", "failed", "expired")]
        pending = await bench.make("pending")
        answers = await steering.requeue(bench.store, [failed, completed, UNKNOWN, "x", pending, expired])
        kinds = [kind_of(answer) for answer in answers]
        assert kinds == ["pending", WrongState, JobNotFound, JobNotFound, WrongState, "pending"]

    async def test_no_jobs_no_answers(self, bench: Workbench) -> None:
        assert await steering.requeue(bench.store, []) == []

    async def test_it_queues_behind_waiting_jobs(self, bench: Workbench) -> None:
        failed = await bench.make("failed")
        waiting = await bench.enqueue(2, run_at=await bench.store.now() - 1)
        await steering.requeue(bench.store, [failed])
        assert await bench.claimable() == [*waiting, failed]

    async def test_again_and_again(self, bench: Workbench) -> None:
        id = await bench.make("failed")
        for _ in range(3):
            await steering.requeue(bench.store, [id])
            await bench.settle(await bench.claim_one(), Failed("Boom", "Boom"))
        assert await bench.history(id) == ["failed", *["requeued", "failed"] * 3]
        assert (await bench.store.stats()).counts["failed"] == 1

    async def test_a_non_repeatable_job_is_not_requeued_after_its_twin_completed(self, bench: Workbench) -> None:
        failed = await bench.make("failed", dedupe_key="d", repeatable=False)
        completed = await bench.make("completed", dedupe_key="d", repeatable=False)
        error = refused((await steering.requeue(bench.store, [failed]))[0]).error
        assert isinstance(error, NotRepeatable)
        assert error.data["jobId"] == completed
        assert await bench.status(failed) is Status.FAILED

    async def test_under_a_limit_it_waits_for_room(self, bench: Workbench) -> None:
        gate = Limit("g", "queue_same_scope", 1)
        failed = await bench.make("failed", limit=gate)
        other = await bench.enqueue_one(limit=gate, priority=60)
        await steering.requeue(bench.store, [failed])
        assert await bench.claimable() == [other]
        await steering.cancel(bench.store, [other], "")
        assert await bench.claimable() == [failed]

    async def test_after_its_limit_was_tidied_away(self, bench: Workbench) -> None:
        gate = Limit("g", "queue_same_scope", 1)
        failed = await bench.make("failed", limit=gate)
        await bench.store.tidy()
        await steering.requeue(bench.store, [failed])
        assert await bench.claimable() == [failed]


class ReleaseContract(ContractPart):
    async def test_a_running_job_is_put_back_unspent(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        seen = done((await steering.release(bench.store, [id]))[0])
        assert (seen.status, seen.attempt, seen.locked_by) == (Status.PENDING, 0, None)
        assert await bench.history(id) == ["released"]
        assert not await bench.settle(job, Completed()), "its owner was not told"
        assert await bench.claimable() == [id]

    async def test_a_cancelling_job_ends_as_cancelled(self, bench: Workbench) -> None:
        id = await bench.make("cancelling")
        assert done((await steering.release(bench.store, [id]))[0]).status is Status.CANCELLED

    @pytest.mark.parametrize("state", PENDING + ENDED)
    async def test_what_does_not_run_is_refused(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        before = await bench.job(id)
        assert isinstance(refused((await steering.release(bench.store, [id]))[0]).error, WrongState)
        assert await bench.job(id) == before

    async def test_ids_of_no_job(self, bench: Workbench) -> None:
        assert await steering.release(bench.store, []) == []
        answers = await steering.release(bench.store, [UNKNOWN, *MALFORMED])
        assert [type(refused(answer).error) for answer in answers] == [JobNotFound] * 7

    async def test_a_batch_of_all_kinds(self, bench: Workbench) -> None:
        running, cancelling = await bench.make("processing"), await bench.make("cancelling")
        pending = await bench.make("pending")
        answers = await steering.release(bench.store, [pending, running, UNKNOWN, cancelling])
        kinds = [kind_of(answer) for answer in answers]
        assert kinds == [WrongState, "pending", JobNotFound, "cancelled"]


class RescheduleContract(ContractPart):
    async def change(self, bench: Workbench, id: str, **changes: Any) -> Job | Refusal | None:
        return (await steering.reschedule(bench.store, [id], **changes))[0]

    @pytest.mark.parametrize("state", PENDING)
    async def test_every_pending_job_can_be_changed(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        attempt = (await bench.job(id)).attempt
        when = await bench.store.now() + 5 * HOUR
        job = done(await self.change(bench, id, run_at=when, priority=99, max_attempts=9))
        assert (job.status, job.priority, job.max_attempts, job.attempt) == (Status.PENDING, 99, 9, attempt)
        assert job.run_at == from_ms(when)
        assert id not in await bench.claimable()
        await bench.pass_time(6 * HOUR)
        await bench.store.advance()
        if state != "held":
            assert await bench.claimable() == [id]

    @pytest.mark.parametrize("state", ["delayed", "retrying"])
    async def test_bringing_a_job_forward(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        done(await self.change(bench, id, run_at=await bench.store.now() - 1))
        assert await bench.claimable() == [id]

    @pytest.mark.parametrize("state", PENDING)
    async def test_changing_nothing_changes_nothing(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        before = await bench.job(id)
        assert done(await self.change(bench, id)) == before

    async def test_a_job_may_get_fewer_attempts_but_not_fewer_than_it_has_used(self, bench: Workbench) -> None:
        id = await bench.make("retrying")
        before = await bench.job(id)
        error = refused(await self.change(bench, id, max_attempts=1, run_at=0)).error
        assert isinstance(error, InvalidInput)
        assert error.data == {"field": "max_attempts"}
        assert await bench.job(id) == before
        job = done(await self.change(bench, id, max_attempts=2, run_at=await bench.store.now()))
        assert (job.attempt, job.max_attempts) == (1, 2)
        claimed = await bench.claim_one()
        assert (claimed.attempt, claimed.max_attempts) == (2, 2)

    async def test_a_change_is_an_update(self, bench: Workbench) -> None:
        id = await bench.make("delayed")
        await bench.pass_time(MINUTE)
        before = await bench.job(id)
        after = done(await self.change(bench, id, priority=99))
        assert after.updated_at > before.updated_at
        now = await bench.store.now()
        assert abs(after.updated_at.timestamp() * 1000 - now) < MINUTE

    async def test_two_changes_of_different_fields_at_the_same_time_lose_nothing(self, bench: Workbench) -> None:
        other = await bench.another()
        ids = await bench.enqueue(20, delay_ms=HOUR)
        when = await bench.store.now() + 2 * HOUR
        for id in ids:
            answers = await asyncio.gather(
                steering.reschedule(bench.store, [id], priority=99),
                steering.reschedule(other, [id], run_at=when),
                steering.reschedule(bench.store, [id], max_attempts=9),
            )
            assert all(done(answer) for (answer,) in answers)
        jobs = [await bench.job(id) for id in ids]
        assert {(job.priority, job.run_at, job.max_attempts) for job in jobs} == {(99, from_ms(when), 9)}

    @pytest.mark.parametrize("state", RUNNING + ENDED)
    async def test_other_states_are_refused(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        before = await bench.job(id)
        answer = await self.change(bench, id, priority=99)
        assert isinstance(refused(answer).error, WrongState)
        assert await bench.job(id) == before

    async def test_ids_of_no_job(self, bench: Workbench) -> None:
        for id in [UNKNOWN, *MALFORMED]:
            answer = refused(await self.change(bench, id, priority=1))
            assert (answer.id, type(answer.error)) == (id, JobNotFound)

    async def test_delaying_a_gated_job_makes_room(self, bench: Workbench) -> None:
        gate = Limit("g", "queue_same_scope", 1)
        first, second = await bench.enqueue_one(limit=gate), await bench.enqueue_one(limit=gate)
        await self.change(bench, first, run_at=await bench.store.now() + HOUR)
        assert await bench.claimable() == [second]
        await bench.pass_time(2 * HOUR)
        await bench.store.advance()
        assert await bench.claimable() == [first], "it is due for longer, and nothing runs"

    async def test_a_held_job_with_a_higher_priority_is_let_in_first(self, bench: Workbench) -> None:
        gate = Limit("g", "queue_same_scope", 1)
        first, second, third = [await bench.enqueue_one(limit=gate) for _ in range(3)]
        done(await self.change(bench, third, priority=90))
        await steering.cancel(bench.store, [first], "")
        assert await bench.claimable() == [third]
        await steering.cancel(bench.store, [third], "")
        assert await bench.claimable() == [second]


class DryRunContract(ContractPart):
    """A dry run answers like the real one, and changes nothing."""

    @pytest.mark.parametrize("state", STATES)
    async def test_it_changes_nothing(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        before, history = await bench.job(id), await bench.history(id)
        judges: list[Judge] = [
            lambda _: CancelRequested("x"),
            lambda _: Requeued(force=True),
            lambda _: ReleasedByHand(),
            lambda _: Rescheduled(Patch(priority=1)),
            lambda _: Deleted(force=True),
        ]
        for judge in judges:
            (dry,) = await bench.store.steer([id], judge, dry_run=True)
            assert isinstance(dry, Refusal) or dry == before
            assert (await bench.job(id), await bench.history(id)) == (before, history)

    async def test_it_refuses_what_would_be_refused(self, bench: Workbench) -> None:
        failed = await bench.make("failed", dedupe_key="d")
        await bench.enqueue(1, dedupe_key="d")
        (dry,) = await steering.requeue(bench.store, [failed], dry_run=True)
        (real,) = await steering.requeue(bench.store, [failed])
        assert type(refused(dry).error) is type(refused(real).error)

    async def test_a_disabled_topic_is_refused(self, bench: Workbench) -> None:
        failed = await bench.make("failed")
        (answer,) = await steering.requeue(bench.store, [failed], disabled=[TOPIC])
        assert isinstance(refused(answer).error, TemplateDisabled)
        assert await bench.status(failed) is Status.FAILED


class DeleteContract(ContractPart):
    @pytest.mark.parametrize("state", [*PENDING, "failed", "cancelled", "expired"])
    async def test_what_does_not_run_can_be_deleted(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        others = await bench.store.count(Listing())
        assert await steering.delete(bench.store, [id]) == [None]
        assert await bench.store.get([id]) == [None]
        assert await bench.store.events(id) is None
        assert await bench.store.count(Listing()) == others - 1
        assert id not in await bench.claimable()

    async def test_a_completed_job_only_with_force(self, bench: Workbench) -> None:
        id = await bench.make("completed")
        error = refused((await steering.delete(bench.store, [id]))[0]).error
        assert isinstance(error, WrongState)
        assert error.data["status"] == "completed"
        assert await bench.status(id) is Status.COMPLETED
        assert await steering.delete(bench.store, [id], force=True) == [None]
        assert await bench.store.get([id]) == [None]

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("state", RUNNING)
    async def test_a_running_job_is_never_deleted(self, bench: Workbench, state: str, force: bool) -> None:
        id = await bench.make(state)
        assert isinstance(refused((await steering.delete(bench.store, [id], force))[0]).error, WrongState)
        assert await bench.status(id) is Status(state)

    async def test_a_batch_of_all_kinds(self, bench: Workbench) -> None:
        completed, failed = await bench.make("completed"), await bench.make("failed")
        running, pending = await bench.make("processing"), await bench.make("pending")
        answers = await steering.delete(bench.store, [failed, completed, UNKNOWN, "x", running, pending, failed])
        kinds = [kind_of(answer) for answer in answers]
        assert kinds == ["deleted", WrongState, JobNotFound, JobNotFound, WrongState, "deleted", "deleted"]

    async def test_ids_of_no_job(self, bench: Workbench) -> None:
        assert await steering.delete(bench.store, []) == []
        answers = await steering.delete(bench.store, [UNKNOWN, *MALFORMED])
        assert [type(refused(answer).error) for answer in answers] == [JobNotFound] * 7

    async def test_nothing_is_left_of_it(self, bench: Workbench) -> None:
        """The database's consistency check after this test finds leftover rows."""
        id = await bench.make("retrying", dedupe_key="d", idempotency_key="k", expires_in_ms=HOUR)
        await steering.delete(bench.store, [id])
        await bench.enqueue(1, dedupe_key="d", idempotency_key="k", payload='{"other": 1}')

    async def test_a_deleted_job_makes_room(self, bench: Workbench) -> None:
        gate = Limit("g", "queue_same_scope", 1)
        first, second, third = [await bench.enqueue_one(limit=gate) for _ in range(3)]
        await steering.delete(bench.store, [second])
        assert await bench.claimable() == [first]
        await steering.delete(bench.store, [first])
        assert await bench.claimable() == [third]

    async def test_its_id_is_free_again(self, bench: Workbench) -> None:
        job = new_job()
        await bench.store.insert([job])
        await steering.delete(bench.store, [job.id])
        await bench.store.insert([job])
        assert await bench.claimable() == [job.id]

    async def test_ended_jobs_are_no_longer_counted(self, bench: Workbench) -> None:
        ids = [await bench.make(state) for state in ("completed", "failed", "expired", "cancelled")]
        await steering.delete(bench.store, ids[1:3])
        counts = (await bench.store.stats()).counts
        assert [counts[status] for status in ENDED] == [1, 0, 1, 0]
