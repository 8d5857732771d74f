"""Reads about the whole queue: statistics, history, failures, topics, workers, and what keeps a job from starting."""

from __future__ import annotations

from dataclasses import replace

from treadle.model.status import Status
from treadle.policy import rules
from treadle.policy.lifecycle import Completed, Failed
from treadle.queue import steering
from treadle.store.values import TopicOptions
from treadle.store.views import Listing, RateUsed
from treadle.testing.contract.requests import MALFORMED, UNKNOWN
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import (
    ENDED,
    HOUR,
    MINUTE,
    SECOND,
    STATES,
    Workbench,
    settlement,
)


class StatsContract(ContractPart):
    async def test_an_empty_queue(self, bench: Workbench) -> None:
        stats = await bench.store.stats()
        assert stats.counts == dict.fromkeys((status.value for status in Status), 0)
        assert (stats.run_ms, stats.topics) == (0, {})

    async def test_every_status_is_counted(self, bench: Workbench) -> None:
        for state in STATES:
            await bench.make(state, topic=f"t.{state}")
        counts = (await bench.store.stats()).counts
        assert counts["pending"] == 4
        assert counts["processing"] == 2  # one of them is the job that the held one waits for
        assert [counts[status] for status in ("cancelling", *ENDED)] == [1] * 5
        assert counts["waiting"] == 0

    async def test_by_topic(self, bench: Workbench) -> None:
        await bench.make("completed", topic="a")
        await bench.make("failed", topic="a")
        await bench.enqueue(2, topic="b")
        stats = await bench.store.stats()
        assert set(stats.topics) == {"a", "b"}
        assert (stats.topics["a"]["completed"], stats.topics["a"]["failed"], stats.topics["b"]["pending"]) == (1, 1, 2)
        of_a = await bench.store.stats(topic="a")
        assert set(of_a.topics) == {"a"}
        assert (of_a.counts["completed"], of_a.counts["pending"], of_a.run_ms) == (1, 0, 5)
        of_b = await bench.store.stats(topic="b")
        assert (of_b.counts["completed"], of_b.counts["pending"], of_b.run_ms) == (0, 2, 0)
        assert sum((await bench.store.stats(topic="nobodys")).counts.values()) == 0

    async def test_the_run_time_is_that_of_completed_jobs(self, bench: Workbench) -> None:
        await bench.enqueue(3)
        a, b, c = await bench.claim(3)
        await bench.store.settle(
            [
                settlement(a, Completed(), ran_ms=100),
                settlement(b, Completed(), ran_ms=250),
                settlement(c, Failed("Boom", "Boom"), ran_ms=10_000),
            ]
        )
        assert (await bench.store.stats()).run_ms == 350

    async def test_since(self, bench: Workbench) -> None:
        await bench.make("completed")
        await bench.pass_time(2 * HOUR)
        await bench.make("completed")
        await bench.make("failed")
        now = await bench.store.now()
        recent = await bench.store.stats(since=now - HOUR)
        assert (recent.counts["completed"], recent.counts["failed"], recent.run_ms) == (1, 1, 5)
        everything = await bench.store.stats(since=now - 3 * HOUR)
        assert (everything.counts["completed"], everything.run_ms) == (2, 10)

    async def test_of_some_jobs_only(self, bench: Workbench) -> None:
        """Counted by topic and status up to a cap, among the jobs that an access rule lets through."""
        among = Listing(condition=rules.parse_filter("priority >= 70"))
        await bench.make("completed", topic="a", priority=70)
        await bench.pass_time(2 * HOUR)
        await bench.make("completed", topic="a", priority=70)
        await bench.make("completed", topic="a")
        await bench.make("failed", topic="b", priority=80)
        await bench.enqueue(3, topic="b", priority=70)
        await bench.enqueue(2, topic="c")
        stats = await bench.store.stats(among=among)
        assert {topic: {k: n for k, n in counts.items() if n} for topic, counts in stats.topics.items()} == {
            "a": {"completed": 2},
            "b": {"pending": 3, "failed": 1},
        }
        assert (stats.counts["pending"], stats.counts["completed"], stats.counts["waiting"]) == (3, 2, 0)
        assert (await bench.store.stats(among=among, cap=2)).counts["pending"] == 2
        of_b = await bench.store.stats("b", among=among)
        assert (set(of_b.topics), of_b.counts["completed"]) == ({"b"}, 0)
        recent = await bench.store.stats(since=await bench.store.now() - HOUR, among=among)
        assert (recent.counts["completed"], recent.counts["pending"]) == (1, 3)

    async def test_before_and_after_a_requeue(self, bench: Workbench) -> None:
        id = await bench.make("completed")
        before = await bench.store.stats()
        await steering.requeue(bench.store, [id], force=True)
        after = await bench.store.stats()
        assert (before.counts["completed"], before.run_ms) == (1, 5)
        assert (after.counts["completed"], after.run_ms, after.counts["pending"]) == (0, 0, 1)
        await bench.settle(await bench.claim_one(), Completed(), ran_ms=70)
        again = await bench.store.stats()
        assert (again.counts["completed"], again.run_ms) == (1, 70)

    async def test_before_and_after_a_delete_and_a_prune(self, bench: Workbench) -> None:
        deleted, kept = await bench.make("failed"), await bench.make("completed")
        await bench.pass_time(2 * HOUR)
        await bench.make("completed")
        await steering.delete(bench.store, [deleted])
        counts = (await bench.store.stats()).counts
        assert (counts["failed"], counts["completed"]) == (0, 2)
        assert await bench.store.prune(HOUR) == 1
        assert await bench.store.get([kept]) == [None]
        stats = await bench.store.stats()
        assert (stats.counts["completed"], stats.run_ms) == (1, 5)

    async def test_tidying_changes_no_count(self, bench: Workbench) -> None:
        stores = await bench.others(2)
        await bench.enqueue(6)
        for store in (bench.store, *stores):
            for job in await bench.claim(2, store=store):
                await bench.settle(job, Completed(), store=store, ran_ms=10)
        await bench.pass_time(HOUR)
        before = await bench.store.stats()
        await bench.store.tidy()
        await bench.store.tidy()
        assert await bench.store.stats() == before
        assert (before.counts["completed"], before.run_ms) == (6, 60)


class OverviewContract(ContractPart):
    async def test_endings_are_told_by_span_topic_and_status(self, bench: Workbench) -> None:
        for topic in ("mail", "mail", "other"):
            await bench.make("completed", topic=topic)
        await bench.make("failed", topic="mail")
        now = await bench.store.now()
        found, _ = await bench.store.history(now - HOUR, 30)
        assert {(one.topic, one.status, one.jobs) for one in found} == {
            ("mail", "completed", 2),
            ("mail", "failed", 1),
            ("other", "completed", 1),
        }
        assert all(one.at % (30 * MINUTE) == 0 and one.at <= now for one in found)
        assert await bench.store.history(now + HOUR, 30) == ([], [])

    async def test_attempts_that_are_tried_again_are_counted_and_end_no_job(self, bench: Workbench) -> None:
        for _ in range(2):
            await bench.make("retrying", topic="mail")
        now = await bench.store.now()
        found, _ = await bench.store.history(now - HOUR, 60)
        assert {(one.topic, one.status, one.jobs) for one in found} == {("mail", "retrying", 2)}
        counts = (await bench.store.stats()).counts
        assert (counts["pending"], sum(counts.values())) == (2, 2)
        await bench.pass_time(HOUR)
        await bench.store.tidy()
        await bench.store.prune(2 * HOUR, 100)
        assert sum(one.jobs for one in (await bench.store.history(now - 3 * HOUR, 60)).ended) == 2
        await bench.store.prune(MINUTE, 100)
        assert (await bench.store.history(now - 3 * HOUR, 60)).ended == []

    async def test_the_backlog_knows_what_is_due_and_what_comes_later(self, bench: Workbench) -> None:
        before = await bench.store.now()
        await bench.enqueue(3, topic="mail")
        await bench.enqueue(2, topic="video", capability="gpu")
        await bench.make("delayed", topic="mail")
        topics = await bench.store.topics(backlog=True)
        found = {(topic.topic, one.capability, one.due): one for topic in topics for one in topic.backlog}
        assert {key: one.jobs for key, one in found.items()} == {
            ("mail", "", True): 3,
            ("video", "gpu", True): 2,
            ("mail", "", False): 1,
        }
        assert before - SECOND <= found["mail", "", True].first <= await bench.store.now()
        assert found["mail", "", False].first > before

    async def test_the_backlog_knows_what_waits_for_its_key(self, bench: Workbench) -> None:
        await bench.make("held", topic="mail")
        await bench.enqueue(2, topic="mail")
        await bench.enqueue(1, topic="video")
        topics = {topic.topic: topic for topic in await bench.store.topics(backlog=True)}
        [mail], [video] = topics["mail"].backlog, topics["video"].backlog
        assert [(mail.jobs, mail.held), (video.jobs, video.held)] == [(3, 1), (1, 0)]
        [busy] = topics["mail"].busy_keys
        assert (busy.key.startswith("held-"), busy.running, busy.most) == (True, 1, 1)
        assert topics["video"].busy_keys == ()

    async def test_the_starts_within_a_rate_limit_are_known(self, bench: Workbench) -> None:
        rate = TopicOptions("mail", 2, 60_000)
        await bench.store.write_records([], atomic=True, topics=[rate])
        await bench.enqueue(1, topic="mail")
        await bench.claim_one(topics=["mail"])
        [topic] = await bench.store.topics(backlog=True)
        assert topic.rate == RateUsed(2, 60_000, 1)
        await bench.pass_time(2 * MINUTE)
        [topic] = await bench.store.topics(backlog=True)
        assert topic.rate == RateUsed(2, 60_000, 0)

    async def test_the_leader_is_known_as_long_as_its_term(self, bench: Workbench) -> None:
        assert await bench.store.leaders() == []
        await bench.store.elect("maintenance", "w1", HOUR)
        (leader,) = await bench.store.leaders()
        assert (leader.name, leader.holder) == ("maintenance", "w1")
        await bench.pass_time(HOUR + SECOND)
        assert await bench.store.leaders() == []

    async def test_a_worker_s_last_heartbeat_is_known(self, bench: Workbench) -> None:
        before = await bench.store.now()
        await bench.lease()
        (worker,) = await bench.store.workers()
        assert before <= worker.renewed_at <= await bench.store.now()


class FailedGroupsContract(ContractPart):
    async def test_failures_are_grouped_by_their_error(self, bench: Workbench) -> None:
        ids = []
        for error in ("connection 1 refused", "connection 2 refused", "no such user"):
            ids.append(await bench.enqueue_one(max_attempts=1))
            await bench.settle(await bench.claim_one(), Failed(error, "SmtpError"))
            await bench.pass_time(MINUTE)
        await bench.make("completed")
        found = sorted(await bench.store.failed_groups(100), key=lambda one: len(one.ended))
        assert [(len(one.ended), one.newest_id) for one in found] == [(1, ids[2]), (2, ids[1])]
        jobs = [job for job in await bench.store.get(ids) if job]
        assert [one.group for one in found] == [jobs[2].error_group, jobs[0].error_group]
        assert sorted(found[1].ended) == [int(job.failed_at.timestamp() * 1000) for job in jobs[:2] if job.failed_at]
        (newest,) = await bench.store.failed_groups(1)
        assert newest == found[0]

    async def test_an_error_group_is_a_filter(self, bench: Workbench) -> None:
        await bench.make("failed")
        (group,) = await bench.store.failed_groups(10)
        listing = Listing(status=Status.FAILED, condition=rules.parse_filter(f'errorGroup = "{group.group}"'))
        assert [job.id for job in await bench.store.list(listing)] == [group.newest_id]
        other = replace(listing, condition=rules.parse_filter('errorGroup = "other"'))
        assert await bench.store.list(other) == []


class TopicsContract(ContractPart):
    async def test_every_topic_with_its_work(self, bench: Workbench) -> None:
        assert await bench.store.topics() == []
        await bench.make("processing", topic="b")
        await bench.enqueue(2, topic="b")
        await bench.enqueue(1, topic="a")
        await bench.store.pause("c")
        topics = await bench.store.topics()
        assert [(one.topic, one.pending, one.processing, one.paused_until is None) for one in topics] == [
            ("a", 1, 0, True),
            ("b", 2, 1, True),
            ("c", 0, 0, False),
        ]

    async def test_a_pause_that_is_over_is_not_shown(self, bench: Workbench) -> None:
        await bench.store.pause("a", await bench.store.now() + MINUTE)
        await bench.pass_time(HOUR)
        assert [one.paused_until for one in await bench.store.topics()] == [None]


class ObstaclesContract(ContractPart):
    async def test_nothing_stands_in_the_way(self, bench: Workbench) -> None:
        assert list(await bench.store.obstacles(await bench.enqueue_one())) == []

    async def test_of_no_job(self, bench: Workbench) -> None:
        for id in [UNKNOWN, *MALFORMED]:
            assert list(await bench.store.obstacles(id)) == []
