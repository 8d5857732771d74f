"""The change feed: every change is reported exactly once, in order for each job."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

import pytest

from treadle.model.job import Job
from treadle.model.status import Status
from treadle.policy.lifecycle import CancelAcknowledged, Completed, Failed, Released, Snoozed
from treadle.queue import steering
from treadle.store.protocol import Store
from treadle.store.values import Touch
from treadle.store.views import Listing
from treadle.testing.contract.watching import Watched, Watcher, id_of, names
from treadle.testing.workbench import HOUR, MINUTE, TOPIC, Workbench, eventually, new_job, settlement


class ChangesContract(Watched):
    async def test_what_was_before_is_not_told(self, bench: Workbench) -> None:
        for state in ("completed", "failed", "processing", "pending"):
            await bench.make(state)
        watcher = Watcher(bench.store)
        assert await watcher.news() == []
        assert await watcher.news() == []

    async def test_the_life_of_a_plain_job(self, bench: Workbench, watcher: Watcher) -> None:
        (id,) = await bench.enqueue(1)
        assert await watcher.news() == ["enqueued"]
        job = await bench.claim_one()
        assert await watcher.news() == [], "its handler has not started yet"
        await self.touch(bench, job)
        assert await watcher.news() == ["started"]
        await bench.settle(job, Completed('"done"'))
        (change,) = await watcher.look()
        assert (change.event, change.to) == ("job:completed", Status.COMPLETED)
        assert isinstance(change.job, Job)
        assert (change.job.id, change.job.result_value) == (id, "done")
        assert await watcher.news() == []

    async def test_a_life_between_two_looks(self, bench: Workbench, watcher: Watcher) -> None:
        await bench.make("completed")
        enqueued, started, completed = await watcher.look()
        assert names([enqueued, started, completed]) == ["enqueued", "started", "completed"]
        assert enqueued.at <= completed.at
        assert started.at == completed.at - 5, "when it started, not when that became known"

    async def test_when_it_happened(self, bench: Workbench, watcher: Watcher) -> None:
        before = await bench.store.now()
        await bench.make("failed")
        after = await bench.store.now()
        enqueued, _, failed = await watcher.look()
        assert before <= enqueued.at <= failed.at <= after

    async def test_an_ending_without_a_start(self, bench: Workbench, watcher: Watcher) -> None:
        await bench.enqueue(1)
        await bench.settle(await bench.claim_one(), Completed(), ran_ms=None)
        assert await watcher.news() == ["enqueued", "completed"]

    async def test_the_whole_story_in_order(self, bench: Workbench, watcher: Watcher) -> None:
        """Reading once at the end gives the same events as reading after each step."""
        steps = Watcher(bench.store)
        await steps.look()
        (id,) = await bench.enqueue(1)
        await steps.look()
        await bench.settle(await bench.claim_one(), Failed("Boom: one", "Boom", retry_in_ms=1))
        await steps.look()
        await eventually(bench.promoted)
        await self.started(bench, lease=await bench.lease(MINUTE))
        await steps.look()
        await bench.pass_time(HOUR)
        await bench.reap()
        await steps.look()
        await bench.settle(await self.started(bench), Snoozed(1))
        await steps.look()
        await eventually(bench.promoted)
        await bench.claim_one()
        await steering.release(bench.store, [id])
        await steps.look()
        await self.started(bench)
        await steering.cancel(bench.store, [id], "enough")
        await steps.look()
        await steering.release(bench.store, [id])
        await steps.look()
        await steering.requeue(bench.store, [id])
        await steps.look()
        await bench.settle(await bench.claim_one(), Completed())
        await steps.look()
        await watcher.look()
        story = (
            "enqueued started retrying started reclaimed started snoozed released started cancelling cancelled "
            "requeued started completed"
        ).split()
        assert watcher.stories() == {id: story}
        assert steps.stories() == {id: story}

    async def test_each_way_out(self, bench: Workbench, watcher: Watcher) -> None:
        await bench.make("cancelled")
        assert await watcher.news() == ["enqueued", "cancelled"]
        await bench.make("expired")
        assert await watcher.news() == ["enqueued", "expired"]
        await bench.make("failed")
        assert await watcher.news() == ["enqueued", "started", "failed"]
        await bench.enqueue(1, expires_in_ms=1)
        await eventually(self._overdue(bench))
        assert await watcher.news() == ["enqueued", "expired"]

    def _overdue(self, bench: Workbench) -> Any:
        async def ended() -> bool:
            return bool((await bench.store.advance()).moved)

        return ended

    async def test_a_job_with_keys_completes(self, bench: Workbench, watcher: Watcher) -> None:
        await bench.make("completed", dedupe_key="d", expires_in_ms=HOUR)
        assert await watcher.news() == ["enqueued", "started", "completed"]

    async def test_a_completed_job_that_is_requeued_before_the_next_look(
        self, bench: Workbench, watcher: Watcher
    ) -> None:
        id = await bench.make("completed")
        await steering.requeue(bench.store, [id], force=True)
        assert await watcher.news() == ["enqueued", "started", "completed", "requeued"]
        await bench.settle(await bench.claim_one(), Completed())
        assert await watcher.news() == ["started", "completed"]

    async def test_a_cancel_comes_after_the_start(self, bench: Workbench, watcher: Watcher) -> None:
        (id,) = await bench.enqueue(1)
        job = await self.started(bench)
        await steering.cancel(bench.store, [id], "")
        assert await watcher.news() == ["enqueued", "started", "cancelling"]
        await bench.settle(job, CancelAcknowledged("stopped"))
        assert await watcher.news() == ["cancelled"]
        (id,) = await bench.enqueue(1)
        job = await self.started(bench)
        await steering.cancel(bench.store, [id], "")
        await bench.settle(job, CancelAcknowledged("stopped"))
        assert await watcher.news() == ["enqueued", "started", "cancelling", "cancelled"]

    async def test_a_cancel_that_is_stored_before_the_start_waits_for_it(
        self, bench: Workbench, watcher: Watcher
    ) -> None:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        await steering.cancel(bench.store, [id], "")
        assert await watcher.news() == ["enqueued"]
        await self.touch(bench, job, 10)
        assert await watcher.news() == ["started", "cancelling", "progress"]
        await bench.settle(job, CancelAcknowledged("stopped"))
        assert await watcher.news() == ["cancelled"]

    async def test_a_cancel_that_is_stored_before_a_start_that_only_the_ending_tells(
        self, bench: Workbench, watcher: Watcher
    ) -> None:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        await steering.cancel(bench.store, [id], "")
        assert await watcher.news() == ["enqueued"]
        await bench.settle(job, Completed())
        assert await watcher.news() == ["started", "cancelling", "completed"]

    async def test_a_cancel_of_an_attempt_that_never_started(self, bench: Workbench, watcher: Watcher) -> None:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        await steering.cancel(bench.store, [id], "")
        assert await watcher.news() == ["enqueued"]
        await bench.store.settle([settlement(job, CancelAcknowledged("stopped"), None)])
        assert await watcher.news() == ["cancelling", "cancelled"]

    async def test_a_start_that_is_stored_long_after_the_cancel_is_not_told(
        self, bench: Workbench, watcher: Watcher
    ) -> None:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        await steering.cancel(bench.store, [id], "")
        late = Watcher(bench.store)
        await late.look()
        await eventually(lambda: watcher.has_told("cancelling"))
        await self.touch(bench, job, 10)
        assert await watcher.news() == ["progress"]
        assert await late.news() == ["progress"], "the cancel was stored before it began to watch"
        await bench.settle(job, CancelAcknowledged("stopped"))
        assert await watcher.news() == ["cancelled"]
        await steering.requeue(bench.store, [id])
        await self.started(bench)
        assert await watcher.news() == ["requeued", "started"]

    async def test_progress_is_told_when_it_changed(self, bench: Workbench, watcher: Watcher) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        await self.touch(bench, job, 10, "a tenth")
        assert await watcher.news() == ["enqueued", "started", "progress"]
        assert (watcher.seen[-1].progress, watcher.seen[-1].message) == (10, "a tenth")
        assert await watcher.news() == []
        await self.touch(bench, job, 10, "a tenth")
        assert await watcher.news() == []
        await self.touch(bench, job, 90)
        (change,) = await watcher.look()
        assert (change.event, change.progress, change.message) == ("job:progress", 90, "a tenth")
        await bench.settle(job, Completed())
        assert await watcher.news() == ["completed"]

    async def test_a_new_attempt_has_its_own_start_and_progress(self, bench: Workbench, watcher: Watcher) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        await self.touch(bench, job, 50)
        await watcher.look()
        await bench.settle(job, Released())
        again = await bench.claim_one()
        assert await watcher.news() == ["released"]
        await self.touch(bench, again, 50)
        assert await watcher.news() == ["started", "progress"]

    async def test_many_at_once(self, bench: Workbench, watcher: Watcher) -> None:
        ids = await bench.enqueue(30)
        jobs = await bench.claim(30)
        await bench.store.settle([settlement(job, Completed()) for job in jobs[:20]])
        await steering.cancel(bench.store, ids, "")
        await watcher.look()
        await eventually(lambda: watcher.has_told("cancelling", 10))
        stories = watcher.stories()
        assert list(stories) == ids, "in the order in which they were made"
        done = [job.id for job in jobs[:20]]
        for id in ids:
            assert stories[id] == ["enqueued", *(["started", "completed"] if id in done else ["cancelling"])]

    @pytest.mark.parametrize("page", [1, 3, 50])
    async def test_page_by_page(self, bench: Workbench, page: int) -> None:
        watcher = Watcher(bench.store, page)
        await watcher.look()
        ids = await bench.enqueue(20)
        jobs = await bench.claim(20)
        await bench.store.settle([settlement(job, Completed()) for job in jobs[:9]])
        for job in jobs[9:]:
            await bench.settle(job, Failed("Boom", "Boom"))
        await steering.requeue(bench.store, [job.id for job in jobs[9:]])
        await watcher.look()
        done = {job.id for job in jobs[:9]}
        for id in ids:
            rest = ["completed"] if id in done else ["failed", "requeued"]
            assert watcher.stories()[id] == ["enqueued", "started", *rest]

    async def test_a_cursor_may_be_used_again(self, bench: Workbench, watcher: Watcher) -> None:
        """A reader that lost an answer can repeat the request."""
        await bench.make("completed")
        await bench.make("processing")
        one = await bench.store.changes(watcher.cursor)
        two = await bench.store.changes(watcher.cursor)
        assert names(one.events) == names(two.events) == ["enqueued", "enqueued", "started", "completed"]

    async def test_what_others_do_is_told_too(self, bench: Workbench, watcher: Watcher) -> None:
        client, worker = await bench.others(2)
        (id,) = await bench.enqueue(1, store=client)
        job = await bench.claim_one(store=worker)
        await bench.settle(job, Completed(), store=worker)
        await steering.requeue(client, [id], force=True)
        assert await watcher.news() == ["enqueued", "started", "completed", "requeued"]

    async def test_deleting(self, bench: Workbench, watcher: Watcher) -> None:
        id = await bench.enqueue_one(scope="user", scope_id="ann", created_by="bob")
        failed = await bench.make("failed", topic="other")
        await watcher.look()
        await steering.delete(bench.store, [id, failed])
        changes = await watcher.look()
        assert names(changes) == ["deleted", "deleted"]
        assert [change.job for change in changes] == [None, None]
        assert changes[0].gone == {"id": id, "topic": TOPIC, "scope": "user", "scopeId": "ann", "createdBy": "bob"}
        assert changes[1].gone == {"id": failed, "topic": "other", "scope": None, "scopeId": None, "createdBy": None}

    async def test_of_a_job_that_is_gone_only_that_is_told(self, bench: Workbench, watcher: Watcher) -> None:
        id = await bench.make("completed")
        await steering.delete(bench.store, [id], force=True)
        assert await watcher.news() == ["deleted"]

    async def test_pruning(self, bench: Workbench, watcher: Watcher) -> None:
        ids = {await bench.make("completed") for _ in range(3)}
        await watcher.look()
        await bench.pass_time(2 * HOUR)
        assert await bench.store.prune(HOUR) == 3
        changes = await watcher.look()
        assert names(changes) == ["deleted"] * 3
        assert {id_of(change) for change in changes} == ids

    async def test_tidying_takes_nothing_away_that_is_new(self, bench: Workbench, watcher: Watcher) -> None:
        await bench.make("completed")
        await bench.store.tidy()
        assert await watcher.news() == ["enqueued", "started", "completed"]

    async def test_tidying_keeps_the_histories(self, bench: Workbench, watcher: Watcher) -> None:
        id = await bench.make("failed")
        await bench.make("completed")
        await bench.pass_time(HOUR)
        await bench.store.tidy()
        assert await bench.history(id) == ["failed"]
        late = await bench.store.changes(watcher.cursor)
        assert "failed" in names(late.events)
        assert "completed" not in names(late.events), "who looks an hour later has to look at the jobs themselves"


class SnapshotContract(Watched):
    """A snapshot includes the effect of every event before it and of none after it."""

    async def test_the_listed_jobs(self, bench: Workbench, watcher: Watcher) -> None:
        ids = await bench.enqueue(3)
        await bench.enqueue(1, topic="other")
        changes = await bench.store.changes(watcher.cursor, 100, Listing(topic=TOPIC, limit=2))
        assert names(changes.events) == ["enqueued"] * 4
        assert [job.id for job in changes.jobs or ()] == ids[:0:-1]

    async def test_one_job(self, bench: Workbench, watcher: Watcher) -> None:
        first, _ = await bench.enqueue(2)
        changes = await bench.store.changes(watcher.cursor, 100, [first])
        assert [job.id for job in changes.jobs or ()] == [first]
        await steering.delete(bench.store, [first])
        changes = await bench.store.changes(changes.cursor, 100, [first])
        assert (names(changes.events), changes.jobs) == (["deleted"], [])

    async def test_nothing_wanted(self, bench: Workbench, watcher: Watcher) -> None:
        assert (await bench.store.changes(watcher.cursor)).jobs is None

    async def test_only_when_everything_has_been_told(self, bench: Workbench, watcher: Watcher) -> None:
        await bench.enqueue(3)
        changes = await bench.store.changes(watcher.cursor, 2, Listing())
        assert (changes.more, changes.jobs) == (True, None)
        changes = await bench.store.changes(changes.cursor, 2, Listing())
        assert (changes.more, len(changes.jobs or ())) == (False, 3)

    async def test_from_the_start(self, bench: Workbench) -> None:
        id = await bench.make("processing")
        changes = await bench.store.changes(None, 100, Listing())
        assert (changes.events, [job.id for job in changes.jobs or ()]) == ([], [id])

    async def test_while_others_are_at_work(self, bench: Workbench) -> None:
        """The snapshot plus the events after it always add up to the final state."""
        other = await bench.another()
        over = asyncio.Event()

        async def work() -> None:
            for _ in range(25):
                await other.insert([new_job() for _ in range(random.randint(1, 3))])
                for job in await bench.claim(2, store=other):
                    await bench.settle(job, Completed(), store=other)
            over.set()

        async def check() -> None:
            changes = await bench.store.changes(None, 1000, Listing(limit=1000))
            known = {job.id: job.status for job in changes.jobs or ()}
            cursor: Any = changes.cursor
            last = False
            while not last:
                last = over.is_set()
                changes = await bench.store.changes(cursor, 5)
                cursor = changes.cursor
                for change in changes.events:
                    assert (change.event == "job:enqueued") == (id_of(change) not in known), "a gap or a double"
                    assert change.to is not None
                    # A claimed job counts as processing before it is started.
                    assert change.to != known.get(id_of(change)) or change.event == "job:started", "a double"
                    known[id_of(change)] = change.to
                last = last and not changes.more
            jobs = await bench.store.list(Listing(limit=1000))
            assert known == {job.id: job.status for job in jobs}

        await asyncio.gather(work(), *(check() for _ in range(4)))


class BusyChangesContract(Watched):
    """Several workers run while a reader polls: each job's history is complete, legal and reported once."""

    FOLLOWS: ClassVar[dict[str | None, set[str]]] = {
        None: {"enqueued"},
        "enqueued": {"started", "cancelled", "released", "cancelling"},
        "started": {"completed", "failed", "retrying", "snoozed", "released", "cancelling", "cancelled"},
        "retrying": {"started", "released", "cancelled", "cancelling"},
        "snoozed": {"started", "released", "cancelled", "cancelling"},
        "released": {"started", "released", "cancelled", "cancelling"},
        "cancelling": {"cancelled", "completed"},
        "completed": {"requeued"},
        "failed": {"requeued"},
        "cancelled": {"requeued"},
        "requeued": {"started", "cancelled", "released", "cancelling"},
    }

    async def test_a_busy_queue(self, bench: Workbench, watcher: Watcher) -> None:
        stores = await bench.others(3)
        watcher.page = 7
        over = False

        async def work(store: Store) -> None:
            for _ in range(20):
                ids = await bench.enqueue(random.randint(1, 4), store=store)
                jobs = await bench.claim(4, store=store)
                for job in jobs:
                    if random.random() < 0.3:
                        await store.touch(job.lease, [Touch(job.n, job.token, 1, None, None)])
                    await bench.settle(job, self.some_outcome(), store=store)
                await store.advance()
                if random.random() < 0.3:
                    await steering.cancel(store, ids, "")
                if random.random() < 0.3:
                    await steering.requeue(store, [job.id for job in jobs], force=True)

        async def watch() -> None:
            while not over:
                await watcher.look()

        watching = asyncio.create_task(watch())
        await asyncio.gather(*map(work, stores))
        over = True
        await watching
        await watcher.look()
        assert await watcher.news() == []
        await self.stories_are_whole(bench, watcher)

    def some_outcome(self) -> Any:
        return random.choice(
            [Completed(), Completed(), Failed("Boom", "Boom"), Failed("B", "B", retry_in_ms=1), Snoozed(1), Released()]
        )

    async def stories_are_whole(self, bench: Workbench, watcher: Watcher) -> None:
        jobs = await bench.store.list(Listing(limit=1000))
        stories = watcher.stories()
        assert stories.keys() == {job.id for job in jobs}
        for job in jobs:
            story = stories[job.id]
            for before, after in zip([None, *story], story, strict=False):
                assert after in self.FOLLOWS[before], story
            stored = await bench.history(job.id)
            assert [name for name in story if name not in ("enqueued", "started", "completed")] == stored
            last = [name for name in story if name != "started"][-1]
            if job.ended:
                assert last == job.status
