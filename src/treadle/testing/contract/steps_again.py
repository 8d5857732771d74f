"""Steps of jobs that are tried or requeued: what runs again, and what is kept until then."""

from __future__ import annotations

from typing import Any

from treadle.model.job import Job
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.policy.lifecycle import Completed, Failed, Released, Requeued, Snoozed
from treadle.queue import steering
from treadle.store.values import HAS_STEPS, Claimed, Effects, StepKey, Touch
from treadle.testing.contract.steps import DONE, FLOW, answered, checkpoint, park, states, write
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, TOPIC, Workbench, settlement


class RequeueStepsContract(ContractPart):
    async def failed(self, bench: Workbench) -> str:
        id = await bench.enqueue_one(steps=FLOW)
        job = await bench.claim_one()
        large = '"' + "x" * 70_000 + '"'
        await bench.store.checkpoint(job.lease, [checkpoint(job, write("fetch", result=large))])
        await bench.store.checkpoint(job.lease, [checkpoint(job, write("approve", result="1"))])
        wrong = write("publish", StepState.FAILED, error="Boom", error_type="Boom")
        await bench.store.settle([settlement(job, Failed("Boom", "Boom"))._replace(effects=Effects(steps=(wrong,)))])
        return id

    async def requeued(self, bench: Workbench, id: str, outcome: Requeued) -> dict[str, str]:
        [job] = await bench.store.steer([id], lambda _: outcome)
        assert isinstance(job, Job)
        assert job.status is Status.PENDING
        return states(job)

    async def test_only_what_did_not_complete(self, bench: Workbench) -> None:
        id = await self.failed(bench)
        outcome = Requeued(mode="unfinished", steps=("publish",))
        assert await self.requeued(bench, id, outcome) == {
            "fetch": "completed",
            "approve": "completed",
            "publish": "pending",
        }
        job = await bench.claim_one()
        assert len(await bench.store.step_results(job.n, [StepKey("fetch")])) == 1

    async def test_everything(self, bench: Workbench) -> None:
        id = await self.failed(bench)
        assert set((await self.requeued(bench, id, Requeued(mode="all"))).values()) == {"pending"}
        job = await bench.claim_one()
        assert await bench.store.step_results(job.n, [StepKey("fetch")]) == {}
        assert (await bench.job(id)).step is None

    async def test_from_a_step_on(self, bench: Workbench) -> None:
        id = await self.failed(bench)
        outcome = Requeued(mode="from", steps=("approve", "publish"))
        assert await self.requeued(bench, id, outcome) == {
            "fetch": "completed",
            "approve": "pending",
            "publish": "pending",
        }
        assert await answered(bench, id) is None

    async def test_a_handlers_own_steps_are_made_anew(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await bench.store.checkpoint(job.lease, [checkpoint(job, write("llm", key="0"), write("llm", key="1"))])
        await bench.settle(job, Failed("Boom", "Boom"))
        assert await self.requeued(bench, id, Requeued(mode="all")) == {}

    async def test_the_judge_sees_the_steps(self, bench: Workbench) -> None:
        id = await self.failed(bench)
        seen: list[tuple[str, StepState]] = []

        def judge(job: Any) -> Requeued:
            seen[:] = [(step.name, step.state) for step in job.steps]
            return Requeued(mode="all")

        await bench.store.steer([id], judge, dry_run=True)
        assert seen == [("fetch", DONE), ("approve", DONE), ("publish", StepState.FAILED)]
        assert await bench.status(id) is Status.FAILED

    async def test_a_new_payload_and_the_old_one_in_the_history(self, bench: Workbench) -> None:
        id = await self.failed(bench)
        await self.requeued(bench, id, Requeued(mode="all", payload='{"to": "bob"}'))
        assert (await bench.job(id)).payload == {"to": "bob"}
        event = (await bench.store.events(id) or [])[-1]
        assert event.metadata["payload"] == {"to": "ann"}
        assert (await bench.claim_one(topics=[TOPIC])).payload in ('{"to": "bob"}', '{"to":"bob"}')

    async def test_single_runs(self, bench: Workbench) -> None:
        """Of a loop: the turns before the step stay."""
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        turns = [write("llm", key="0"), write("tool", key="0"), write("llm", key="1")]
        await bench.store.checkpoint(job.lease, [checkpoint(job, *turns)])
        await bench.settle(job, Failed("Boom", "Boom"))
        runs = frozenset({("tool", "0"), ("llm", "1")})
        await self.requeued(bench, id, Requeued(mode="from", steps=("tool", "llm"), runs=runs))
        [step] = (await bench.job(id)).steps
        assert (step["id"], step["items"]) == ("llm", {"total": 1, "done": 1, "failed": 0})


class KeptContract(ContractPart):
    async def test_a_step_never_begins_before_its_job(self, bench: Workbench) -> None:
        """Both count back from the database's clock, after waits of different length for the write."""
        ids = [await bench.enqueue_one(steps=FLOW) for _ in range(3)]
        jobs = [await bench.claim_one() for _ in ids]
        early = write("fetch", result="1", started_ago_ms=5_000)
        large = early._replace(result=f'"{"x" * 100_000}"')
        for job, step in zip(jobs, (early, large, early), strict=True):
            assert not await bench.store.checkpoint(job.lease, [checkpoint(job, step)])
        done = Effects(steps=(write("publish", started_ago_ms=5_000),))
        assert not await bench.store.settle([settlement(jobs[2], Completed("1"))._replace(effects=done)])
        for id in ids:
            found = await bench.job(id)
            began = [step["startedAt"] for step in found.as_json()["steps"] if step["startedAt"]]
            assert len(began) == (2 if id == ids[2] else 1)
            assert all(at >= found.as_json()["startedAt"] for at in began)

    async def test_steps_that_end_together_are_known_to_the_next_attempt(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        first, second = (checkpoint(job, write("page", key=key, result=key)) for key in "12")
        assert not await bench.store.checkpoint(job.lease, [first, second._replace(flagged=True)])
        assert [step["items"]["done"] for step in (await bench.job(id)).steps] == [2]
        await bench.store.settle([settlement(job, Released("the worker stopped"))])
        again = await bench.claim_one()
        loaded = (await bench.store.claimed_steps([again.n]))[again.n]
        assert (again.flags & HAS_STEPS, len(loaded.steps)) == (HAS_STEPS, 2)

    async def test_a_flow_that_completes_has_its_last_step_and_no_other_under_way(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(steps=FLOW) for _ in range(3)]
        jobs = [await bench.claim_one() for _ in ids]
        lost = jobs[1]._replace(token=jobs[1].token + 1)
        for job in jobs:
            begun = checkpoint(job, write("fetch", StepState.PROCESSING), write("publish", StepState.PROCESSING))
            assert not await bench.store.checkpoint(job.lease, [begun])
        done = Effects(steps=(write("publish", result="[1]", attempt=2),))
        endings = [settlement(job, Completed("[1]"))._replace(effects=done) for job in (jobs[0], lost, jobs[2])]
        assert await bench.store.settle(endings) == [endings[1]]
        for id in (ids[0], ids[2]):
            found = await bench.job(id)
            assert (found.status, found.progress) == ("completed", 100)
            assert states(found) == {"fetch": "pending", "approve": "pending", "publish": "completed"}
            assert (found.steps[2]["result"], found.steps[2]["attempt"]) == ([1], 2)
            told = [event.message for event in await bench.store.events(id) or () if event.type == "job:step:completed"]
            assert told == ["publish"]
        assert (await bench.job(ids[1])).status == "processing"

    """What a job with steps keeps between two attempts."""

    async def half_done(self, bench: Workbench, **options: Any) -> tuple[str, Claimed]:
        id = await bench.enqueue_one(**options)
        job = await bench.claim_one()
        await bench.store.checkpoint(
            job.lease, [checkpoint(job, write("fetch", ran_ms=70), progress=40, message="p. 4")]
        )
        return id, job

    async def seen(self, bench: Workbench, id: str) -> tuple[Status, int, str | None]:
        job = await bench.job(id)
        return job.status, job.progress, job.progress_message

    async def test_a_handlers_own_progress(self, bench: Workbench) -> None:
        id, job = await self.half_done(bench)
        assert await park(bench, job, write("approve", StepState.WAITING))
        assert await self.seen(bench, id) == (Status.WAITING, 40, "p. 4")
        assert await answered(bench, id) is None
        assert await self.seen(bench, id) == (Status.PENDING, 40, "p. 4")
        again = await bench.claim_one()
        assert await self.seen(bench, id) == (Status.PROCESSING, 40, "p. 4")
        await bench.store.touch(again.lease, [Touch(again.n, again.token, 1, 10, "p. 1")])
        assert await self.seen(bench, id) == (Status.PROCESSING, 10, "p. 1")
        await bench.settle(again, Released())
        assert await self.seen(bench, id) == (Status.PENDING, 10, "p. 1")

    async def test_a_flows_progress_is_that_of_its_steps(self, bench: Workbench) -> None:
        id, job = await self.half_done(bench, steps=FLOW)
        await bench.settle(job, Failed("Boom", "Boom", 1))
        assert (await bench.job(id)).progress == 33
        assert await steering.cancel(bench.store, [id])
        assert (await bench.job(id)).progress == 33
        await steering.requeue(bench.store, [id], again=steering.Again(mode="all"))
        assert await self.seen(bench, id) == (Status.PENDING, 0, None)

    async def test_a_job_without_steps_starts_anew(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 1, 40, "p. 4")])
        await bench.settle(job, Failed("Boom", "Boom", 1))
        assert await self.seen(bench, id) == (Status.PENDING, 0, None)

    async def test_the_active_time_of_an_attempt(self, bench: Workbench) -> None:
        """It goes on after a wait, and begins anew when the job is tried again or requeued."""
        id, job = await self.half_done(bench, steps=FLOW, max_attempts=2)
        assert await park(bench, job, write("approve", StepState.WAITING))
        assert await answered(bench, id) is None
        again = await bench.claim_one()
        assert await self.active_ms(bench, again) == 70
        await bench.settle(again, Failed("Boom", "Boom", 1))
        await bench.pass_time(10)
        await bench.promoted()
        last = await bench.claim_one()
        assert await self.active_ms(bench, last) == 0
        await bench.store.checkpoint(last.lease, [checkpoint(last, write("publish", ran_ms=30))])
        await bench.settle(last, Failed("Boom", "Boom"))
        await steering.requeue(bench.store, [id])
        assert await self.active_ms(bench, await bench.claim_one()) == 0

    async def test_a_job_that_sleeps_started_in_time(self, bench: Workbench) -> None:
        """Its deadline was for its start."""
        id, job = await self.half_done(bench, expires_in_ms=MINUTE)
        nap = Effects(steps=(write("sleep", StepState.WAITING, until_ms=HOUR),))
        await bench.store.settle([settlement(job, Snoozed(HOUR, "sleeps"))._replace(effects=nap)])
        await bench.pass_time(HOUR + MINUTE)
        await bench.store.advance()
        assert (await bench.claim_one()).id == id

    async def test_a_job_that_was_given_back_started_in_time(self, bench: Workbench) -> None:
        """It goes back into the queue without its deadline."""
        id, job = await self.half_done(bench, expires_in_ms=MINUTE)
        await bench.settle(job, Released())
        assert await bench.database.problems() == []
        await bench.pass_time(HOUR)
        await bench.store.advance()
        assert (await bench.claim_one()).id == id

    async def active_ms(self, bench: Workbench, job: Claimed) -> int:
        return sum(step.ran_ms for step in (await bench.store.claimed_steps([job.n]))[job.n].steps)
