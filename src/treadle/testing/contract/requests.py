"""What people ask for: cancel, requeue, release, reschedule, delete, of jobs in every state."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.errors import JobNotFound, NotCancelable, NotRepeatable, WrongState
from treadle.job import Job, from_ms
from treadle.lifecycle import Completed, Failed, Status
from treadle.store.base import Gate, Listing, Refusal
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import (
    DAY,
    ENDED,
    HOUR,
    PENDING,
    RUNNING,
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


class CancelContract(ContractPart):
    @pytest.mark.parametrize("state", PENDING)
    async def test_a_pending_job_is_cancelled_at_once(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        job = done((await bench.store.cancel([id], "not needed"))[0])
        assert (job.id, job.status, job.cancel_reason) == (id, Status.CANCELLED, "not needed")
        assert job.cancelled_at is not None
        assert job.cancel_requested_at is not None
        assert await bench.history(id) == [*(["retrying"] if state == "retrying" else []), "cancelled"]
        assert id not in await bench.claimable()

    async def test_a_running_job_is_asked_to_stop(self, bench: Workbench) -> None:
        id = await bench.make("processing")
        job = done((await bench.store.cancel([id], "not needed"))[0])
        assert (job.status, job.cancel_reason, job.locked_by) == (Status.CANCELLING, "not needed", "w1")
        assert await bench.history(id) == ["cancelling"]

    async def test_asking_twice_changes_nothing(self, bench: Workbench) -> None:
        id = await bench.make("cancelling")
        before = await bench.job(id)
        assert done((await bench.store.cancel([id], "again"))[0]) == before

    @pytest.mark.parametrize("state", ENDED)
    async def test_an_ended_job_cannot_be_cancelled(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        before = await bench.job(id)
        error = refused((await bench.store.cancel([id], "too late"))[0]).error
        assert isinstance(error, WrongState)
        assert error.data["status"] == state
        assert await bench.job(id) == before

    async def test_a_running_job_of_an_uncancelable_topic_is_refused(self, bench: Workbench) -> None:
        running = await bench.make("processing")
        other = await bench.make("processing", topic="other")
        pending = await bench.make("pending")
        answers = await bench.store.cancel([running, pending, other], "", uncancelable=[TOPIC])
        assert isinstance(refused(answers[0]).error, NotCancelable)
        assert [done(answer).status for answer in answers[1:]] == [Status.CANCELLED, Status.CANCELLING]
        assert await bench.status(running) is Status.PROCESSING
        assert await bench.history(running) == []

    async def test_a_batch_of_all_kinds(self, bench: Workbench) -> None:
        ended = await bench.make("completed")
        running = await bench.make("processing")
        pending, held, delayed = [await bench.make(state) for state in ("pending", "held", "delayed")]
        ids = [pending, ended, UNKNOWN, running, "x", held, pending, delayed]
        answers = await bench.store.cancel(ids, "all of them")
        assert [answer.id for answer in answers] == ids
        kinds = [type(refusal.error) if isinstance(refusal, Refusal) else str(refusal.status) for refusal in answers]
        assert kinds == [
            *("cancelled", WrongState, JobNotFound, "cancelling"),
            *(JobNotFound, "cancelled", "cancelled", "cancelled"),
        ]

    async def test_no_jobs_no_answers(self, bench: Workbench) -> None:
        assert await bench.store.cancel([], "") == []

    async def test_ids_of_no_job(self, bench: Workbench) -> None:
        answers = await bench.store.cancel([UNKNOWN, *MALFORMED], "")
        assert [type(refused(answer).error) for answer in answers] == [JobNotFound] * 7
        assert [answer.id for answer in answers] == [UNKNOWN, *MALFORMED]

    async def test_a_reason_of_any_characters(self, bench: Workbench) -> None:
        reason = "ü'\"\\%_$1?1:x {}\n\t" * 20
        id = await bench.enqueue_one()
        assert done((await bench.store.cancel([id], reason))[0]).cancel_reason == reason

    async def test_without_a_reason(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = done((await bench.store.cancel([id], ""))[0])
        assert (job.status, job.cancel_reason or "") == (Status.CANCELLED, "")

    async def test_many_at_once(self, bench: Workbench) -> None:
        ids = await bench.enqueue(500)
        answers = await bench.store.cancel(ids, "all")
        assert {done(answer).status for answer in answers} == {Status.CANCELLED}
        assert (await bench.store.stats()).counts["cancelled"] == 500


class RequeueContract(ContractPart):
    @pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
    async def test_an_ended_job_starts_again_from_zero(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        job = done((await bench.store.requeue([id]))[0])
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
        await bench.store.requeue([id])
        event = (await bench.store.events(id) or ())[-1]
        assert (event.from_status, event.to_status) == ("failed", "pending")
        outcome = event.metadata["outcome"]
        assert (outcome["status"], outcome["attempt"]) == ("failed", before.attempt)
        assert (outcome["error"], outcome["errorType"]) == (before.last_error, before.error_type)
        assert from_ms(outcome["endedAt"]) == before.failed_at

    async def test_a_completed_job_only_with_force(self, bench: Workbench) -> None:
        id = await bench.make("completed")
        error = refused((await bench.store.requeue([id]))[0]).error
        assert isinstance(error, WrongState)
        assert error.data["status"] == "completed"
        job = done((await bench.store.requeue([id], force=True))[0])
        assert (job.status, job.result_value, job.progress) == (Status.PENDING, None, 0)
        event = (await bench.store.events(id) or ())[-1]
        assert event.metadata["outcome"]["result"] == '{"sent": 1}'

    async def test_a_stale_completed_job_as_it_is(self, bench: Workbench) -> None:
        id = await bench.make("completed")
        await bench.pass_time(8 * DAY)
        assert (await bench.job(id)).stale_at is not None
        job = done((await bench.store.requeue([id]))[0])
        assert (job.status, job.stale_at) == (Status.PENDING, None)

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("state", PENDING + RUNNING)
    async def test_a_live_job_is_not_requeued(self, bench: Workbench, state: str, force: bool) -> None:
        id = await bench.make(state)
        before = await bench.job(id)
        assert isinstance(refused((await bench.store.requeue([id], force))[0]).error, WrongState)
        assert await bench.job(id) == before

    async def test_twice_in_one_batch_is_once(self, bench: Workbench) -> None:
        id = await bench.make("failed")
        answers = await bench.store.requeue([id, id])
        assert [done(answer).status for answer in answers] == [Status.PENDING] * 2
        assert (await bench.history(id)).count("requeued") == 1

    async def test_a_batch_of_all_kinds(self, bench: Workbench) -> None:
        completed, failed, expired = [await bench.make(state) for state in ("completed", "failed", "expired")]
        pending = await bench.make("pending")
        answers = await bench.store.requeue([failed, completed, UNKNOWN, "x", pending, expired])
        kinds = [type(answer.error) if isinstance(answer, Refusal) else str(answer.status) for answer in answers]
        assert kinds == ["pending", WrongState, JobNotFound, JobNotFound, WrongState, "pending"]

    async def test_no_jobs_no_answers(self, bench: Workbench) -> None:
        assert await bench.store.requeue([]) == []

    async def test_it_queues_behind_those_who_wait(self, bench: Workbench) -> None:
        failed = await bench.make("failed")
        waiting = await bench.enqueue(2, run_at=await bench.store.now() - 1)
        await bench.store.requeue([failed])
        assert await bench.claimable() == [*waiting, failed]

    async def test_again_and_again(self, bench: Workbench) -> None:
        id = await bench.make("failed")
        for _ in range(3):
            await bench.store.requeue([id])
            await bench.settle(await bench.claim_one(), Failed("Boom", "Boom"))
        assert await bench.history(id) == ["failed", *["requeued", "failed"] * 3]
        assert (await bench.store.stats()).counts["failed"] == 1

    async def test_what_may_complete_once_is_not_requeued_beside_its_completed_twin(self, bench: Workbench) -> None:
        failed = await bench.make("failed", dedupe_key="d", repeatable=False)
        completed = await bench.make("completed", dedupe_key="d", repeatable=False)
        error = refused((await bench.store.requeue([failed]))[0]).error
        assert isinstance(error, NotRepeatable)
        assert error.data["jobId"] == completed
        assert await bench.status(failed) is Status.FAILED

    async def test_under_a_limit_it_waits_for_room(self, bench: Workbench) -> None:
        gate = Gate("g", "queue_same_scope", 1)
        failed = await bench.make("failed", gate=gate)
        other = await bench.enqueue_one(gate=gate)
        await bench.store.requeue([failed])
        assert await bench.claimable() == [other]
        await bench.store.cancel([other], "")
        assert await bench.claimable() == [failed]

    async def test_after_its_limit_was_tidied_away(self, bench: Workbench) -> None:
        gate = Gate("g", "queue_same_scope", 1)
        failed = await bench.make("failed", gate=gate)
        await bench.store.tidy()
        await bench.store.requeue([failed])
        assert await bench.claimable() == [failed]


class ReleaseContract(ContractPart):
    async def test_a_running_job_is_put_back_unspent(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        seen = done((await bench.store.release([id]))[0])
        assert (seen.status, seen.attempt, seen.locked_by) == (Status.PENDING, 0, None)
        assert await bench.history(id) == ["released"]
        assert not await bench.settle(job, Completed()), "its owner was not told"
        assert await bench.claimable() == [id]

    async def test_a_cancelling_job_ends_as_cancelled(self, bench: Workbench) -> None:
        id = await bench.make("cancelling")
        assert done((await bench.store.release([id]))[0]).status is Status.CANCELLED

    @pytest.mark.parametrize("state", PENDING + ENDED)
    async def test_what_does_not_run_is_refused(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        before = await bench.job(id)
        assert isinstance(refused((await bench.store.release([id]))[0]).error, WrongState)
        assert await bench.job(id) == before

    async def test_ids_of_no_job(self, bench: Workbench) -> None:
        assert await bench.store.release([]) == []
        answers = await bench.store.release([UNKNOWN, *MALFORMED])
        assert [type(refused(answer).error) for answer in answers] == [JobNotFound] * 7

    async def test_a_batch_of_all_kinds(self, bench: Workbench) -> None:
        running, cancelling = await bench.make("processing"), await bench.make("cancelling")
        pending = await bench.make("pending")
        answers = await bench.store.release([pending, running, UNKNOWN, cancelling])
        kinds = [type(answer.error) if isinstance(answer, Refusal) else str(answer.status) for answer in answers]
        assert kinds == [WrongState, "pending", JobNotFound, "cancelled"]


class RescheduleContract(ContractPart):
    async def change(self, bench: Workbench, id: str, **changes: Any) -> Job | Refusal:
        return await bench.store.reschedule(id, **{"run_at": None, "priority": None, "max_attempts": None, **changes})

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
        await bench.store.promote()
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

    async def test_a_job_may_get_fewer_attempts_but_always_one_more(self, bench: Workbench) -> None:
        id = await bench.make("retrying")
        job = done(await self.change(bench, id, max_attempts=1, run_at=await bench.store.now()))
        assert (job.attempt, job.max_attempts) == (1, 2)
        claimed = await bench.claim_one()
        assert (claimed.attempt, claimed.max_attempts) == (2, 2)

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
        gate = Gate("g", "queue_same_scope", 1)
        first, second = await bench.enqueue_one(gate=gate), await bench.enqueue_one(gate=gate)
        await self.change(bench, first, run_at=await bench.store.now() + HOUR)
        assert await bench.claimable() == [second]
        await bench.pass_time(2 * HOUR)
        await bench.store.promote()
        assert await bench.claimable() == [second]

    async def test_a_held_job_with_a_higher_priority_is_let_in_first(self, bench: Workbench) -> None:
        gate = Gate("g", "queue_same_scope", 1)
        first, second, third = [await bench.enqueue_one(gate=gate) for _ in range(3)]
        done(await self.change(bench, third, priority=90))
        await bench.store.cancel([first], "")
        assert await bench.claimable() == [third]
        await bench.store.cancel([third], "")
        assert await bench.claimable() == [second]


class DeleteContract(ContractPart):
    @pytest.mark.parametrize("state", [*PENDING, "failed", "cancelled", "expired"])
    async def test_what_does_not_run_can_be_deleted(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        others = await bench.store.count(Listing())
        assert await bench.store.delete([id]) == [id]
        assert await bench.store.get([id]) == [None]
        assert await bench.store.events(id) is None
        assert await bench.store.count(Listing()) == others - 1
        assert id not in await bench.claimable()

    async def test_a_completed_job_only_with_force(self, bench: Workbench) -> None:
        id = await bench.make("completed")
        error = refused((await bench.store.delete([id]))[0]).error
        assert isinstance(error, WrongState)
        assert error.data["status"] == "completed"
        assert await bench.status(id) is Status.COMPLETED
        assert await bench.store.delete([id], force=True) == [id]
        assert await bench.store.get([id]) == [None]

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("state", RUNNING)
    async def test_a_running_job_is_never_deleted(self, bench: Workbench, state: str, force: bool) -> None:
        id = await bench.make(state)
        assert isinstance(refused((await bench.store.delete([id], force))[0]).error, WrongState)
        assert await bench.status(id) is Status(state)

    async def test_a_batch_of_all_kinds(self, bench: Workbench) -> None:
        completed, failed = await bench.make("completed"), await bench.make("failed")
        running, pending = await bench.make("processing"), await bench.make("pending")
        answers = await bench.store.delete([failed, completed, UNKNOWN, "x", running, pending, failed])
        kinds = [type(answer.error) if isinstance(answer, Refusal) else answer for answer in answers]
        assert kinds == [failed, WrongState, JobNotFound, JobNotFound, WrongState, pending, failed]

    async def test_ids_of_no_job(self, bench: Workbench) -> None:
        assert await bench.store.delete([]) == []
        answers = await bench.store.delete([UNKNOWN, *MALFORMED])
        assert [type(refused(answer).error) for answer in answers] == [JobNotFound] * 7

    async def test_nothing_is_left_of_it(self, bench: Workbench) -> None:
        """The database's own check after this test looks for what might hang about."""
        id = await bench.make("retrying", dedupe_key="d", idempotency_key="k", expires_in_ms=HOUR)
        await bench.store.delete([id])
        await bench.enqueue(1, dedupe_key="d", idempotency_key="k", payload='{"other": 1}')

    async def test_a_deleted_job_makes_room(self, bench: Workbench) -> None:
        gate = Gate("g", "queue_same_scope", 1)
        first, second, third = [await bench.enqueue_one(gate=gate) for _ in range(3)]
        await bench.store.delete([second])
        assert await bench.claimable() == [first]
        await bench.store.delete([first])
        assert await bench.claimable() == [third]

    async def test_its_id_is_free_again(self, bench: Workbench) -> None:
        job = new_job()
        await bench.store.insert([job])
        await bench.store.delete([job.id])
        await bench.store.insert([job])
        assert await bench.claimable() == [job.id]

    async def test_ended_jobs_are_no_longer_counted(self, bench: Workbench) -> None:
        ids = [await bench.make(state) for state in ("completed", "failed", "expired", "cancelled")]
        await bench.store.delete(ids[1:3])
        counts = (await bench.store.stats()).counts
        assert [counts[status] for status in ENDED] == [1, 0, 1, 0]
