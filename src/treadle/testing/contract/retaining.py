"""Stale jobs: by which rules they are, in lists, searches and histories; and that listeners hear it once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from treadle.insights.timeline import timeline
from treadle.model.job import to_ms
from treadle.model.status import Status
from treadle.policy.lifecycle import Failed
from treadle.policy.retention import Ages, Former, Rules
from treadle.policy.rules import matches, parse_filter, parse_search
from treadle.queue import steering
from treadle.store.values import FIRST_ENDED, EndedAt, EndedJob, RecordWrite, StaleJob, TopicOptions
from treadle.store.views import Listing
from treadle.testing.contract.suite import ContractPart
from treadle.testing.contract.watching import Watcher
from treadle.testing.workbench import DAY, ENDED, HOUR, MINUTE, TOPIC, Workbench

FOREVER = 2**50


async def ended(bench: Workbench, limit: int = 1000) -> Sequence[EndedJob]:
    return await bench.store.ended_jobs(FIRST_ENDED, FOREVER, limit)


async def told(bench: Workbench, jobs: Sequence[EndedJob], stale_after_ms: int = HOUR) -> int:
    return await bench.store.mark_stale([StaleJob(job, job.ended_at + stale_after_ms) for job in jobs])


class StaleContract(ContractPart):
    @pytest.mark.parametrize(
        "rules",
        [
            Rules(HOUR),
            Rules(HOUR, by_status={"failed": Ages(DAY), "cancelled": Ages(None, 1)}),
            Rules(DAY, by_topic={"t.failed": Ages(HOUR), "t.expired": Ages(0, 0), "o'hara": Ages(1)}),
            Rules(HOUR, by_status={"failed": Ages(0)}, by_topic={"t.failed": Ages(DAY), "t.cancelled": Ages(DAY)}),
        ],
    )
    async def test_every_reader_answers_by_the_same_rules(self, bench: Workbench, rules: Rules) -> None:
        for state in ENDED:
            await bench.make(state, topic=f"t.{state}")
        await bench.pass_time(2 * HOUR)
        for state in ENDED:
            await bench.make(state, topic=f"t.{state}")
        await bench.enqueue(1)
        await self.agree(bench, rules)

    async def test_a_mark_stays_when_its_time_is_raised(self, bench: Workbench) -> None:
        old = [await bench.make(state) for state in ENDED]
        await bench.pass_time(2 * HOUR)
        young = [await bench.make(state) for state in ENDED]
        before = Rules(HOUR)
        after = Rules(DAY).replacing(before, await bench.store.now())
        bench.store.retention = before
        marks = {job.id: job.stale_at for job in await bench.store.list(Listing(stale=True))}
        assert set(marks) == set(old)
        await self.agree(bench, after)
        assert {job.id: job.stale_at for job in await bench.store.list(Listing(stale=True))} == marks
        await bench.pass_time(DAY)
        await self.agree(bench, Rules(DAY, former=(Former(after.former[0].until_ms - DAY, before),)))
        assert {job.id for job in await bench.store.list(Listing(stale=True))} == {*old, *young}

    async def agree(self, bench: Workbench, rules: Rules) -> None:
        """Lists, counts, filters, sorting and the jobs themselves."""
        bench.store.retention = rules
        jobs = await bench.store.list(Listing(limit=100))
        now = await bench.store.now()
        stale = [job.id for job in jobs if job.stale_at is not None]
        for job in jobs:
            end = job.ended_at and rules.stale_at(job.topic, job.status, to_ms(job.ended_at), now)
            assert (job.stale_at and to_ms(job.stale_at)) == end
            assert len(await timeline(bench.store, job.id)) == job.events_count
        wanted = Listing(limit=100, stale=True)
        assert [job.id for job in await bench.store.list(wanted)] == stale
        assert await bench.store.count(wanted) == len(stale)
        for text in ("staleAt != ''", "status = 'stale'", "status = 'failed' && staleAt < @now", "eventsCount > 3"):
            condition = parse_filter(text)
            expected = [job.id for job in jobs if matches(condition, job.as_json())]
            found = await bench.store.list(Listing(limit=100, condition=condition))
            assert [job.id for job in found] == expected, text

    async def test_a_stale_job_tells_it_in_its_history_also_once_it_is_requeued(self, bench: Workbench) -> None:
        id = await bench.make("failed")
        await bench.pass_time(2 * HOUR)
        bench.store.retention = Rules(HOUR)
        since = (await bench.job(id)).stale_at
        assert since is not None
        line = next(one for one in await timeline(bench.store, id) if one.type == "job:stale")
        assert (line.from_status, line.to_status, line.created_at) == (Status.FAILED, Status.FAILED, to_ms(since))
        await steering.requeue(bench.store, [id])
        names = [one.type.removeprefix("job:") for one in await timeline(bench.store, id)]
        assert names == ["enqueued", "started", "failed", "stale", "requeued"]
        assert (await bench.job(id)).events_count == 5
        assert await bench.store.count(Listing(condition=parse_search("status:stale"))) == 0

    async def test_topics_whose_templates_say_how_long_their_jobs_are_kept(self, bench: Workbench) -> None:
        assert await bench.store.topic_ages() == {}
        topics = [TopicOptions("mail", None, None, DAY, None), TopicOptions("log", 5, HOUR, 0, 0), TopicOptions("own")]
        await bench.store.write_records([RecordWrite("template", "t", "t", "{}")], atomic=True, topics=topics)
        assert await bench.store.topic_ages() == {"mail": Ages(DAY, None), "log": Ages(0, 0)}
        await bench.store.write_records([], topics=[TopicOptions("log")])
        assert await bench.store.topic_ages() == {"mail": Ages(DAY, None)}


class StaleNewsContract(ContractPart):
    async def test_each_job_is_told_once(self, bench: Workbench) -> None:
        ids = [await bench.make(state) for state in ENDED]
        await bench.pass_time(2 * HOUR)
        watcher = Watcher(bench.store)
        await watcher.look()
        jobs = await ended(bench)
        assert [job.id for job in jobs] == ids
        assert await told(bench, jobs) == 4
        assert await told(bench, jobs) == 0
        other = await bench.another()
        assert await other.mark_stale([StaleJob(job, 0) for job in jobs]) == 0, "not by another process either"
        assert [change.event for change in await watcher.look()] == ["job:stale"] * 4
        assert {change.job.id for change in watcher.seen if change.job} == set(ids)
        assert [change.at for change in watcher.seen] == [job.ended_at + HOUR for job in jobs]
        assert await watcher.look() == []

    async def test_two_at_the_same_time_tell_it_once(self, bench: Workbench) -> None:
        await steering.cancel(bench.store, await bench.enqueue(50), "")
        watcher = Watcher(bench.store)
        await watcher.look()
        jobs = await ended(bench)
        stores = [bench.store, *await bench.others(2)]
        stale = [StaleJob(job, job.ended_at) for job in jobs]
        counts = await asyncio.gather(*(store.mark_stale(stale) for store in stores * 2))
        assert sum(counts) == 50
        assert len(await watcher.look()) == 50

    async def test_a_job_that_was_requeued_meanwhile_is_not_told(self, bench: Workbench) -> None:
        id = await bench.make("failed")
        jobs = await ended(bench)
        await steering.requeue(bench.store, [id])
        assert await told(bench, jobs) == 0
        job = await bench.claim_one()
        await bench.settle(job, Failed("Boom: no more", "Boom"))
        await bench.pass_time(2 * HOUR)
        assert await told(bench, await ended(bench)) == 1, "its next end counts anew"

    async def test_the_marks_are_kept_for_each_topic_and_status(self, bench: Workbench) -> None:
        for state, topic in (("failed", "a"), ("completed", "a"), ("failed", "b")):
            await bench.make(state, topic=topic)
        jobs = await ended(bench)
        await told(bench, jobs[:2])
        assert await bench.store.stale_marks() == {("a", "failed"): jobs[0].place, ("a", "completed"): jobs[1].place}
        await told(bench, jobs)
        assert set(await bench.store.stale_marks()) == {("a", "failed"), ("a", "completed"), ("b", "failed")}

    async def test_a_job_that_was_deleted_meanwhile_is_not_told(self, bench: Workbench) -> None:
        await bench.make("failed")
        jobs = await ended(bench)
        await bench.pass_time(HOUR)
        await bench.store.prune(MINUTE)
        assert await told(bench, jobs) == 0


class EndedContract(ContractPart):
    async def test_in_the_order_in_which_they_ended(self, bench: Workbench) -> None:
        ids = await bench.enqueue(10)
        order = ids[5:] + ids[:5]
        for id in order:
            await steering.cancel(bench.store, [id], "")
            await bench.pass_time(1)
        assert [job.id for job in await ended(bench)] == order
        first = await ended(bench, 3)
        assert [job.id for job in first] == order[:3]
        rest = await bench.store.ended_jobs(first[-1].place, FOREVER)
        assert [job.id for job in rest] == order[3:]
        assert await bench.store.ended_jobs(first[-1].place, first[-1].ended_at) == []
        assert {(job.topic, job.status) for job in rest} == {(TOPIC, Status.CANCELLED)}

    async def test_many_that_ended_together_are_told_apart_by_their_numbers(self, bench: Workbench) -> None:
        ids = await bench.enqueue(25)
        await steering.cancel(bench.store, ids, "")
        place, seen = FIRST_ENDED, []
        while page := await bench.store.ended_jobs(place, FOREVER, 4):
            seen += [job.id for job in page]
            place = page[-1].place
        assert sorted(seen) == sorted(ids)

    async def test_when_the_first_job_ended(self, bench: Workbench) -> None:
        await bench.enqueue(1, topic="other")
        assert await bench.store.first_ended(FOREVER) is None
        await bench.make("failed")
        await bench.pass_time(HOUR)
        await bench.make("failed")
        first = (await ended(bench))[0].ended_at
        assert await bench.store.first_ended(FOREVER) == first
        assert await bench.store.first_ended(first) == first
        assert await bench.store.first_ended(first - 1) is None

    async def test_only_the_named_ones_are_deleted_and_only_if_they_are_still_old(self, bench: Workbench) -> None:
        ids = [await bench.make("failed") for _ in range(4)]
        await bench.pass_time(HOUR)
        jobs = {job.id: job for job in await ended(bench)}
        await steering.requeue(bench.store, [ids[0]])
        await steering.cancel(bench.store, [ids[0]], "")
        assert await bench.store.prune(MINUTE, 1000, [jobs[id].n for id in ids[:3]]) == 2
        left = [job is not None for job in await bench.store.get(ids)]
        assert left == [True, False, False, True]
        assert await bench.store.prune(MINUTE, 1000, []) == 0
        assert EndedAt(*jobs[ids[3]].place) == (await ended(bench))[0].place
