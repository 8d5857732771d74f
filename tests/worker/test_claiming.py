"""The claim loop: how much it asks for, when it asks, and what it does when the answer is lost."""

import asyncio
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.faulty import Around, FaultyQueue
from tests.waiting import ended, event_types, give_way, in_status, until
from tests.worker.conftest import Start
from treadle import Context, Job, Queue, StoreUnavailable
from treadle.store.values import Wants
from treadle.worker import claim_budget

pytestmark = pytest.mark.every_store


class Asked(NamedTuple):
    limit: int
    free: int
    came: int


@pytest.fixture
async def asked(queue: FaultyQueue) -> list[Asked]:
    """Every claim that workers make here."""
    claims: list[Asked] = []

    async def claim(call: Around, lease: int, wants: Wants) -> Any:
        answer = await call(lease, wants)
        claims.append(Asked(wants.limit, wants.free, len(answer.jobs)))
        return answer

    queue.faults.around("claim", claim)
    return claims


@pytest.fixture
async def no_hints(queue: FaultyQueue) -> None:
    queue.faults.mute()


async def test_long_jobs_are_only_claimed_into_free_slots(queue: Queue, start: Start, asked: list[Asked]) -> None:
    running, let_go = asyncio.Semaphore(0), asyncio.Event()

    @queue.job
    async def long() -> None:
        running.release()
        await let_go.wait()

    jobs = await long.enqueue_many([{}] * 10)
    worker = await start(queue, slots=3)
    for _ in range(3):
        await asyncio.wait_for(running.acquire(), 60)
    assert worker.metrics.claimed == 3
    assert [(await job.refresh()).status for job in jobs[3:]] == ["pending"] * 7
    let_go.set()
    await until(lambda: worker.metrics.completed == 10)


async def test_quick_jobs_are_claimed_ahead_in_growing_batches(queue: Queue, start: Start, asked: list[Asked]) -> None:
    @queue.job
    async def quick() -> None: ...

    await quick.enqueue_many([{}] * 5000)
    worker = await start(queue, slots=10)
    await until(lambda: worker.metrics.completed == 5000)
    assert asked[0] == Asked(10, 10, 10)
    assert max(one.came for one in asked) >= 100
    assert max(one.limit for one in asked) <= 1000


async def test_a_job_on_its_last_attempt_is_never_claimed_ahead(queue: Queue, start: Start, asked: list[Asked]) -> None:
    running, most = 0, 0

    @queue.job(max_attempts=1)
    async def last_chance() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await give_way()
        running -= 1

    await last_chance.enqueue_many([{}] * 300)
    worker = await start(queue, slots=5, poll_interval="60s")
    await until(lambda: worker.metrics.completed == 300)
    assert all(one.came <= one.free for one in asked)
    assert most <= 5


async def test_a_job_that_waited_too_long_in_the_worker_is_given_back_with_its_attempt(
    queue: Queue, start: Start
) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def quick() -> None: ...

    @queue.job
    async def long() -> None:
        await let_go.wait()

    worker = await start(queue, slots=1)
    await quick.enqueue_many([{}] * 500)
    await until(lambda: worker.metrics.completed == 500)
    _, second, *_ = await long.enqueue_many([{}] * 4)
    await in_status(queue, second, "processing")
    second = await in_status(queue, second, "pending")
    assert second.attempt == 0
    assert "job:released" in await event_types(queue, second)
    let_go.set()
    await until(lambda: worker.metrics.completed == 504)


async def test_an_idle_worker_picks_up_a_new_job_immediately(queue: Queue, start: Start) -> None:
    @queue.job
    async def quick() -> float:
        return time.monotonic()

    await start(queue, poll_interval="60s")
    await (await quick.enqueue()).result("60s")
    await (await quick.enqueue()).result("60s")


@pytest.mark.usefixtures("no_hints")
async def test_a_poll_finds_what_a_hint_missed(queue: Queue, start: Start) -> None:
    @queue.job
    async def quick() -> None: ...

    await start(queue, poll_interval="100ms")
    await (await quick.enqueue()).result("60s")
    await (await quick.enqueue()).result("60s")


async def test_a_delayed_job_starts_when_it_is_due(queue: Queue, start: Start) -> None:
    order: list[str] = []

    @queue.job
    async def quick(payload: dict[str, str]) -> None:
        order.append(payload["delay"])

    await start(queue, poll_interval="60s")
    await (await quick.enqueue({"delay": "none"})).result("60s")
    jobs = [await quick.options(delay=delay).enqueue({"delay": delay}) for delay in ("600ms", "300ms")]
    for job in jobs:
        await job.result("60s")
        started_at = (await job.refresh()).started_at
        assert started_at
        assert started_at >= job.run_at
    assert order == ["none", "300ms", "600ms"]


async def test_a_job_past_its_deadline_expires_and_the_next_one_runs(queue: Queue, start: Start) -> None:
    @queue.job
    async def quick() -> str:
        return "ran"

    stale = await quick.options(expires="1ms").enqueue()
    fresh = await quick.enqueue()
    await until(lambda: _is_past(queue, stale))
    await start(queue, poll_interval="60s", maintenance=False)
    assert await fresh.result("60s") == "ran"
    job = await ended(queue, stale)
    assert (job.status, job.attempt) == ("expired", 0)


async def _is_past(queue: Queue, job: Job) -> bool:
    now = await queue.store.now()
    return bool(job.expires_at and now > job.expires_at.timestamp() * 1000 + 1)


@pytest.mark.parametrize("after_commit", [False, True])
async def test_a_claim_with_a_lost_answer_is_given_back_before_the_next(
    queue: FaultyQueue, start: Start, after_commit: bool
) -> None:

    @queue.job
    async def quick(ctx: Context) -> int:
        return ctx.attempt

    jobs = await quick.enqueue_many([{}] * 5)
    lost = ConnectionResetError("the answer was lost")
    failures = queue.faults.fail("claim", 2, lost, lose_answer=after_commit)
    await start(queue)
    assert [await job.result("60s") for job in jobs] == [1] * 5
    assert failures.left == 0


async def test_jobs_in_hand_survive_the_giving_back_of_unknown_ones(queue: FaultyQueue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def long(ctx: Context) -> int:
        await let_go.wait()
        return ctx.attempt

    worker = await start(queue, slots=3)
    first = await long.enqueue()
    await in_status(queue, first, "processing")
    gave_back = asyncio.Event()
    queue.faults.fail("claim", times=1, lose_answer=True)
    queue.faults.after("release_unknown", lambda count: gave_back.set())
    second = await long.enqueue()
    await asyncio.wait_for(gave_back.wait(), 60)
    let_go.set()
    assert [await job.result("60s") for job in (first, second)] == [1, 1]
    assert worker.metrics.lease_losses == 0


async def test_an_error_while_claiming_does_not_end_the_worker(queue: FaultyQueue, start: Start) -> None:
    bug = ZeroDivisionError("a bug")
    times = {"advance": 3, "claim": 3, "release_unknown": 3, "elect": 1}
    failures = [queue.faults.fail(verb, count, bug) for verb, count in times.items()]

    @queue.job
    async def quick() -> str:
        return "ran"

    await start(queue)
    assert await (await quick.enqueue()).result("60s") == "ran"
    assert all(failing.left == 0 for failing in failures)


async def test_a_claim_that_fails_while_the_worker_stops_does_not_keep_it(queue: FaultyQueue, start: Start) -> None:
    @queue.job
    async def quick() -> str:
        return "ran"

    worker = await start(queue)
    await (await quick.enqueue()).result("60s")

    async def claim(call: Around, *arguments: Any) -> Any:
        worker.stop()
        await call(*arguments)
        raise StoreUnavailable("the answer was lost")

    queue.faults.around("claim", claim)
    queue.faults.fail("release_unknown")
    job = await quick.enqueue()
    await asyncio.wait_for(worker.done, 60)
    queue.faults.heal()
    await start(queue, reap_interval="50ms")
    assert await job.result("60s") == "ran"


async def test_two_workers_share_the_jobs_and_run_each_once(queue: Queue, start: Start) -> None:
    ran: list[int] = []

    @queue.job
    async def quick(payload: dict[str, Any]) -> None:
        ran.append(payload["i"])
        await give_way()

    workers = [await start(queue), await start(queue)]
    await until(lambda: all(worker.metrics.slots for worker in workers))
    await quick.enqueue_many([{"i": i} for i in range(3000)])
    await until(lambda: sum(worker.metrics.completed for worker in workers) == 3000)
    assert sorted(ran) == list(range(3000))
    assert all(worker.metrics.completed for worker in workers)


async def test_an_idle_worker_asks_the_store_at_most_twice_a_second(queue: FaultyQueue, start: Start) -> None:
    @queue.job
    async def quick() -> None: ...

    await start(queue)
    await (await quick.enqueue()).result("60s")
    await asyncio.sleep(1)  # until it has nothing more to tidy up
    for store in queue.stores:
        store.calls.clear()
    begun = time.monotonic()
    await asyncio.sleep(10)  # idle
    seconds = time.monotonic() - begun
    calls = sum((store.calls for store in queue.stores), Counter[str]())
    assert calls.total() <= 2 * seconds, calls


async def test_a_worker_without_handlers_claims_nothing_but_moves_delayed_jobs_to_the_queue(
    queue: Queue, start: Start, asked: list[Asked]
) -> None:
    """So that workers in other languages, which claim over HTTP, find them."""
    job = await queue.enqueue("elsewhere", delay="100ms")
    await start(queue)
    lease = await queue.store.open_lease("elsewhere", 60_000)

    async def claimed() -> bool:
        return bool((await queue.store.claim(lease, Wants(["elsewhere"], [], 1, 1))).jobs)

    await until(claimed)
    assert (await job.refresh()).status == "processing"
    assert all(one.limit == 1 for one in asked)


def test_two_looks_at_the_same_instant_of_a_coarse_clock_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = SimpleNamespace(inbox=[], free=3, finished=0, low_water=0)
    monkeypatch.setattr(claim_budget, "time", SimpleNamespace(monotonic=lambda: 7.0))
    hunger = claim_budget.ClaimBudget(executor)  # type: ignore[arg-type]
    executor.finished = 100
    assert hunger.limit(unwritten=0) == 3
    monkeypatch.setattr(claim_budget, "time", SimpleNamespace(monotonic=lambda: 7.1))
    assert hunger.limit(unwritten=0) > 3
