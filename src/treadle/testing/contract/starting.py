"""Jobs that a claim may not start: last attempts, deadlines, paused topics."""

from __future__ import annotations

import pytest

from treadle.model.status import Status
from treadle.policy.lifecycle import Completed, Failed, Outcome, Released, Snoozed
from treadle.queue import steering
from treadle.store.values import Wants
from treadle.store.views import FOREVER
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import (
    HOUR,
    MINUTE,
    SECOND,
    TOPIC,
    Workbench,
    settlement,
)


class LastAttemptContract(ContractPart):
    """A job on its last attempt is only claimed into a free slot, so a poison job can't use up its neighbours'
    attempts.
    """

    async def test_beyond_the_free_slots_no_last_attempt(self, bench: Workbench) -> None:
        ids = await bench.enqueue(5, max_attempts=1)
        assert [job.id for job in await bench.claim(5, free=2)] == ids[:2]

    async def test_without_a_free_slot_only_jobs_that_have_another_try(self, bench: Workbench) -> None:
        await bench.enqueue(2, max_attempts=1)
        assert await bench.claim(5, free=0) == []
        ids = await bench.enqueue(3, priority=60)
        assert [job.id for job in await bench.claim(3, free=0)] == ids

    async def test_the_first_slots_take_anything(self, bench: Workbench) -> None:
        last = await bench.enqueue_one(max_attempts=1)
        plain = await bench.enqueue(2)
        too_much = await bench.enqueue_one(max_attempts=1)
        assert [job.id for job in await bench.claim(4, free=1)] == [last, *plain]
        assert [job.id for job in await bench.claim(4, free=1)] == [too_much]

    async def test_a_retried_job_comes_to_its_last_attempt(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(max_attempts=2)
        job = await bench.claim_one(free=0)
        await bench.settle(job, Failed("Boom", "Boom", retry_in_ms=1))
        await bench.pass_time(SECOND)
        await bench.store.advance()
        assert await bench.claim(1, free=0) == []
        assert [job.id for job in await bench.claim(1, free=1)] == [id]


class DeadlineContract(ContractPart):
    """A job that is not started in time expires; one that was claimed in time keeps running."""

    @pytest.mark.parametrize("option", ["expires_at", "expires_in_ms"])
    async def test_an_overdue_job_is_not_claimed(self, bench: Workbench, option: str) -> None:
        value = HOUR if option == "expires_in_ms" else await bench.store.now() + HOUR
        id = await bench.enqueue_one(**{option: value})
        await bench.pass_time(2 * HOUR)
        claim = await bench.store.claim(await bench.lease(), Wants([TOPIC], [], 5, 5))
        assert claim.jobs == []
        seen = await bench.job(id)
        assert (seen.status, seen.error_type, seen.attempt) == (Status.EXPIRED, "DeadlinePassed", 0)
        assert await bench.history(id) == ["expired"]

    async def test_the_jobs_behind_it_are_claimed(self, bench: Workbench) -> None:
        await bench.enqueue(2, expires_in_ms=MINUTE)
        await bench.pass_time(HOUR)
        ids = await bench.enqueue(2)
        claim = await bench.store.claim(await bench.lease(), Wants([TOPIC], [], 5, 5))
        assert [job.id for job in claim.jobs] == ids

    async def test_a_deadline_that_passed_before_the_enqueue(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(expires_at=await bench.store.now() - SECOND)
        (moved,) = (await bench.store.advance()).moved
        assert (moved.id, moved.topic, moved.status, moved.event) == (id, TOPIC, Status.EXPIRED, "job:expired")

    @pytest.mark.parametrize("state", ["pending", "delayed", "held"])
    async def test_every_job_that_never_ran_expires(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state, expires_in_ms=MINUTE, delay_ms=30 * MINUTE if state == "delayed" else 0)
        await bench.pass_time(2 * MINUTE)
        assert id in [moved.id for moved in (await bench.store.advance()).moved]
        assert await bench.status(id) is Status.EXPIRED

    async def test_a_job_that_was_tried_in_time_waits_for_its_retry(self, bench: Workbench) -> None:
        id = await bench.make("retrying", expires_in_ms=MINUTE)
        await bench.pass_time(2 * HOUR)
        assert (await bench.store.advance()).moved == []
        assert ((await bench.job(id)).last_error, [job.id for job in await bench.claim(5)]) == ("Boom: again", [id])

    @pytest.mark.parametrize("outcome", [Snoozed(30 * MINUTE, "later"), Released()], ids=["snoozed", "released"])
    async def test_a_job_that_ran_in_time_and_was_put_off_runs_again(self, bench: Workbench, outcome: Outcome) -> None:
        """It started before its deadline, although the attempt was given back."""
        id = await bench.enqueue_one(expires_in_ms=MINUTE)
        assert await bench.settle(await bench.claim_one(), outcome)
        assert await bench.database.problems() == []
        await bench.pass_time(HOUR)
        assert (await bench.store.advance()).moved == []
        again = await bench.claim_one()
        assert (again.id, again.attempt) == (id, 1)

    @pytest.mark.parametrize("outcome", [Snoozed(30 * MINUTE, "later"), Released()], ids=["snoozed", "released"])
    async def test_a_job_given_back_before_it_ran_expires(self, bench: Workbench, outcome: Outcome) -> None:
        id = await bench.enqueue_one(expires_in_ms=MINUTE)
        assert await bench.settle(await bench.claim_one(), outcome, ran_ms=None)
        await bench.pass_time(HOUR)
        assert [moved.id for moved in (await bench.store.advance()).moved] == [id]

    @pytest.mark.parametrize("state", ["processing", "cancelling"])
    async def test_a_job_claimed_in_time_runs_on(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state, expires_in_ms=MINUTE)
        await bench.pass_time(2 * MINUTE)
        assert (await bench.store.advance()).moved == []
        assert await bench.status(id) is Status(state)

    async def test_it_may_complete_late(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(expires_in_ms=MINUTE)
        job = await bench.claim_one()
        await bench.pass_time(2 * MINUTE)
        assert await bench.settle(job, Completed())
        assert await bench.status(id) is Status.COMPLETED
        assert (await bench.store.advance()).moved == []

    async def test_nothing_expires_early(self, bench: Workbench) -> None:
        await bench.enqueue(3, expires_in_ms=HOUR)
        assert (await bench.store.advance()).moved == []

    async def test_no_more_than_the_limit_at_once(self, bench: Workbench) -> None:
        await bench.enqueue(5, expires_in_ms=MINUTE)
        await bench.pass_time(HOUR)
        assert [len((await bench.store.advance(limit=2)).moved) for _ in range(4)] == [2, 2, 1, 0]

    async def test_a_requeued_job_gets_all_the_time_it_needs(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(expires_in_ms=MINUTE)
        await bench.pass_time(HOUR)
        await bench.store.advance()
        await steering.requeue(bench.store, [id])
        assert (await bench.job(id)).expires_at is None
        assert (await bench.store.advance()).moved == []
        job = await bench.claim_one()
        assert job.id == id
        assert await bench.status(id) is Status.PROCESSING
        assert await bench.settle(job, Completed())
        assert await bench.status(id) is Status.COMPLETED


class PauseContract(ContractPart):
    async def test_a_paused_topic_is_not_claimed(self, bench: Workbench) -> None:
        ids = await bench.enqueue(2)
        other = await bench.enqueue_one(topic="other")
        await bench.store.pause(TOPIC)
        assert [job.id for job in await bench.claim(5, topics=[TOPIC, "other"])] == [other]
        await bench.store.pause(TOPIC, 0)
        assert [job.id for job in await bench.claim(5)] == ids

    async def test_a_paused_topic_still_takes_jobs(self, bench: Workbench) -> None:
        await bench.store.pause(TOPIC)
        id = await bench.enqueue_one()
        assert await bench.claim(5) == []
        assert await bench.status(id) is Status.PENDING

    async def test_a_pause_ends_by_itself(self, bench: Workbench) -> None:
        ids = await bench.enqueue(1)
        await bench.store.pause(TOPIC, await bench.store.now() + HOUR)
        assert await bench.claim(5) == []
        await bench.pass_time(2 * HOUR)
        assert [job.id for job in await bench.claim(5)] == ids

    async def test_a_group_is_paused_with_the_topics_that_come_later(self, bench: Workbench) -> None:
        for topic in ("mail.digest", "mailing"):
            await bench.enqueue_one(topic=topic)
        await bench.store.pause("mail.*")
        await bench.enqueue_one(topic="mail.welcome")
        await bench.enqueue_one(topic="mail.welcome", capability="gpu")
        topics = ["mail.digest", "mail.welcome", "mailing"]
        assert [job.topic for job in await bench.claim(9, topics=topics, capabilities=["gpu"])] == ["mailing"]
        paused = [topic.topic for topic in await bench.store.topics() if topic.paused_until is not None]
        assert paused == ["mail.*", "mail.digest", "mail.welcome"]
        await bench.store.pause("mail.*", 0)
        assert len(await bench.claim(9, topics=topics, capabilities=["gpu"])) == 3
        await bench.enqueue_one(topic="mail.new")
        assert [job.topic for job in await bench.claim(9, topics=["mail.new"])] == ["mail.new"]

    async def test_one_topic_of_a_paused_group_can_be_resumed(self, bench: Workbench) -> None:
        await bench.store.pause("mail.*")
        for topic in ("mail.digest", "mail.welcome"):
            await bench.enqueue_one(topic=topic)
        await bench.store.pause("mail.digest", 0)
        await bench.enqueue_one(topic="mail.digest", capability="gpu")
        topics = ["mail.digest", "mail.welcome"]
        claimed = await bench.claim(9, topics=topics, capabilities=["gpu"])
        assert [job.topic for job in claimed] == ["mail.digest"] * 2

    async def test_a_pause_of_a_group_ends_by_itself(self, bench: Workbench) -> None:
        await bench.store.pause("mail.*", await bench.store.now() + HOUR)
        await bench.enqueue_one(topic="mail.digest")
        assert await bench.claim(5, topics=["mail.digest"]) == []
        await bench.pass_time(2 * HOUR)
        assert len(await bench.claim(5, topics=["mail.digest"])) == 1
        assert [topic.paused_until for topic in await bench.store.topics()] == [None]

    async def test_a_pause_of_an_unused_topic(self, bench: Workbench) -> None:
        await bench.store.pause("later.used")
        assert [(topic.topic, topic.paused_until is not None) for topic in await bench.store.topics()] == [
            ("later.used", True)
        ]
        await bench.enqueue(1, topic="later.used")
        assert await bench.claim(1, topics=["later.used"]) == []

    async def test_what_runs_is_not_stopped_by_a_pause(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        await bench.store.pause(TOPIC)
        assert await bench.settle(job, Completed())

    async def test_pausing_again_changes_the_time(self, bench: Workbench) -> None:
        now = await bench.store.now()
        await bench.store.pause(TOPIC)
        await bench.store.pause(TOPIC, now + HOUR)
        assert [topic.paused_until for topic in await bench.store.topics()] == [now + HOUR]

    async def test_a_snooze_of_the_whole_topic_pauses_it_and_gives_the_attempt_back(self, bench: Workbench) -> None:
        limited, waiting = await bench.enqueue(2)
        other = await bench.enqueue_one(topic="other")
        asked = await bench.store.now()
        job = await bench.claim_one()
        assert await bench.settle(job, Snoozed(HOUR, "429", pauses_topic=True))
        assert [job.id for job in await bench.claim(5, topics=[TOPIC, "other"])] == [other]
        seen = await bench.job(limited)
        assert (seen.status, seen.attempt, await bench.history(limited)) == (Status.PENDING, 0, ["snoozed"])
        [until] = [topic.paused_until for topic in await bench.store.topics() if topic.topic == TOPIC]
        assert until is not None
        assert asked + HOUR <= until <= await bench.store.now() + HOUR
        await bench.pass_time(2 * HOUR)
        await bench.store.advance()
        assert sorted(job.id for job in await bench.claim(5)) == sorted([limited, waiting])

    async def test_a_snooze_never_shortens_a_pause(self, bench: Workbench) -> None:
        await bench.enqueue(3)
        first, second, third = await bench.claim(3)
        longer = await bench.store.now() + 3 * HOUR
        await bench.store.pause(TOPIC, longer)
        assert await bench.settle(first, Snoozed(HOUR, "429", pauses_topic=True))
        assert [topic.paused_until for topic in await bench.store.topics()] == [longer]
        assert await bench.settle(second, Snoozed(5 * HOUR, "429", pauses_topic=True))
        [extended] = [topic.paused_until for topic in await bench.store.topics()]
        assert extended is not None
        assert extended > longer
        await bench.store.pause(TOPIC)
        assert await bench.settle(third, Snoozed(HOUR, "429", pauses_topic=True))
        assert [topic.paused_until for topic in await bench.store.topics()] == [FOREVER]

    async def test_several_snoozes_of_a_topic_in_one_call_pause_it_for_the_longest(self, bench: Workbench) -> None:
        await bench.enqueue(3)
        jobs = await bench.claim(3)
        outcomes = [Snoozed(hours * HOUR, "429", pauses_topic=True) for hours in (1, 3, 2)]
        asked = await bench.store.now()
        settlements = [settlement(job, one) for job, one in zip(jobs, outcomes, strict=True)]
        assert await bench.store.settle(settlements) == []
        [until] = [topic.paused_until for topic in await bench.store.topics()]
        assert until is not None
        assert asked + 3 * HOUR <= until <= await bench.store.now() + 3 * HOUR

    async def test_a_lost_job_pauses_nothing(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        assert not await bench.settle(job._replace(token=job.token + 1), Snoozed(HOUR, "429", pauses_topic=True))
        assert [topic.paused_until for topic in await bench.store.topics()] == [None]

    async def test_resuming_what_was_not_paused_changes_nothing(self, bench: Workbench) -> None:
        ids = await bench.enqueue(1)
        await bench.store.pause(TOPIC, 0)
        await bench.store.pause("unknown", 0)
        assert [job.id for job in await bench.claim(5)] == ids
