"""Long-lived data: leaders, retention and the schema."""

from __future__ import annotations

import asyncio

import pytest

from treadle.model.errors import StoreUnavailable
from treadle.model.status import Status
from treadle.policy.lifecycle import Completed, Failed, Outcome, Released
from treadle.queue import steering
from treadle.store.values import DutyReport
from treadle.store.views import Listing
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import (
    DAY,
    ENDED,
    HOUR,
    LEASES_ONLY,
    MINUTE,
    SECOND,
    STATES,
    Workbench,
    settlement,
)


class LeaderContract(ContractPart):
    async def test_the_first_is_elected_and_stays(self, bench: Workbench) -> None:
        assert await bench.store.elect("maintenance", "a", MINUTE)
        assert not await bench.store.elect("maintenance", "b", MINUTE)
        assert await bench.store.elect("maintenance", "a", MINUTE)

    async def test_offices_do_not_know_each_other(self, bench: Workbench) -> None:
        assert await bench.store.elect("one", "a", MINUTE)
        assert await bench.store.elect("two", "b", MINUTE)

    async def test_after_its_term_another_is_elected(self, bench: Workbench) -> None:
        await bench.store.elect("maintenance", "a", MINUTE)
        await bench.pass_time(MINUTE + SECOND)
        assert await bench.store.elect("maintenance", "b", MINUTE)
        assert not await bench.store.elect("maintenance", "a", MINUTE)

    async def test_a_resignation_frees_the_office(self, bench: Workbench) -> None:
        await bench.store.elect("maintenance", "a", MINUTE)
        assert await bench.store.elect("maintenance", "a", 0)
        assert await bench.store.elect("maintenance", "b", MINUTE)

    async def test_a_worker_resigns_only_for_itself(self, bench: Workbench) -> None:
        await bench.store.elect("maintenance", "a", MINUTE)
        assert not await bench.store.elect("maintenance", "b", 0)
        assert not await bench.store.elect("unknown", "b", 0)
        assert not await bench.store.elect("maintenance", "b", MINUTE)

    async def test_a_leader_s_report_is_stored_with_its_term(self, bench: Workbench) -> None:
        store = bench.store
        before = await store.now()
        assert await store.elect("maintenance", "a", MINUTE)
        (leader,) = await store.leaders()
        assert list(leader.duties) == []
        assert leader.since
        assert before <= leader.since <= await store.now()
        swept = DutyReport("reaper", 5_000, 1_200, 3, 3_800, 'said "nothing" – ✓')
        report = [swept, DutyReport("retention", None), swept._replace(failed=True)]
        await bench.pass_time(30 * SECOND)
        assert await store.elect("maintenance", "a", MINUTE, report)
        (later,) = await store.leaders()
        assert list(later.duties) == report
        assert later.since == leader.since - 30 * SECOND, "it has led all the time"
        assert later.reported_at
        assert before <= later.reported_at <= await store.now()
        assert not await store.elect("maintenance", "b", MINUTE, [DutyReport("nothing", 1)])
        assert list((await store.leaders())[0].duties) == report, "others have no say"

    async def test_the_next_leader_begins_without_a_report(self, bench: Workbench) -> None:
        store = bench.store
        await store.elect("maintenance", "a", MINUTE, [DutyReport("reaper", 5_000)])
        (first,) = await store.leaders()
        await bench.pass_time(2 * MINUTE)
        assert await store.elect("maintenance", "b", MINUTE)
        (second,) = await store.leaders()
        assert (second.holder, list(second.duties)) == ("b", [])
        assert second.since
        assert first.since
        assert second.since >= first.since, "counted from its own election"

    async def test_of_many_candidates_one_is_elected(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(3)]
        for term in range(5):
            votes = await asyncio.gather(*(stores[i % 4].elect("maintenance", f"c{i}", MINUTE) for i in range(20)))
            assert votes.count(True) == 1, f"term {term}"
            await bench.pass_time(MINUTE + SECOND)


class PruneContract(ContractPart):
    async def test_only_what_ended_long_ago(self, bench: Workbench) -> None:
        old = [await bench.make(state) for state in ENDED]
        await bench.pass_time(2 * HOUR)
        young = [await bench.make(state) for state in ENDED]
        assert await bench.store.prune(HOUR, dry_run=True) == 4
        assert await bench.store.prune(HOUR, 3, dry_run=True) == 3
        assert await bench.store.prune(HOUR) == 4
        assert await bench.store.prune(HOUR, dry_run=True) == 0
        assert await bench.statuses([*old, *young]) == [None] * 4 + [Status(state) for state in ENDED]

    async def test_what_lives_is_kept_however_old(self, bench: Workbench) -> None:
        ids = [await bench.make(state, topic=f"t.{state}") for state in STATES]
        await bench.pass_time(50 * MINUTE)
        assert await bench.store.prune(MINUTE) == 4
        left = [state for state, job in zip(STATES, await bench.store.get(ids), strict=True) if job]
        assert left == ["pending", "delayed", "retrying", "held", "processing", "cancelling"]

    async def test_no_more_than_the_limit(self, bench: Workbench) -> None:
        ids = await bench.enqueue(5)
        await steering.cancel(bench.store, ids, "")
        await bench.pass_time(HOUR)
        assert [await bench.store.prune(MINUTE, limit=2) for _ in range(4)] == [2, 2, 1, 0]
        assert await bench.store.count(Listing()) == 0

    async def test_all_that_hangs_on_it_goes_too(self, bench: Workbench) -> None:
        """The database's consistency check after this test finds leftover rows."""
        id = await bench.make("completed", dedupe_key="d", idempotency_key="k", repeatable=False, expires_in_ms=HOUR)
        await steering.requeue(bench.store, [id], force=True)
        await steering.cancel(bench.store, [id], "")
        await bench.pass_time(HOUR)
        assert await bench.store.prune(MINUTE) == 1
        assert await bench.store.events(id) is None
        await bench.enqueue(1, dedupe_key="d", idempotency_key="k", repeatable=False)

    async def test_a_job_that_was_requeued_and_ended_again_is_not_old(self, bench: Workbench) -> None:
        other = await bench.another()
        ids = [await bench.make("failed") for _ in range(10)]
        await bench.pass_time(HOUR)

        async def again(id: str) -> None:
            await steering.requeue(other, [id])
            await steering.cancel(other, [id], "")

        await asyncio.gather(*(again(id) for id in ids), *(bench.store.prune(MINUTE) for _ in range(5)))
        left = [job for job in await bench.store.get(ids) if job]
        now = await bench.store.now()
        assert all(job.ended_at and job.ended_at.timestamp() * 1000 > now - MINUTE for job in left)

    async def test_waits_and_runs_are_counted_in_powers_of_two(self, bench: Workbench) -> None:
        store = bench.store
        waits = (-3, 5, 1000, 2**40)
        await bench.enqueue(4)
        settled = [settlement(job, Completed(), ran_ms=7) for job in await bench.claim(limit=4)]
        settled = [one._replace(waited_ms=wait) for one, wait in zip(settled, waits, strict=True)]
        assert await store.settle(settled) == []
        found = {(one.kind, one.bucket): one.jobs for one in (await store.history(0, 1)).times}
        assert found == {("wait", 0): 1, ("wait", 3): 1, ("wait", 10): 1, ("wait", 23): 1, ("run", 3): 4}

    async def test_failed_attempts_have_waited_and_completed_ones_have_run(self, bench: Workbench) -> None:
        """Also jobs that can't take the fast path, because they have a key or an error."""
        store = bench.store
        await bench.enqueue(1)
        await bench.enqueue(1, dedupe_key="one")
        outcomes: tuple[Outcome, ...] = (Failed("broken", "Error"), Completed())
        settled = [
            settlement(job, outcome, ran_ms=100)._replace(waited_ms=3)
            for job, outcome in zip(await bench.claim(limit=2), outcomes, strict=True)
        ]
        assert await store.settle(settled) == []
        found = {(one.kind, one.bucket): one.jobs for one in (await store.history(0, 1)).times}
        assert found == {("wait", 2): 2, ("run", 7): 1}
        await bench.enqueue(1)
        await store.settle([settlement(job, Released("given back"), ran_ms=None) for job in await bench.claim()])
        assert {(one.kind, one.bucket): one.jobs for one in (await store.history(0, 1)).times} == found

    async def test_old_times_are_kept_in_longer_spans_and_none_is_lost(self, bench: Workbench) -> None:
        store = bench.store

        async def complete() -> None:
            await bench.enqueue(1)
            (job,) = await bench.claim()
            assert await store.settle([settlement(job, Completed(), ran_ms=7)._replace(waited_ms=3)]) == []

        for _ in range(3):
            await complete()
            await bench.pass_time(7 * MINUTE)
        assert sum(one.jobs for one in (await store.history(0, 1)).times) == 6
        for age in (2 * HOUR, 23 * HOUR, 24 * HOUR):
            await bench.pass_time(age)
            await store.tidy()
            assert sum(one.jobs for one in (await store.history(0, 1)).times) == 6
        await store.prune(96 * HOUR)
        assert sum(one.jobs for one in (await store.history(0, 1)).times) == 6
        await store.prune(MINUTE)
        assert list((await store.history(0, 1)).times) == []

    async def test_the_tally_goes_with_the_jobs(self, bench: Workbench) -> None:
        await bench.make("failed")
        await bench.pass_time(HOUR)
        await bench.make("failed")
        await bench.store.prune(MINUTE)
        await bench.store.tidy()
        database = bench.database
        if hasattr(database, "execute"):
            assert await database.execute("SELECT sum(count), count(*) FROM {tally}") == [(1, 1)]
        assert (await bench.store.stats()).counts["failed"] == 1

    async def test_the_names_of_workers_go_with_the_last_job_that_mentions_them(self, bench: Workbench) -> None:
        store = bench.store
        leases = {name: await bench.lease(worker=name) for name in ("done", "retried", "here")}
        ids = await bench.enqueue(2)
        for name, id, outcome in (
            ("done", ids[0], Completed()),
            ("retried", ids[1], Failed("Boom", "Boom", retry_in_ms=100 * DAY)),
        ):
            job = await bench.claim_one(lease=leases[name])
            assert job.id == id
            await bench.settle(job, outcome)
            await store.close_lease(leases[name])
        await bench.reap()
        await store.renew(leases["here"], 10 * HOUR)
        await bench.pass_time(HOUR)
        await store.prune(2 * HOUR)
        assert [(await bench.job(id)).last_worker for id in ids] == ["done", "retried"]
        await store.prune(MINUTE)
        await store.prune(MINUTE)
        assert (await bench.job(ids[1])).last_worker == "retried"
        database = bench.database
        if hasattr(database, "execute"):
            assert await database.execute("SELECT name FROM {workers} ORDER BY name") == [("here",), ("retried",)]

    async def test_a_worker_that_comes_back_has_its_name_again(self, bench: Workbench) -> None:
        await bench.store.close_lease(await bench.lease(worker="again"))
        await bench.reap()
        await bench.pass_time(HOUR)
        await bench.store.prune(MINUTE)
        (id,) = await bench.enqueue(1)
        await bench.settle(await bench.claim_one(lease=await bench.lease(worker="again")), Completed())
        assert (await bench.job(id)).last_worker == "again"

    async def test_two_concurrent_prunes_delete_each_job_once(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(2)]
        ids = await bench.enqueue(120)
        await steering.cancel(bench.store, ids, "")
        await bench.pass_time(HOUR)
        await asyncio.gather(*(store.prune(MINUTE, limit=40) for store in stores * 2))
        await bench.store.prune(MINUTE)
        assert await bench.store.count(Listing()) == 0
        assert (await bench.store.stats()).counts["cancelled"] == 0


class OpenContract(ContractPart):
    async def test_opening_again_has_nothing_to_do(self, bench: Workbench) -> None:
        assert await bench.store.migrate(dry_run=True) == []
        assert await bench.store.migrate() == []
        other = await bench.another()
        assert await other.migrate(dry_run=True) == []

    async def test_a_closed_store_says_so(self, bench: Workbench) -> None:
        other = await bench.another()
        await other.close()
        await other.close()
        with pytest.raises(StoreUnavailable, match="open"):
            await other.now()
        with pytest.raises(StoreUnavailable, match="open"):
            await other.open_lease("w", MINUTE)

    async def test_a_store_that_was_never_opened_says_so(self, bench: Workbench) -> None:
        store = bench.database.make_store()
        with pytest.raises(StoreUnavailable, match="open"):
            await store.stats()
        with pytest.raises(StoreUnavailable, match="open"):
            await store.reap(LEASES_ONLY)
        await store.close()

    async def test_the_databases_clock_runs(self, bench: Workbench) -> None:
        first = await bench.store.now()
        second = await bench.store.now()
        assert first <= second < first + MINUTE

    async def test_the_doctor_finds_a_healthy_store(self, bench: Workbench) -> None:
        findings = await bench.store.examine()
        assert {finding.level for finding in findings} <= {"ok", "warn", "fail"}
        assert all(finding.check and finding.message for finding in findings)
        assert all(finding.advice for finding in findings if finding.level == "fail")
