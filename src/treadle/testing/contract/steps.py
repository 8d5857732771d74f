"""Steps: what they have done is kept, an answer counts once, and a waiting job costs nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_core import from_json

from treadle.model.errors import JobNotFound, StepEnded, TreadleError, UnknownStep, WrongState
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.policy import rules
from treadle.policy.admission import QUEUE, Limit
from treadle.policy.lifecycle import Completed, Failed, Parked, Released, Snoozed
from treadle.queue import steering
from treadle.store.values import (
    Answer,
    Checkpoint,
    Claimed,
    ClaimedStep,
    EarlyAnswer,
    Effects,
    NewStep,
    Refusal,
    StepKey,
    StepWrite,
)
from treadle.store.views import Listing
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, Workbench, settlement

FLOW = (NewStep("fetch", "Fetch it"), NewStep("approve", "approve"), NewStep("publish", "publish"))
DONE = StepState.COMPLETED


def write(name: str, state: StepState = DONE, key: str = "", **fields: Any) -> StepWrite:
    place = next((i for i, step in enumerate(FLOW) if step.name == name), 0)
    return StepWrite(name, key, state, place, **{"attempt": 1, "started_ago_ms": 20, **fields})


def checkpoint(job: Claimed, *steps: StepWrite, **fields: Any) -> Checkpoint:
    return Checkpoint(job.n, job.token, 50, steps, **fields)


def states(job: Job) -> dict[str, str]:
    return {step["id"]: step["status"] for step in job.steps}


async def park(bench: Workbench, job: Claimed, *waits: StepWrite) -> bool:
    """Whether the ending was accepted."""
    names = ", ".join(step.name for step in waits)
    return not await bench.store.settle([settlement(job, Parked(names))._replace(effects=Effects(steps=waits))])


async def waiting(bench: Workbench, **options: Any) -> str:
    """A flow that waits for its approval, for an hour at most."""
    id = await bench.enqueue_one(**{"steps": FLOW, **options})
    job = await bench.claim_one()
    assert not await bench.store.checkpoint(job.lease, [checkpoint(job, write("fetch", result='{"docs": 3}'))])
    assert await park(bench, job, write("approve", StepState.WAITING, until_ms=HOUR, schema='{"type": "object"}'))
    return id


async def answered(bench: Workbench, id: str, step: str = "approve", **fields: Any) -> Refusal | None:
    return (await bench.store.answer([Answer(id, step, **{"result": "1", **fields})]))[0]


def error_of(refusal: Refusal | None) -> type[BaseException]:
    assert refusal is not None, "it was accepted"
    assert isinstance(refusal.error, TreadleError)
    return type(refusal.error)


class CheckpointContract(ContractPart):
    async def test_a_new_flow_has_its_declared_steps(self, bench: Workbench) -> None:
        job = await bench.job(await bench.enqueue_one(steps=FLOW))
        assert states(job) == {"fetch": "pending", "approve": "pending", "publish": "pending"}
        assert job.step is None
        assert job.steps[0] == {
            "id": "fetch",
            "name": "Fetch it",
            "status": "pending",
            "progress": 0,
            "message": None,
            "attempt": 0,
            "startedAt": None,
            "completedAt": None,
            "error": None,
            "result": None,
            "resultSize": None,
            "key": None,
            "items": None,
        }

    async def test_a_plain_job_has_none(self, bench: Workbench) -> None:
        assert (await bench.job(await bench.enqueue_one())).steps == []

    async def test_a_finished_step_is_kept_with_its_event(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(steps=FLOW)
        claimed = await bench.claim_one()
        one = checkpoint(claimed, write("fetch", result='{"docs":[1,"ü"]}', input_hash="h"), progress=33, message="33")
        assert await bench.store.checkpoint(claimed.lease, [one]) == []
        job = await bench.job(id)
        step = job.steps[0]
        assert (step["status"], step["progress"], step["result"], step["resultSize"], step["attempt"]) == (
            "completed",
            100,
            {"docs": [1, "ü"]},
            17,
            1,
        )
        assert step["startedAt"] < step["completedAt"]
        assert (job.step, job.progress, job.progress_message, job.status) == ("fetch", 33, "33", Status.PROCESSING)
        assert job.started_at is not None
        assert await bench.history(id) == ["step:completed"]
        event = (await bench.store.events(id) or [])[0]
        assert (event.message, event.metadata["step"], event.metadata["durationMs"]) == ("fetch", "fetch", 20)

    async def test_the_next_owner_finds_what_was_done(self, bench: Workbench) -> None:
        await bench.enqueue_one(steps=FLOW)
        first = await bench.claim_one()
        await bench.store.checkpoint(
            first.lease,
            [
                checkpoint(first, write("fetch", result='{"a": 1}', input_hash="h", ran_ms=7)),
                checkpoint(first, write("approve", StepState.PROCESSING)),
            ],
        )
        await bench.settle(first, Released("shutdown"))
        again = await bench.claim_one()
        found = (await bench.store.claimed_steps([again.n]))[again.n]
        assert found.answers == ()
        steps = {step.name: step for step in found.steps}
        assert steps["fetch"] == ClaimedStep(
            "fetch", "", 0, DONE, 1, 7, None, steps["fetch"].result, 8, "h", declared=True
        )
        assert from_json(steps["fetch"].result or "") == {"a": 1}
        assert steps["approve"] == ClaimedStep("approve", "", 1, StepState.PENDING, 1, declared=True)
        assert steps["publish"] == ClaimedStep("publish", "", 2, StepState.PENDING, 0, declared=True)

    async def test_a_plain_handler_gets_steps_with_its_first_checkpoint(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        assert await bench.store.claimed_steps([job.n]) == {}
        writes = [write("llm", key=str(turn), result=str(turn)) for turn in range(3)]
        await bench.store.checkpoint(job.lease, [checkpoint(job, *writes)])
        failed = write("llm", StepState.FAILED, key="3", error="Boom", error_type="Boom")
        await bench.store.checkpoint(job.lease, [checkpoint(job, failed, flagged=True)])
        [step] = (await bench.job(id)).steps
        assert step["items"] == {"total": 4, "done": 3, "failed": 1}
        assert (step["status"], step["progress"], step["result"]) == ("failed", 75, None)
        await bench.settle(job, Released())
        again = await bench.claim_one()
        assert len((await bench.store.claimed_steps([again.n]))[again.n].steps) == 4

    async def test_a_stale_owner_writes_nothing(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(steps=FLOW)
        old = await bench.claim_one()
        await steering.release(bench.store, [id])
        new = await bench.claim_one()
        assert await bench.store.checkpoint(old.lease, [checkpoint(old, write("fetch"))]) == [(old.n, old.token)]
        both = [checkpoint(new, write("publish")), checkpoint(old, write("fetch"))]
        assert await bench.store.checkpoint(new.lease, both) == [(old.n, old.token)]
        assert states(await bench.job(id)) == {"fetch": "pending", "approve": "pending", "publish": "completed"}

    async def test_a_reclaimed_lease_writes_nothing(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(steps=FLOW)
        job = await bench.claim_one()
        await bench.store.checkpoint(job.lease, [checkpoint(job, write("fetch", StepState.PROCESSING))])
        await bench.store.close_lease(job.lease)
        await bench.reap()
        assert await bench.store.checkpoint(job.lease, [checkpoint(job, write("fetch"))]) == [(job.n, job.token)]
        step = (await bench.job(id)).steps[0]
        assert (step["status"], step["error"]) == ("failed", "worker lost")

    async def test_many_jobs_share_a_write(self, bench: Workbench) -> None:
        ids = await bench.enqueue(50, steps=FLOW)
        jobs = await bench.claim(50)
        assert not await bench.store.checkpoint(jobs[0].lease, [checkpoint(job, write("fetch")) for job in jobs])
        assert {states(await bench.job(id))["fetch"] for id in ids} == {"completed"}

    async def test_a_step_and_its_jobs_end_are_stored_together(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(steps=FLOW)
        job = await bench.claim_one()
        last = settlement(job, Completed('"url"'))._replace(effects=Effects(steps=(write("publish", result='"url"'),)))
        assert await bench.store.settle([last]) == []
        seen = await bench.job(id)
        assert (seen.status, seen.result_value, states(seen)["publish"]) == (Status.COMPLETED, "url", "completed")

    async def test_a_large_result_is_kept_apart(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(steps=FLOW)
        job = await bench.claim_one()
        large = '"' + "x" * 100_000 + '"'
        await bench.store.checkpoint(job.lease, [checkpoint(job, write("fetch", result=large))])
        step = (await bench.job(id)).steps[0]
        assert (step["result"], step["resultSize"]) == (None, 100_002)
        page = await bench.store.steps(id, "fetch")
        assert page is not None
        assert page.items[0]["result"] == "x" * 100_000
        small = await bench.store.steps(id, "fetch", max_result_bytes=65_536)
        assert small is not None
        assert (small.items[0]["result"], small.items[0]["resultSize"]) == (None, 100_002)
        key = StepKey("fetch")
        assert await bench.store.step_results(job.n, [key]) == {key: large}

    async def test_lists_come_without_the_results_of_steps(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(steps=FLOW)
        job = await bench.claim_one()
        await bench.store.checkpoint(job.lease, [checkpoint(job, write("fetch", result='{"a":1}'))])
        [listed] = await bench.store.list(Listing())
        whole, *others = (await bench.job(id)).steps
        assert (whole["result"], whole["resultSize"]) == ({"a": 1}, 7)
        assert listed.steps == [{**whole, "result": None}, *others]

    async def test_the_runs_of_a_step_come_in_pages(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        writes = [write("embed", key=f"{i:03}", result=str(i), started_ago_ms=500 - i) for i in range(120)]
        await bench.store.checkpoint(job.lease, [checkpoint(job, *writes)])
        page = await bench.store.steps(id, "embed", offset=100, limit=50)
        assert page is not None
        assert (page.total, [item["result"] for item in page.items]) == (120, list(range(100, 120)))
        assert page.items[0]["key"] == "100"
        assert await bench.store.steps(id, "nothing") is None
        assert await bench.store.steps("nobody", "embed") is None

    async def test_deleting_a_job_deletes_its_steps(self, bench: Workbench) -> None:
        id = await waiting(bench)
        await steering.cancel(bench.store, [id])
        assert await steering.delete(bench.store, [id]) == [None]
        assert await bench.store.steps(id, "fetch") is None

    async def test_filters_see_steps(self, bench: Workbench) -> None:
        id = await waiting(bench)
        await bench.enqueue(2)
        of_steps = ('step = "approve"', 'phase = "approve"', 'steps.1.status = "waiting"', "progress = 33")
        for text in (*of_steps, 'status = "waiting"'):
            found = await bench.store.list(Listing(condition=rules.parse_filter(text)))
            assert [job.id for job in found] == [id], text


class WaitContract(ContractPart):
    async def test_a_waiting_job_has_no_holder(self, bench: Workbench) -> None:
        id = await waiting(bench)
        job = await bench.job(id)
        assert (job.status, job.attempt, job.locked_by, job.step) == (Status.WAITING, 0, None, "approve")
        assert job.progress == 33, "one of three steps has finished"
        assert job.waits_until is not None
        assert 59 < (job.waits_until - job.created_at).total_seconds() / 60 < 70
        assert states(job) == {"fetch": "completed", "approve": "waiting", "publish": "pending"}
        assert await bench.history(id) == ["step:completed", "waiting"]
        assert [one.id for one in await bench.store.list(Listing(status=Status.WAITING))] == [id]
        assert (await bench.store.stats()).counts["waiting"] == 1
        assert await bench.claimable() == []

    async def test_an_answer_wakes_it(self, bench: Workbench) -> None:
        id = await waiting(bench)
        assert await answered(bench, id, result='{"ok": true}', answered_by="ann") is None
        job = await bench.job(id)
        assert (job.status, states(job)["approve"], job.steps[1]["result"]) == (
            Status.PENDING,
            "completed",
            {"ok": True},
        )
        event = (await bench.store.events(id) or [])[-1]
        assert (event.type, event.metadata["answeredBy"]) == ("job:step:completed", "ann")
        again = await bench.claim_one()
        assert (again.id, again.attempt) == (id, 1)

    async def test_null_is_an_answer(self, bench: Workbench) -> None:
        id = await waiting(bench)
        assert await answered(bench, id, result=None) is None
        assert states(await bench.job(id))["approve"] == "completed"

    async def test_the_first_answer_counts(self, bench: Workbench) -> None:
        id = await waiting(bench)
        assert await answered(bench, id, result="1") is None
        assert error_of(await answered(bench, id, result="2")) is StepEnded
        assert (await bench.job(id)).steps[1]["result"] == 1

    async def test_an_error_is_an_answer(self, bench: Workbench) -> None:
        id = await waiting(bench)
        assert await answered(bench, id, result=None, error="not like this") is None
        job = await bench.job(id)
        assert (job.status, states(job)["approve"], job.steps[1]["error"]) == (
            Status.PENDING,
            "failed",
            "not like this",
        )
        assert error_of(await answered(bench, id)) is StepEnded
        claimed = await bench.claim_one()
        found = (await bench.store.claimed_steps([claimed.n]))[claimed.n]
        assert [step.error_type for step in found.steps if step.name == "approve"] == ["AnswerError"]

    async def test_an_answer_after_a_timeout_is_kept_for_the_next_attempt(self, bench: Workbench) -> None:
        id = await waiting(bench)
        await bench.pass_time(HOUR + MINUTE)
        assert await bench.promoted()
        job = await bench.claim_one()
        late = write("approve", StepState.FAILED, error="nobody answered", error_type="WaitTimeout")
        assert not await bench.store.checkpoint(job.lease, [checkpoint(job, late)])
        assert error_of(await answered(bench, id)) is StepEnded  # its handler may catch that
        told = Effects(steps=(late._replace(error_type=None),))
        assert not await bench.store.settle([settlement(job, Failed("late", "", MINUTE))._replace(effects=told)])
        assert await answered(bench, id, result='"yes"') is None
        assert error_of(await answered(bench, id)) is StepEnded
        assert states(await bench.job(id))["approve"] == "failed"
        await bench.pass_time(2 * MINUTE)
        assert await bench.promoted()
        n = (await bench.claim_one()).n
        assert (await bench.store.claimed_steps([n]))[n].answers == (EarlyAnswer("approve", "", '"yes"', None),)

    async def test_an_answer_to_nothing(self, bench: Workbench) -> None:
        id = await waiting(bench)
        nobody = "01890000-0000-7000-8000-000000000000"
        answers = [Answer(id, "nothing"), Answer(nobody, "approve"), Answer("x", "approve"), Answer(id, "fetch")]
        refusals = [error_of(one) for one in await bench.store.answer(answers)]
        assert refusals == [UnknownStep, JobNotFound, JobNotFound, StepEnded]
        assert await bench.status(id) is Status.WAITING

    async def test_an_early_answer_is_kept(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(steps=FLOW)
        assert await answered(bench, id, result='"early"') is None
        assert error_of(await answered(bench, id, result='"late"')) is StepEnded
        job = await bench.claim_one()
        found = (await bench.store.claimed_steps([job.n]))[job.n]
        assert found.answers == (EarlyAnswer("approve", "", '"early"', None),)
        used = write("approve", result='"early"')
        await bench.store.checkpoint(job.lease, [checkpoint(job, used, consumed=(StepKey("approve"),))])
        assert (await bench.store.claimed_steps([job.n]))[job.n].answers == ()
        assert error_of(await answered(bench, id)) is StepEnded

    async def test_an_early_answer_to_a_handler_that_has_no_step_yet(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        assert error_of(await answered(bench, id)) is UnknownStep
        assert await answered(bench, id, unannounced=True) is None
        job = await bench.claim_one()
        assert job.flags
        assert len((await bench.store.claimed_steps([job.n]))[job.n].answers) == 1

    async def test_an_answer_while_its_job_runs_is_found_when_it_parks(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(steps=FLOW)
        job = await bench.claim_one()
        assert await answered(bench, id, result='"ok"') is None
        assert await park(bench, job, write("approve", StepState.WAITING))
        seen = await bench.job(id)
        assert (seen.status, states(seen)["approve"], seen.steps[1]["result"]) == (Status.PENDING, "completed", "ok")
        assert await bench.history(id) == ["waiting", "step:completed"]
        assert (await bench.claim_one()).id == id

    async def test_an_answer_to_a_wait_while_its_job_runs_is_found_when_it_parks_again(self, bench: Workbench) -> None:
        """Another wait of the job was over first, and its worker has read this one as unanswered."""
        id = await waiting(bench)
        await bench.pass_time(HOUR + MINUTE)
        assert await bench.promoted()
        job = await bench.claim_one()
        assert await answered(bench, id, result='"ok"') is None
        assert error_of(await answered(bench, id, result='"late"')) is StepEnded
        assert await park(bench, job)
        seen = await bench.job(id)
        assert (seen.status, states(seen)["approve"], seen.steps[1]["result"]) == (Status.PENDING, "completed", "ok")
        assert error_of(await answered(bench, id)) is StepEnded
        assert (await bench.claim_one()).id == id

    async def test_an_answer_to_a_wait_survives_the_attempt_that_did_not_see_it(self, bench: Workbench) -> None:
        id = await waiting(bench)
        await bench.pass_time(HOUR + MINUTE)
        assert await bench.promoted()
        job = await bench.claim_one()
        assert await answered(bench, id, result='"ok"') is None
        await bench.settle(job, Released("the worker stopped"))
        assert error_of(await answered(bench, id, result='"late"')) is StepEnded
        again = await bench.claim_one()
        found = (await bench.store.claimed_steps([again.n]))[again.n]
        assert found.answers == (EarlyAnswer("approve", "", '"ok"', None),)

    async def test_a_signal_races_the_park(self, bench: Workbench) -> None:
        """Before, during or after parking: it is received once, and the job goes on."""
        other = await bench.another()
        for round in range(40):
            id = await bench.enqueue_one(steps=FLOW)
            job = await bench.claim_one()
            answer = Answer(id, "approve", result=str(round))
            accepted, refusals = await asyncio.gather(
                park(bench, job, write("approve", StepState.WAITING)), other.answer([answer])
            )
            assert (accepted, refusals) == (True, [None])
            again = await bench.claim_one()
            assert again.id == id
            assert (await bench.job(id)).steps[1]["result"] == round
            await bench.settle(again, Completed())

    async def test_two_answers_race(self, bench: Workbench) -> None:
        other = await bench.another()
        for _ in range(10):
            id = await waiting(bench)
            both = await asyncio.gather(answered(bench, id, result="1"), other.answer([Answer(id, "approve")]))
            refusals = [both[0], both[1][0]]
            assert sum(one is None for one in refusals) == 1
            await bench.settle(await bench.claim_one(), Completed())

    async def test_a_wait_that_is_over_wakes_its_job(self, bench: Workbench) -> None:
        id = await waiting(bench)
        advanced = await bench.store.advance()
        assert advanced.next_in_ms is not None
        assert 0 < advanced.next_in_ms <= HOUR
        await bench.pass_time(HOUR + MINUTE)
        assert await bench.promoted()
        job = await bench.claim_one()
        assert (job.id, job.attempt) == (id, 1)
        found = (await bench.store.claimed_steps([job.n]))[job.n]
        [wait] = [step for step in found.steps if step.name == "approve"]
        assert wait.left_ms is not None
        assert wait.left_ms <= 0

    async def test_a_step_that_is_due_again_wakes_it_before_its_waits_are_over(self, bench: Workbench) -> None:
        for wait_ms, wake_ms, first_ms in ((HOUR, MINUTE, MINUTE), (MINUTE, HOUR, MINUTE), (None, MINUTE, MINUTE)):
            id = await bench.enqueue_one(steps=FLOW)
            job = await bench.claim_one()
            wait = Effects(steps=(write("approve", StepState.WAITING, until_ms=wait_ms),))
            await bench.store.settle([settlement(job, Parked("approve", wake_ms))._replace(effects=wait)])
            until = (await bench.job(id)).waits_until
            assert until is not None
            assert abs(until.timestamp() * 1000 - await bench.store.now() - first_ms) < MINUTE / 2
            await bench.pass_time(first_ms + 1)
            assert await bench.promoted()
            await bench.settle(await bench.claim_one(), Completed())

    async def test_a_new_wait_has_its_own_end(self, bench: Workbench) -> None:
        """Also if the one before had one and this one has none."""
        id = await waiting(bench)
        await bench.pass_time(HOUR + MINUTE)
        await bench.promoted()
        assert await park(bench, await bench.claim_one(), write("approve", StepState.WAITING))
        assert (await bench.job(id)).waits_until is None

    async def test_a_wait_without_an_end(self, bench: Workbench) -> None:
        await bench.enqueue_one(steps=FLOW)
        assert await park(bench, await bench.claim_one(), write("approve", StepState.WAITING))
        await bench.pass_time(1000 * HOUR)
        assert not await bench.promoted()
        assert (await bench.store.advance()).next_in_ms is None

    async def test_twenty_waits_spend_no_attempt(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(steps=FLOW, max_attempts=2)
        for turn in range(20):
            job = await bench.claim_one()
            assert await park(bench, job, write("turn", StepState.WAITING, key=str(turn)))
            assert await answered(bench, id, "turn", key=str(turn)) is None
        job = await bench.claim_one()
        assert job.attempt == 1
        await bench.settle(job, Completed())

    async def test_a_waiting_job_holds_no_key(self, bench: Workbench) -> None:
        limit = Limit("k", QUEUE, 1)
        first = await waiting(bench, limit=limit)
        second = await bench.enqueue_one(limit=limit)
        running = await bench.claim_one()
        assert running.id == second
        assert await answered(bench, first) is None
        assert await bench.claim(1) == []
        await bench.settle(running, Completed())
        assert (await bench.claim_one()).id == first

    async def test_a_waiting_job_started_in_time(self, bench: Workbench) -> None:
        id = await waiting(bench, expires_in_ms=MINUTE)
        await bench.pass_time(10 * MINUTE)
        await bench.store.advance()
        assert await answered(bench, id) is None
        await bench.store.advance()
        assert (await bench.claim_one()).id == id

    async def test_cancelling_a_waiting_job_ends_it(self, bench: Workbench) -> None:
        id = await waiting(bench)
        [job] = await steering.cancel(bench.store, [id], "changed my mind")
        assert isinstance(job, Job)
        assert (job.status, job.cancel_reason) == (Status.CANCELLED, "changed my mind")
        assert await bench.history(id) == ["step:completed", "waiting", "cancelling", "cancelled"]
        assert states(job) == {"fetch": "completed", "approve": "cancelled", "publish": "cancelled"}
        assert error_of(await answered(bench, id)) is StepEnded

    async def test_a_waiting_job_is_not_deleted_or_released(self, bench: Workbench) -> None:
        id = await waiting(bench)
        for [answer] in (await steering.delete(bench.store, [id]), await steering.release(bench.store, [id])):
            assert isinstance(answer, Refusal)
            assert isinstance(answer.error, WrongState)

    async def test_a_cancel_that_comes_first_wins_over_the_park(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(steps=FLOW)
        job = await bench.claim_one()
        await steering.cancel(bench.store, [id], "stop")
        assert await park(bench, job, write("approve", StepState.WAITING))
        seen = await bench.job(id)
        assert seen.status is Status.CANCELLED
        assert states(seen)["approve"] == "cancelled"

    async def test_a_sleeping_job_is_pending(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        nap = Effects(steps=(write("sleep", StepState.WAITING, until_ms=HOUR),))
        await bench.store.settle([settlement(job, Snoozed(HOUR, "sleeps"))._replace(effects=nap)])
        seen = await bench.job(id)
        assert (seen.status, seen.attempt, states(seen)) == (Status.PENDING, 0, {"sleep": "waiting"})
        await bench.pass_time(HOUR)
        assert await bench.promoted()
        again = await bench.claim_one()
        assert ((await bench.store.claimed_steps([again.n]))[again.n].steps[0].left_ms or 1) <= 0
