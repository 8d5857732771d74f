"""Reads: get, list, count, events, and wake-up hints."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from treadle.model.errors import QueryTooSlow
from treadle.model.status import Status
from treadle.policy import rules
from treadle.policy.lifecycle import Completed, Failed, Outcome, Released, Snoozed
from treadle.queue import steering
from treadle.store.views import Listing
from treadle.testing.contract.requests import MALFORMED, UNKNOWN
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import (
    DAY,
    ENDED,
    HOUR,
    MINUTE,
    SECOND,
    STATES,
    TOPIC,
    Workbench,
    eventually,
    new_job,
)


def status_of(state: str) -> Status:
    return Status.PENDING if state in ("pending", "delayed", "retrying", "held") else Status(state)


# Valid filters that are very slow to evaluate, because every position of every payload nearly matches.
LONG = '{"x":"' + "a" * 200_000 + '"}'
SLOW = " || ".join(f"payload.x ~ '%{'a' * length}{end}%'" for length, end in ((195, "b"), (195, "c"), (95, "d")))


class SearchContract(ContractPart):
    async def test_a_slow_search_is_stopped_and_nothing_else_waits_for_it(self, bench: Workbench) -> None:
        store = bench.store
        ids = await bench.enqueue(60, payload=LONG)
        lease = await bench.lease()
        wanted = Listing(condition=rules.parse_filter(SLOW))
        searches = [asyncio.create_task(verb(wanted)) for verb in (store.list, store.count) * 2]
        searches.append(asyncio.create_task(store.changes(None, 1000, wanted)))
        rounds = 0
        while not any(search.done() for search in searches):
            await store.get(ids[:1])
            await store.advance()
            await store.renew(lease, HOUR)
            await store.get_records([("kind", "id")])
            await bench.enqueue_one(topic="other")
            assert await bench.claim(topics=("other",), lease=lease)
            rounds += 1
        assert rounds > 1, "something waited for a search"
        for search in searches:
            with pytest.raises(QueryTooSlow, match="narrow it by topic"):
                await search
        assert len(await store.list(Listing())) == 30


class GetContract(ContractPart):
    async def test_in_the_order_asked_for(self, bench: Workbench) -> None:
        ids = await bench.enqueue(3)
        asked = [ids[2], UNKNOWN, ids[0], ids[2]]
        assert [job and job.id for job in await bench.store.get(asked)] == [ids[2], None, ids[0], ids[2]]

    async def test_ids_of_no_job(self, bench: Workbench) -> None:
        assert await bench.store.get([]) == []
        assert await bench.store.get([UNKNOWN, *MALFORMED]) == [None] * 7
        assert await bench.store.get(MALFORMED) == [None] * 6

    @pytest.mark.parametrize("state", STATES)
    async def test_every_state_is_told(self, bench: Workbench, state: str) -> None:
        id = await bench.make(state)
        job = await bench.job(id)
        assert job.status is status_of(state)
        assert job.ended == (state in ENDED)
        assert (job.locked_by is not None) == (state in ("processing", "cancelling"))
        assert (job.cancel_requested_at is not None) == (state in ("cancelling", "cancelled"))

    async def test_many_at_once(self, bench: Workbench) -> None:
        ids = await bench.enqueue(1000)
        assert [job and job.id for job in await bench.store.get(ids)] == ids

    async def test_stale_after_seven_days(self, bench: Workbench) -> None:
        id = await bench.make("failed")
        await bench.pass_time(6 * DAY)
        assert (await bench.job(id)).stale_at is None
        await bench.pass_time(2 * DAY)
        job = await bench.job(id)
        assert job.status is Status.FAILED
        assert job.failed_at is not None
        assert job.stale_at is not None
        assert (job.stale_at - job.failed_at).days == 7


class ListContract(ContractPart):
    async def listed(self, bench: Workbench, **wanted: Any) -> list[str]:
        listing = Listing(**{"limit": 100, **wanted})
        jobs = await bench.store.list(listing)
        assert await bench.store.count(listing) == len(jobs)
        return [job.id for job in jobs]

    async def test_newest_first(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(priority=p) for p in (50, 90, 10)]
        assert await self.listed(bench) == ids[::-1]

    async def test_an_empty_queue(self, bench: Workbench) -> None:
        assert await self.listed(bench) == []
        for status in Status:
            assert await self.listed(bench, status=status, topic="x", scope="s", scope_id="i") == []
        assert await self.listed(bench, stale=True) == []

    async def test_by_status(self, bench: Workbench) -> None:
        ids = {state: await bench.make(state, topic=f"t.{state}") for state in STATES}
        for status in Status:
            wanted = [id for state, id in ids.items() if status_of(state) is status][::-1]
            listed = await self.listed(bench, status=status)
            assert [id for id in listed if id in ids.values()] == wanted, status

    async def test_by_topic(self, bench: Workbench) -> None:
        mine = [await bench.make(state) for state in ("completed", "failed", "processing", "pending", "delayed")]
        await bench.make("completed", topic="other")
        await bench.enqueue(2, topic="other")
        assert await self.listed(bench, topic=TOPIC) == mine[::-1]
        assert await self.listed(bench, topic=TOPIC, status=Status.COMPLETED) == mine[:1]
        assert await self.listed(bench, topic=TOPIC, status=Status.PENDING) == mine[:2:-1]
        assert await self.listed(bench, topic=TOPIC, status=Status.PROCESSING) == [mine[2]]
        assert await self.listed(bench, topic="nobodys") == []

    async def test_by_scope(self, bench: Workbench) -> None:
        ann = await bench.make("completed", scope="user", scope_id="ann")
        ann2 = await bench.enqueue_one(scope="user", scope_id="ann")
        bob = await bench.enqueue_one(scope="user", scope_id="bob")
        acme = await bench.enqueue_one(scope="account", scope_id="ann")
        nobody = await bench.enqueue_one()
        assert await self.listed(bench, scope="user", scope_id="ann") == [ann2, ann]
        assert await self.listed(bench, scope="user") == [bob, ann2, ann]
        assert await self.listed(bench, scope_id="ann") == [acme, ann2, ann]
        assert await self.listed(bench, scope="user", scope_id="ann", status=Status.PENDING) == [ann2]
        assert await self.listed(bench, scope="user", scope_id="ann", status=Status.COMPLETED) == [ann]
        assert await self.listed(bench, scope="user", scope_id="ann", topic="other") == []
        assert nobody in await self.listed(bench)

    async def test_stale_ones(self, bench: Workbench) -> None:
        old = [await bench.make(state) for state in ENDED]
        await bench.pass_time(8 * DAY)
        new = [await bench.make(state) for state in ENDED]
        assert await self.listed(bench, stale=True) == old[::-1]
        assert await self.listed(bench, status=Status.COMPLETED) == [new[0], old[0]]
        assert await self.listed(bench, stale=True, topic="other") == []

    async def test_page_by_page(self, bench: Workbench) -> None:
        ids = await bench.enqueue(7)
        pages = [await bench.store.list(Listing(limit=3, offset=offset)) for offset in (0, 3, 6, 9)]
        assert [[job.id for job in page] for page in pages] == [
            [ids[6], ids[5], ids[4]],
            [ids[3], ids[2], ids[1]],
            [ids[0]],
            [],
        ]

    async def test_pages_run_across_the_places_of_a_status(self, bench: Workbench) -> None:
        ids = []
        for _ in range(4):
            ids += [await bench.enqueue_one(), await bench.enqueue_one(delay_ms=HOUR)]
        pages = [await bench.store.list(Listing(status=Status.PENDING, limit=3, offset=o)) for o in (0, 3, 6)]
        assert [job.id for page in pages for job in page] == ids[::-1]

    async def test_no_limit_no_jobs(self, bench: Workbench) -> None:
        await bench.enqueue(2)
        assert await bench.store.list(Listing(limit=0)) == []

    async def test_jobs_that_ended_since_a_time(self, bench: Workbench) -> None:
        for status in ENDED:
            await bench.make(status)
        await bench.pass_time(2 * HOUR)
        now = await bench.store.now()
        for status in ENDED:
            new = await bench.make(status)
            recent = Listing(status=Status(status), ended_since=now - HOUR)
            assert [job.id for job in await bench.store.list(recent)] == [new]
            assert await bench.store.count(recent) == 1
            assert await bench.store.count(replace(recent, ended_since=now - 3 * HOUR)) == 2

    async def test_a_count_is_capped(self, bench: Workbench) -> None:
        await bench.enqueue(15)
        await bench.enqueue(5, delay_ms=HOUR)
        assert await bench.store.count(Listing()) == 20
        for wanted in (Listing(), Listing(status=Status.PENDING), Listing(topic=TOPIC)):
            assert await bench.store.count(wanted, cap=10) == 11
            assert await bench.store.count(wanted, cap=20) == 20
            assert await bench.store.count(wanted, cap=19) == 20

    async def test_values_are_values(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        for text in ("' OR 1=1 --", "%", "_", "$1", "?1", "ü"):
            assert await self.listed(bench, topic=text, scope=text, scope_id=text) == []


class AttemptsContract(ContractPart):
    """After a job ends, its attempts show which worker ran each one and how it ended."""

    STACK = 'Traceback (most recent call last):\n  File "/app/mail.py", line 7, in send\nOSError: no route'

    async def test_every_event_that_ends_an_attempt_names_its_worker_and_its_error(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1, max_attempts=5)
        endings: list[Outcome] = [
            Failed(self.STACK, "OSError", 1),
            Snoozed(1),
            Released(),
            Failed("ValueError: no", "ValueError"),
        ]
        for number, outcome in enumerate(endings):
            await bench.pass_time(SECOND)
            await bench.promoted()
            await bench.settle(await bench.claim_one(lease=await bench.lease(worker=f"w{number}")), outcome)
        told = await bench.store.events(id) or ()
        assert [event.type for event in told] == ["job:retrying", "job:snoozed", "job:released", "job:failed"]
        assert [event.metadata["worker"] for event in told] == ["w0", "w1", "w2", "w3"]
        errors = [(event.metadata.get("errorType"), event.metadata.get("error")) for event in told]
        assert errors == [("OSError", self.STACK), (None, None), (None, None), ("ValueError", "ValueError: no")]

    async def test_of_a_long_stack_the_history_keeps_the_last_8_kib(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1)
        error = "frame\n" * 5000 + "OSError: the end"
        await bench.settle(await bench.claim_one(), Failed(error, "OSError"))
        (event,) = await bench.store.events(id) or ()
        assert len(event.metadata["error"]) == 8192
        assert event.metadata["error"].endswith("OSError: the end")
        assert (await bench.job(id)).last_error == error

    async def test_a_worker_that_was_lost_or_did_not_stop_is_named_too(self, bench: Workbench) -> None:
        ids = await bench.enqueue(2)
        await bench.claim_one(lease=await bench.lease(MINUTE, worker="lost"))
        await bench.claim_one(lease=await bench.lease(worker="stubborn"))
        await steering.cancel(bench.store, [ids[1]], "")
        await bench.pass_time(2 * MINUTE)
        await bench.reap(MINUTE)
        workers = [(await bench.store.events(id) or ())[-1].metadata["worker"] for id in ids]
        assert workers == ["lost", "stubborn"]

    @pytest.mark.parametrize(
        "outcome", [Completed(), Failed("Boom", "Boom"), Failed("Boom", "Boom", HOUR), Snoozed(HOUR)], ids=str
    )
    async def test_the_last_worker_is_kept(self, bench: Workbench, outcome: Outcome) -> None:
        (id,) = await bench.enqueue(1)
        assert (await bench.job(id)).last_worker is None
        job = await bench.claim_one(lease=await bench.lease(worker="ada"))
        assert (await bench.job(id)).last_worker == "ada"
        await bench.settle(job, outcome)
        seen = await bench.job(id)
        assert (seen.last_worker, seen.locked_by) == ("ada", None)

    async def test_the_last_worker_of_a_job_that_is_cancelled_while_it_waits_again(self, bench: Workbench) -> None:
        id = await bench.make("retrying")
        await steering.cancel(bench.store, [id], "")
        assert (await bench.job(id)).last_worker == "w1"

    async def test_a_job_with_keys_knows_its_last_worker(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1, dedupe_key="d")
        await bench.settle(await bench.claim_one(lease=await bench.lease(worker="bob")), Completed())
        assert (await bench.job(id)).last_worker == "bob"

    async def test_a_heartbeat_is_never_before_the_claim(self, bench: Workbench) -> None:
        lease = await bench.lease(DAY)
        await bench.pass_time(HOUR)
        (id,) = await bench.enqueue(1)
        await bench.claim_one(lease=lease)
        seen = await bench.job(id)
        assert seen.last_heartbeat_at is not None
        assert seen.claimed_at is not None
        assert seen.last_heartbeat_at >= seen.claimed_at

    @pytest.mark.parametrize("state", STATES)
    async def test_every_ended_job_says_when_and_no_other(self, bench: Workbench, state: str) -> None:
        seen = await bench.job(await bench.make(state))
        assert (seen.ended_at is not None) == seen.ended
        if seen.ended:
            ends = [seen.completed_at, seen.failed_at, seen.cancelled_at, seen.ended_at]
            assert seen.ended_at == next(one for one in ends if one)

    async def test_failures_that_look_the_same_are_in_one_group(self, bench: Workbench) -> None:
        errors = [
            ("OSError", self.STACK),
            ("OSError", self.STACK.replace("line 7", "line 8")),
            ("ValueError", "ValueError: job 17 has no 'name'"),
            ("ValueError", "ValueError: job 18 has no 'size'"),
            ("KeyError", "ValueError: job 18 has no 'size'"),
        ]
        groups = []
        for kind, error in errors:
            (id,) = await bench.enqueue(1)
            await bench.settle(await bench.claim_one(), Failed(error, kind))
            groups.append((await bench.job(id)).error_group)
        assert None not in groups
        assert groups[0] == groups[1]
        assert groups[2] == groups[3]
        assert len(set(groups)) == 3
        assert (await bench.job(await bench.make("completed"))).error_group is None


class EventsContract(ContractPart):
    async def test_a_plain_job_has_no_stored_events(self, bench: Workbench) -> None:
        assert await bench.history(await bench.make("completed")) == []

    async def test_no_job_no_history(self, bench: Workbench) -> None:
        for id in [UNKNOWN, *MALFORMED]:
            assert await bench.store.events(id) is None

    async def test_the_whole_story_in_order(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1)
        await bench.settle(await bench.claim_one(), Failed("Boom: one", "Boom", retry_in_ms=1))
        await eventually(bench.promoted)
        await bench.claim_one(lease=await bench.lease(MINUTE))
        await bench.pass_time(HOUR)
        await bench.reap()
        await bench.claim_one()
        await steering.release(bench.store, [id])
        await bench.claim_one()
        await steering.cancel(bench.store, [id], "enough")
        await steering.release(bench.store, [id])
        await steering.requeue(bench.store, [id])
        events = await bench.store.events(id) or ()
        assert [event.type for event in events] == [
            f"job:{name}" for name in "retrying reclaimed released cancelling cancelled requeued".split()
        ]
        assert [(event.from_status, event.to_status) for event in events] == [
            ("processing", "pending"),
            ("processing", "pending"),
            ("processing", "pending"),
            ("processing", "cancelling"),
            ("cancelling", "cancelled"),
            ("cancelled", "pending"),
        ]
        numbers = [event.id or 0 for event in events]
        assert numbers == sorted(numbers)
        assert {event.job_id for event in events} == {id}
        assert [event.metadata.get("startedAt") is not None for event in events] == [True, *[False] * 5]
        assert (await bench.job(id)).events_count == 1 + len(events) + 1  # enqueued, plus the one written start

    @pytest.mark.parametrize("ran_ms", [5, None])
    async def test_what_an_undone_ending_tells_is_counted_once(self, bench: Workbench, ran_ms: int | None) -> None:
        started = 0 if ran_ms is None else 1
        (id,) = await bench.enqueue(1)
        await bench.settle(await bench.claim_one(), Failed("Boom", "Boom"), ran_ms=ran_ms)
        assert (await bench.job(id)).events_count == 1 + started + 1
        await steering.requeue(bench.store, [id])
        assert (await bench.job(id)).events_count == 1 + started + 2
        await bench.settle(await bench.claim_one(), Completed("1"), ran_ms=ran_ms)
        assert (await bench.job(id)).events_count == 1 + started + 2 + started + 1
        await steering.requeue(bench.store, [id], force=True)
        assert (await bench.job(id)).events_count == 1 + started + 2 + started + 1 + 1

    async def test_histories_are_not_mixed(self, bench: Workbench) -> None:
        a, b = await bench.enqueue(2)
        await steering.cancel(bench.store, [a, b], "")
        await steering.requeue(bench.store, [b])
        assert await bench.history(a) == ["cancelled"]
        assert await bench.history(b) == ["cancelled", "requeued"]


class SelectContract(ContractPart):
    async def test_numbers_and_ids_go_on_below_the_last_one(self, bench: Workbench) -> None:
        ids = await bench.enqueue(5)
        ids += await bench.enqueue(2, delay_ms=HOUR)
        listing = Listing(status=Status.PENDING, limit=3)
        seen: list[str] = []
        place: int | None = None
        while found := await bench.store.select(replace(listing, below=place)):
            seen += [id for _, id in found]
            place = found[-1][0]
            await steering.delete(bench.store, [seen[-1]])
        assert seen == list(reversed(ids))


class HintsContract(ContractPart):
    """A hint reaches waiters in the same process immediately. Hints are never guaranteed."""

    async def test_new_work_wakes_waiting_workers(self, bench: Workbench) -> None:
        heard: list[str] = []
        stop = bench.store.subscribe(heard.append)
        await bench.store.insert([new_job()])
        await eventually(lambda: "ready" in heard)
        heard.clear()
        await bench.store.insert([new_job(delay_ms=HOUR)])
        await eventually(lambda: "later" in heard)
        stop()

    async def test_an_ending_and_a_cancel_are_told(self, bench: Workbench) -> None:
        await bench.enqueue(2)
        first, second = await bench.claim(2)
        heard: list[str] = []
        stop = bench.store.subscribe(heard.append)
        await bench.settle(first, Completed())
        await eventually(lambda: "ended" in heard)
        await steering.cancel(bench.store, [second.id], "")
        await eventually(lambda: "cancel" in heard)
        stop()

    async def test_a_local_wake_up_is_not_repeated(self, bench: Workbench) -> None:
        heard: list[str] = []
        stop = bench.store.subscribe(heard.append)
        for _ in range(5):
            await bench.store.insert([new_job()])
        await asyncio.sleep(0.2)  # time in which they would be told again
        assert heard.count("ready") in (5, 6), "PostgreSQL's listener sends one hint when it starts"
        stop()

    async def test_another_store_is_told_too(self, bench: Workbench) -> None:
        other = await bench.another()
        heard: list[str] = []
        stop = other.subscribe(heard.append)
        await bench.store.insert([new_job()])
        await eventually(lambda: "ready" in heard)
        stop()

    async def test_after_the_end_of_the_subscription_nothing_is_heard(self, bench: Workbench) -> None:
        heard: list[str] = []
        still: list[str] = []
        stop = bench.store.subscribe(heard.append)
        stop_too = bench.store.subscribe(still.append)
        await eventually(lambda: True)
        stop()
        stop()
        await asyncio.sleep(0)
        heard.clear()
        await bench.store.insert([new_job()])
        await eventually(lambda: "ready" in still)
        assert heard == []
        stop_too()
