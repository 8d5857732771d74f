"""Which answers count: against timeouts and requeues, and how many come early. Jobs that are stored with a step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.model.errors import ConcurrencyRejected, StepEnded, TooManySteps
from treadle.model.status import Status
from treadle.model.steps import MAX_NAMES, StepState
from treadle.policy.admission import REJECT, Limit
from treadle.policy.lifecycle import Completed, Failed, Requeued
from treadle.store.values import Answer, Claimed, EarlyAnswer, StepKey
from treadle.testing.contract.steps import FLOW, answered, checkpoint, error_of, park, states, waiting, write
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, Workbench, new_job

LATE = write("approve", StepState.FAILED, error="nobody answered", error_type="WaitTimeout")


async def overdue(bench: Workbench) -> tuple[str, Claimed]:
    """A job in the hands of a worker, which finds that its wait is over."""
    id = await waiting(bench)
    await bench.pass_time(HOUR + MINUTE)
    assert await bench.promoted()
    return id, await bench.claim_one()


async def early(bench: Workbench, job: Claimed) -> tuple[EarlyAnswer, ...]:
    return (await bench.store.claimed_steps([job.n]))[job.n].answers


class AnswerContract(ContractPart):
    async def test_an_answer_that_was_accepted_refuses_the_timeout(self, bench: Workbench) -> None:
        id, job = await overdue(bench)
        assert await answered(bench, id, result='"yes"') is None
        with pytest.raises(StepEnded):
            await bench.store.checkpoint(job.lease, [checkpoint(job, LATE)])
        assert states(await bench.job(id))["approve"] == "waiting"
        [answer] = await early(bench, job)
        assert answer == EarlyAnswer("approve", "", '"yes"', None)
        used = checkpoint(job, write("approve", result='"yes"'), consumed=(StepKey("approve"),))
        assert await bench.store.checkpoint(job.lease, [used]) == []
        assert await early(bench, job) == ()

    async def test_a_timeout_that_is_stored_refuses_the_answer(self, bench: Workbench) -> None:
        id, job = await overdue(bench)
        assert await bench.store.checkpoint(job.lease, [checkpoint(job, LATE)]) == []
        assert error_of(await answered(bench, id)) is StepEnded
        assert await early(bench, job) == ()

    async def test_an_answer_races_a_timeout(self, bench: Workbench) -> None:
        """One of them counts, and both sides agree which."""
        other = await bench.another()
        for _ in range(20):
            id, job = await overdue(bench)

            async def time_out(job: Claimed = job) -> bool:
                try:
                    return await bench.store.checkpoint(job.lease, [checkpoint(job, LATE)]) == []
                except StepEnded:
                    return False

            timed_out, [refusal] = await asyncio.gather(time_out(), other.answer([Answer(id, "approve", result="1")]))
            assert timed_out is (refusal is not None)
            assert states(await bench.job(id))["approve"] == ("failed" if timed_out else "waiting")
            assert len(await early(bench, job)) == (not timed_out)
            await bench.settle(job, Completed())

    async def ended_with_answers(self, bench: Workbench) -> str:
        """A flow that failed before it waited: it has an answer, and one that no step has asked for yet."""
        id = await bench.enqueue_one(steps=FLOW)
        job = await bench.claim_one()
        assert await answered(bench, id, result="10") is None
        assert await answered(bench, id, "unheard_of", result="11", unannounced=True) is None
        await bench.settle(job, Failed("Boom", "Boom"))
        return id

    async def answers_after(self, bench: Workbench, outcome: Requeued) -> set[str]:
        id = await self.ended_with_answers(bench)
        await bench.store.steer([id], lambda _: outcome)
        return {one.name for one in await early(bench, await bench.claim_one())}

    async def test_a_requeue_of_what_is_unfinished_keeps_the_answers(self, bench: Workbench) -> None:
        names = ("fetch", "approve", "publish")
        assert await self.answers_after(bench, Requeued(mode="unfinished", steps=names)) == {"approve", "unheard_of"}

    async def test_a_requeue_from_a_step_asks_again_for_the_steps_that_run_again(self, bench: Workbench) -> None:
        names = ("approve", "publish")
        assert await self.answers_after(bench, Requeued(mode="from", steps=names)) == {"unheard_of"}

    async def test_a_requeue_of_everything_asks_again(self, bench: Workbench) -> None:
        assert await self.answers_after(bench, Requeued(mode="all")) == set()

    async def test_an_answer_is_not_for_another_payload(self, bench: Workbench) -> None:
        outcome = Requeued(mode="all", payload='{"amount": 1000000}')
        assert await self.answers_after(bench, outcome) == set()

    async def test_early_answers_have_at_most_so_many_names(self, bench: Workbench) -> None:
        """Of steps that are not known; the known ones count too, and take their answers in any case."""
        id = await bench.enqueue_one(steps=FLOW)
        free = MAX_NAMES - len(FLOW)
        for number in range(free):
            assert await answered(bench, id, f"s{number}", unannounced=True) is None
        assert error_of(await answered(bench, id, "one more", unannounced=True)) is TooManySteps
        assert await answered(bench, id, "s0", key="another", unannounced=True) is None
        assert await answered(bench, id) is None
        assert len(await early(bench, await bench.claim_one())) == free + 2


class FollowUpContract(ContractPart):
    """Jobs that are stored with the end of a step, while their job runs on."""

    async def running(self, bench: Workbench, **options: Any) -> tuple[str, Claimed]:
        return await bench.enqueue_one(**options), await bench.claim_one()

    async def test_they_are_stored_with_the_step(self, bench: Workbench) -> None:
        id, job = await self.running(bench)
        new = new_job(topic="next")
        done = checkpoint(job, write("pay"), jobs=(new,))
        assert await bench.store.checkpoint(job.lease, [done]) == []
        assert await bench.status(new.id) is Status.PENDING
        assert states(await bench.job(id)) == {"pay": "completed"}

    async def test_told_again_they_are_made_once(self, bench: Workbench) -> None:
        """The answer of the first time was lost, and the new job has ended since."""
        _, job = await self.running(bench)
        keyed = new_job(topic="next", dedupe_key="k")
        done = checkpoint(job, write("pay"), jobs=(keyed,))
        for _ in range(2):
            assert await bench.store.checkpoint(job.lease, [done]) == []
        assert await bench.status(keyed.id) is Status.PENDING
        assert (await bench.store.stats()).counts["pending"] == 1

    async def test_a_refused_one_undoes_the_step(self, bench: Workbench) -> None:
        alone = Limit("k", REJECT, 1)
        await bench.store.insert([new_job(topic="next", limit=alone)])
        id, job = await self.running(bench)
        refused = new_job(topic="next", limit=alone)
        with pytest.raises(ConcurrencyRejected):
            await bench.store.checkpoint(job.lease, [checkpoint(job, write("pay"), jobs=(new_job(), refused))])
        assert states(await bench.job(id)) == {}
        assert (await bench.store.stats()).counts["pending"] == 1

    async def test_a_stale_owner_makes_none(self, bench: Workbench) -> None:
        _, old = await self.running(bench)
        await bench.store.close_lease(old.lease)
        await bench.reap()
        new = new_job(topic="next")
        lost = await bench.store.checkpoint(old.lease, [checkpoint(old, write("pay"), jobs=(new,))])
        assert lost == [(old.n, old.token)]
        assert await bench.statuses([new.id]) == [None]

    async def test_the_job_goes_on(self, bench: Workbench) -> None:
        """It parks, and is not the one that brings the follow-up again."""
        id, job = await self.running(bench)
        new = new_job(topic="next")
        await bench.store.checkpoint(job.lease, [checkpoint(job, write("pay"), jobs=(new,))])
        assert await park(bench, job, write("approve", StepState.WAITING))
        assert await bench.statuses([id, new.id]) == [Status.WAITING, Status.PENDING]
