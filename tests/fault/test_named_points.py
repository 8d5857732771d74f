"""kill -9 at each named point: before, during and after the commit that matters, again and again.

The processes that die do no maintenance, so what they leave is looked at first; then one healthy worker recovers
everything. "During" is a random moment of the commit itself.
"""

import contextlib
import random
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.audit import Ledger, audit, in_order, query, read
from tests.fault.crash import MOMENTS, Crash
from tests.fault.crew import Crew
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.fault.zygote import Zygote
from tests.servers import PostgresServer
from tests.waiting import nothing_live, until
from treadle import Queue
from treadle.store.sql.rows import NOBODY

TRIALS = scaled(1, 100)
LEASE_MS, SWEEP_MS = 1_000, 200
A_BUSY_MACHINE_MS = 4_000
LONGEST_COMMIT_US = 4_000


def crashes(point: str, trials: int = TRIALS, seed: int = 1) -> Iterator[Crash]:
    chance = random.Random(f"{point}-{seed}")
    for moment in MOMENTS:
        for _ in range(trials):
            yield Crash(point, moment, 1, chance.randrange(LONGEST_COMMIT_US))


async def die(crew: Crew, command: str, crash: Crash, **options: Any) -> None:
    hand = crew.hire(command, crash=crash, **options)
    assert await hand.gone() == -9, hand.tail()


async def recover(crew: Crew, queue: Queue) -> Ledger:
    """One healthy worker finishes everything that the dead ones left behind."""
    crew.hire(lease=f"{LEASE_MS}ms", reap=f"{SWEEP_MS}ms")

    await until(lambda: nothing_live(queue), 60, crew.tails, every=0.05)
    await crew.dismiss()
    return await audit(queue, crew.journal, lost=crew.lost())


@pytest.fixture
async def queue(crew: Crew) -> Any:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        yield queue


@pytest.mark.parametrize("keyed", [True, False], ids=["with_a_key", "plain"])
async def test_an_enqueue_is_there_wholly_or_not_at_all(crew: Crew, queue: Queue, keyed: bool) -> None:
    """Faults 1 and 2: no row before the commit; after it, a retry with the same key gets the same job."""
    there: set[str] = set()
    for trial, crash in enumerate(crashes("enqueue")):
        key = f"order-{trial}" if keyed else None
        # Without a key a new process tries first with a lane that it does not know yet.
        nth = 2 if crew.url.startswith("postgres") and not keyed else 1
        await die(crew, "enqueue", crash._replace(nth=nth), key=key)
        await in_order(queue)
        new = set((await read(queue)).jobs) - there
        assert len(new) in {"before": (0,), "during": (0, 1), "after": (1,)}[crash.moment]
        if key:
            again = await queue.enqueue("quick", {}, idempotency_key=key)
            assert again.deduplicated == bool(new)
            assert not new or new == {again.id}
            new = {again.id}
        there |= new
    assert not crew.journal.entries("enqueued")
    ledger = await recover(crew, queue)
    assert set(ledger.jobs) == there


async def test_a_worker_killed_around_its_claim_is_recovered(crew: Crew, queue: Queue) -> None:
    """Fault 3: claimed but never begun."""
    claimed: dict[str, bool] = {}
    for crash in crashes("claim"):
        job = await queue.enqueue("quick", {}, max_attempts=2)
        await die(crew, "work", crash, no_maintenance=True, slots=1, lease=f"{LEASE_MS}ms")
        now = await job.refresh()
        assert (
            now.status
            in {"before": ["pending"], "during": ["pending", "processing"], "after": ["processing"]}[crash.moment]
        )
        assert now.attempt == (now.status == "processing")
        claimed[job.id] = now.status == "processing"
        if not claimed[job.id]:
            await queue.cancel(job.id)  # or the next one to die would claim two
    ledger = await recover(crew, queue)
    for id_, was in claimed.items():
        assert ledger.jobs[id_].status == ("completed" if was else "cancelled")
        assert [line.type for line in ledger.events[id_]] == ["job:reclaimed" if was else "job:cancelled"]


@pytest.mark.parametrize("when", ["midway", "effect"])
async def test_a_worker_killed_in_its_handler_is_recovered_within_lease_and_sweep(
    crew: Crew, queue: Queue, when: str
) -> None:
    """Faults 4 and 5: run again, with the same id in hand to tell that the effect has happened."""
    reaper = crew.hire(lease=f"{LEASE_MS}ms", reap=f"{SWEEP_MS}ms", topics="quick")
    died_at_ms: dict[str, float] = {}
    for _ in range(3 * TRIALS):
        job = await queue.enqueue("deadly", {"when": when})
        hand = crew.hire(no_maintenance=True, slots=1, lease=f"{LEASE_MS}ms", topics="deadly")
        assert await hand.gone() == -9, hand.tail()
        died_at_ms[job.id] = crew.journal.by_job("start")[job.id][0].at_ns / 1e6
    await until(lambda: _all_reclaimed(queue, died_at_ms))
    reaper.kill()
    ledger = await recover(crew, queue)
    effects = crew.journal.by_job("effect")
    for id_, died in died_at_ms.items():
        # The next one to die may have been at it too, and not yet told that it was done.
        event, *more = ledger.events[id_]
        assert {line.type for line in [event, *more]} == {"job:reclaimed"}
        assert event.at_ms - died <= LEASE_MS + SWEEP_MS + A_BUSY_MACHINE_MS
        assert len(effects[id_]) >= (2 if when == "effect" else 1)


async def _all_reclaimed(queue: Queue, ids: Collection[str]) -> bool:
    return (await read(queue)).count("job:reclaimed") >= len(ids)


@pytest.mark.parametrize("topic", ["quick", "doomed", "gated"])
async def test_an_ending_is_written_wholly_or_not_at_all(crew: Crew, queue: Queue, topic: str) -> None:
    """Fault 6: outcome, result, tally, place, gate and event commit together."""
    states: dict[str, str] = {}
    for crash in crashes("settle"):
        first = await queue.enqueue(topic, {"key": str(crash)}, max_attempts=2)
        await die(crew, "work", crash, no_maintenance=True, slots=1, lease=f"{LEASE_MS}ms", topics=topic)
        await in_order(queue)
        now = await first.refresh()
        ended = "pending" if topic == "doomed" else "completed"
        assert now.status in {"before": ["processing"], "during": ["processing", ended], "after": [ended]}[crash.moment]
        assert (now.last_error is None) == (now.status != "pending")
        assert (now.result_value is not None) == (topic == "quick" and now.status == "completed")
        states[first.id] = now.status
        if now.status == "pending":
            await queue.cancel(first.id)  # or the next one to die would run two
    ledger = await recover(crew, queue)
    for id_, status in states.items():
        reclaimed = [line for line in ledger.events[id_] if line.type == "job:reclaimed"]
        assert len(reclaimed) == (status == "processing")


async def test_a_worker_killed_in_its_heartbeat_harms_no_other(crew: Crew, queue: Queue) -> None:
    """Fault 8: the jobs of others are untouched."""
    calm = crew.hire(lease="5s", topics="slow", slots=20)
    slow = await queue.enqueue_many("slow", [{"ms": 3_000}] * 5, max_attempts=2)
    await until(lambda: len(crew.journal.entries("start")) == len(slow))
    # One that was taken back is claimed by the next to die, and the next: the oldest comes first.
    own = await queue.enqueue_many("threaded", [{"ms": 1_000}] * 3, max_attempts=1_000)
    for crash in crashes("heartbeat", scaled(1, 100)):
        third = crash._replace(nth=3)  # the first comes before the claim
        await die(crew, "work", third, no_maintenance=True, slots=1, lease="450ms", topics="threaded")
    begun = crew.journal.by_job("start")
    ledger = await recover(crew, queue)
    assert calm.name not in crew.lost()
    for job in slow:
        assert ledger.jobs[job.id].attempt == 1
        assert not ledger.events[job.id]
    for job in own:
        assert ledger.jobs[job.id].status == "completed"
        assert [line.type for line in ledger.events[job.id]] == ["job:reclaimed"] * len(begun[job.id])


async def test_a_batch_of_retention_is_deleted_wholly_or_not_at_all(crew: Crew, queue: Queue) -> None:
    """Fault 9."""
    batch = 4
    for crash in crashes("prune"):
        jobs = await queue.enqueue_many("gated", [{"key": n} for n in range(2 * batch)])
        for number, job in enumerate(jobs):
            await queue.enqueue("quick", {}, idempotency_key=f"{job.id}-{number}")
            await queue.cancel(job.id, "with an event")
        before = len((await read(queue)).with_status("cancelled"))
        await die(crew, "prune", crash, limit=batch)
        left = len((await read(queue)).with_status("cancelled"))
        assert before - left in {"before": (0,), "during": (0, batch), "after": (batch,)}[crash.moment]
        await in_order(queue)
        await _nothing_hangs_loose(queue)
    ledger = await recover(crew, queue)
    assert (await queue.stats()).cancelled == len(ledger.with_status("cancelled"))


async def _nothing_hangs_loose(queue: Queue) -> None:
    """Every row belongs to an existing job."""
    for table in ("events", "keys", "outcomes", "notes", "members", "deadlines"):
        loose = (
            f"SELECT count(*) FROM {{{table}}} x "
            f"WHERE x.n <> {NOBODY} AND NOT EXISTS (SELECT 1 FROM {{jobs}} j WHERE j.n = x.n)"
        )
        assert (await query(queue, loose))[0][0] == 0, table


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_migration_that_was_killed_is_finished_or_rolled_back_by_the_next_start(
    store: str, tmp_path: Path, zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    """Fault 11."""
    for number, crash in enumerate(crashes("migrate", scaled(1, 100))):
        with contextlib.ExitStack() as stack:
            folder = tmp_path / str(number)
            folder.mkdir()
            url = f"sqlite:///{folder / 'jobs.db'}"
            if store == "postgres":
                server: PostgresServer = request.getfixturevalue("postgres_server")
                url = server.url(stack.enter_context(server.database()))
            crew = Crew(url, folder, zygote)
            await die(crew, "migrate", crash)
            async with make_queue(url, Pen(crew.journal.path, "client")) as queue:
                job = await queue.enqueue("quick")
                ledger = await recover(crew, queue)
                assert ledger.with_status("completed") == {job.id}


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_finished_step_never_runs_again(crew: Crew, queue: Queue, nth: int) -> None:
    """A worker dies around the commit of each step of a flow; the next one goes on where it stopped."""
    names = ("first", "second", "third")
    stored: dict[str, int] = {}
    for crash in crashes("step", seed=nth):
        job = await queue.enqueue("three_steps", {})
        await die(crew, "work", crash._replace(nth=nth), no_maintenance=True, slots=1, topics="three_steps")
        steps = (await job.refresh()).steps
        done = sum(step["status"] == "completed" for step in steps)
        assert done in {"before": (nth - 1,), "during": (nth - 1, nth), "after": (nth,)}[crash.moment]
        stored[job.id] = done
    ran = {name: crew.journal.by_job(name) for name in names}
    before = {(id_, name): len(ran[name].get(id_, [])) for id_ in stored for name in names}
    await recover(crew, queue)
    for id_, done in stored.items():
        job = await queue.get(id_)
        assert (job.status, job.result_value) == ("completed", 3)
        again = {name: len(crew.journal.by_job(name).get(id_, [])) - before[id_, name] for name in names}
        assert again == {name: int(place >= done) for place, name in enumerate(names)}
        events = [event.message for event in await queue.events(id_) if event.type == "job:step:completed"]
        assert sorted(events) == sorted(names)
