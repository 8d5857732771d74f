"""Seed 003: jobs defined in code with attributes, a context, priorities, capabilities, idempotency, worker settings."""

import asyncio
import dataclasses
import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from pydantic import BaseModel

from tests.acceptance.conftest import Another, Start, StartProgram, Travel
from tests.acceptance.program import runs
from tests.faulty import faulty
from tests.waiting import after_failures, in_status, lease_is, until
from treadle import Context, InvalidInput, Job, Queue, Retry, Status, Worker
from treadle.model.durations import PRIORITIES, duration_ms
from treadle.store.values import Wants


class SendEmailInput(BaseModel):
    user_id: UUID
    template: str


@dataclasses.dataclass
class SendEmailOutput:
    sent: bool


ANN = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


async def run(queue: Queue, start: Start, topic: str, payload: Any = None, **options: Any) -> Job:
    """Enqueue, work, and the job as it ended."""
    job = await queue.enqueue(topic, payload, **options)
    await start(queue)

    async def ended() -> Job | None:
        now = await queue.get(job.id)
        return now if now.ended else None

    found: Job = await until(ended)
    return found


# -- defining jobs -------------------------------------------------------------------------------------------------


async def test_a_job_is_a_function_with_typed_input_and_output(queue: Queue, start: Start) -> None:
    seen: list[SendEmailInput] = []

    @queue.job
    async def send_email(ctx: Context, input: SendEmailInput) -> SendEmailOutput:
        ctx.progress(0, "Starting email send...")
        seen.append(input)
        ctx.progress(100, "Email sent successfully")
        return SendEmailOutput(sent=True)

    job = await send_email.enqueue(SendEmailInput(user_id=ANN, template="welcome"))
    await start(queue)
    assert await job.result(timeout="30s") == SendEmailOutput(sent=True)
    assert seen == [SendEmailInput(user_id=ANN, template="welcome")]


async def test_name_the_topic_is_the_functions_name_unless_overridden(queue: Queue) -> None:
    @queue.job
    async def send_email() -> None: ...

    @queue.job(topic="send_newsletter")
    async def other() -> None: ...

    assert (send_email.topic, other.topic) == ("send_email", "send_newsletter")


async def test_timeout_is_the_longest_execution(queue: Queue, start: Start) -> None:
    @queue.job(timeout="50ms", max_attempts=1)
    async def endless() -> None:
        await asyncio.Event().wait()

    failed = await run(queue, start, "endless")
    assert (failed.status, failed.error_type) == (Status.FAILED, "TimeoutError")
    # The seed's default of one hour gave way to the ten minutes of seed 000.
    assert queue.register("usual", lambda: None).handler.template.timeout == "10m"


async def test_priority_is_the_default_of_the_topic(queue: Queue) -> None:
    queue.register("urgent", lambda: None, priority="high")
    queue.register("usual", lambda: None)
    assert [(await queue.enqueue(topic)).priority for topic in ("urgent", "usual")] == [75, 50]
    assert (await queue.enqueue("urgent", priority="low")).priority == 25


async def test_max_attempts_counts_all_attempts_and_is_three_by_default(queue: Queue, start: Start) -> None:
    tries: Counter[str] = Counter()

    def failing(ctx: Context) -> None:
        tries[ctx.topic] += 1
        raise RuntimeError("boom")

    queue.register("five", failing, max_attempts=5, retry=Retry(backoff=["1ms"]))
    queue.register("usual", failing, retry=Retry(backoff=["1ms"]))
    await run(queue, start, "five")
    await run(queue, start, "usual")
    assert tries == {"five": 5, "usual": 3}


async def test_worker_capability_is_asked_of_the_worker(queue: Queue, another: Another, start: Start) -> None:
    ran: list[str] = []

    async def general(payload: dict[str, Any]) -> None:
        ran.append("general worker")

    async def media(payload: dict[str, Any]) -> None:
        ran.append("media worker")

    queue.register("transcode", general, capability="media")
    await start(queue)
    job = await queue.enqueue("transcode")
    await in_status(queue, await queue.enqueue("transcode", capability="general"), "pending")
    other = await another()
    other.register("transcode", media, capability="media")
    await start(other, capabilities=["general", "media"])

    async def both_done() -> bool:
        return await queue.count(status="completed") == 2

    await until(both_done)
    assert ran == ["media worker", "media worker"]
    assert (await queue.get(job.id)).capability == "media"


async def test_a_job_without_a_capability_goes_to_any_worker(queue: Queue, start: Start) -> None:
    queue.register("mail", lambda: None)
    job = await queue.enqueue("mail")
    await start(queue, capabilities=["media"])
    await in_status(queue, job, "completed")


@pytest.mark.parametrize(
    ("text", "ms"), [("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("1000ms", 1000), ("1d", 86_400_000)]
)
def test_durations_are_written_like_30s_5m_2h_1000ms(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


# -- retries -------------------------------------------------------------------------------------------------------

BACKOFFS = {
    "fixed": [1, 1, 1, 1],
    "linear": [1, 2, 3, 4],
    "exponential": [1, 2, 4, 8],
}


@pytest.mark.parametrize("backoff", BACKOFFS)
def test_backoff_strategies(backoff: Any) -> None:
    assert [Retry(5, backoff=backoff).delay_ms(n) / 1000 for n in (1, 2, 3, 4)] == BACKOFFS[backoff]


def test_max_backoff_caps_the_wait() -> None:
    retry = Retry(50, backoff="exponential", max_delay="5m")
    assert [retry.delay_ms(n) for n in (8, 9, 10, 49)] == [128_000, 256_000, 300_000, 300_000]


async def test_a_failed_job_waits_by_its_own_backoff(queue: Queue, start: Start, travel: Travel) -> None:
    @queue.job(retry=Retry(max_attempts=4, backoff="exponential", max_delay="2s"))
    async def mail() -> None:
        raise RuntimeError("boom")

    await start(queue, lease="10h")
    job = await mail.enqueue()
    for failures, seconds in ((1, 1), (2, 2), (3, 2)):
        waiting = await after_failures(queue, job, failures)
        assert waiting.run_at - waiting.updated_at == timedelta(seconds=seconds)
        await travel(seconds)
    await in_status(queue, job, "failed")


# -- the context ---------------------------------------------------------------------------------------------------


async def test_the_context_has_the_jobs_id_type_attempt_maximum_and_who_asked(queue: Queue, start: Start) -> None:
    seen: list[Any] = []

    @queue.job
    async def mail(ctx: Context) -> None:
        seen.append((ctx.job_id, ctx.topic, ctx.attempt, ctx.max_attempts, ctx.auth))

    done = await run(queue, start, "mail", created_by="ann", scope="user", scope_id="u1", max_attempts=7)
    assert seen == [(done.id, "mail", 1, 7, {"createdBy": "ann", "scope": "user", "scopeId": "u1"})]


async def test_is_retry_and_is_last_attempt(queue: Queue, start: Start) -> None:
    seen: list[tuple[int, bool, bool]] = []

    @queue.job(retry=Retry(3, backoff=["1ms"]))
    async def mail(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.is_retry, ctx.is_last_attempt))
        raise RuntimeError("boom")

    await run(queue, start, "mail")
    assert seen == [(1, False, False), (2, True, False), (3, True, True)]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_progress_is_stored_with_its_message(queue: Queue, start: Start, kind: str) -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def in_loop(ctx: Context) -> None:
        ctx.progress(40, "Processing 2 of 5")
        await gate.wait()

    def in_thread(ctx: Context) -> None:
        ctx.progress(40, "Processing 2 of 5")
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

    queue.register("export", in_loop if kind == "coroutine" else in_thread)
    job = await queue.enqueue("export")
    await start(queue)

    async def seen() -> bool:
        now = await queue.get(job.id)
        return (now.progress, now.progress_message) == (40, "Processing 2 of 5")

    await until(seen)
    gate.set()
    assert (await in_status(queue, job, "completed")).progress == 100


async def test_heartbeat_keeps_a_long_job_from_being_taken_for_stale(
    queue: Queue, another: Another, start: Start
) -> None:
    """Longer than a lease, with another worker that would take the job over."""
    attempts: list[int] = []

    @queue.job
    async def long(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        before = (await queue.get(ctx.job_id)).locked_until
        assert before is not None

        async def kept() -> bool:
            await ctx.heartbeat()
            now = (await queue.get(ctx.job_id)).locked_until
            assert now is not None
            return now - before > timedelta(seconds=1.2)

        await until(kept)
        return "done"

    await start(queue, lease="1s")
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    other = await another()
    other.register("long", lambda: "taken over")
    await start(other, lease="1s")
    assert await job.result(timeout="30s") == "done"
    assert attempts == [1]


async def test_the_log_knows_the_job(queue: Queue, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    @queue.job
    async def mail(ctx: Context) -> None:
        ctx.log.warning("sent")

    with caplog.at_level(logging.WARNING, logger="treadle.jobs"):
        done = await run(queue, start, "mail")
    (record,) = [record for record in caplog.records if record.name == "treadle.jobs.mail"]
    assert (record.message, record.__dict__["job_id"]) == ("sent", done.id)


# -- priorities ----------------------------------------------------------------------------------------------------


def test_priority_levels() -> None:
    assert PRIORITIES == {"critical": 100, "high": 75, "normal": 50, "low": 25, "background": 0}


async def test_jobs_run_by_priority_and_then_by_scheduled_time(queue: Queue, start: Start) -> None:
    order: list[str] = []

    @queue.job
    async def mail(payload: dict[str, str]) -> None:
        order.append(payload["name"])

    past = datetime.now(UTC) - timedelta(hours=1)
    for priority in ("background", "normal", "critical", "low", "high"):
        await queue.enqueue("mail", {"name": f"{priority} now"}, priority=priority)
        await queue.enqueue("mail", {"name": f"{priority} earlier"}, priority=priority, run_at=past)
    await start(queue, slots=1)
    await until(lambda: len(order) == 10)
    assert order == [
        f"{p} {t}" for p in ("critical", "high", "normal", "low", "background") for t in ("earlier", "now")
    ]


# -- life of a job -------------------------------------------------------------------------------------------------


async def test_lifecycle_pending_claimed_running_completed(queue: Queue, start: Start) -> None:
    gate = asyncio.Event()

    @queue.job
    async def mail() -> None:
        await gate.wait()

    job = await mail.enqueue()
    assert (await queue.get(job.id)).status is Status.PENDING
    lease = await queue.store.open_lease("w", 60_000)
    await queue.store.claim(lease, Wants(["mail"], [], 1, 1))
    claimed = await queue.get(job.id)
    assert (claimed.status, claimed.started_at) == (Status.PROCESSING, None)  # "claimed": its handler has not started
    await queue.release(job.id)
    await start(queue)

    async def running() -> bool:
        now = await queue.get(job.id)
        return now.status is Status.PROCESSING and now.started_at is not None

    await until(running)
    gate.set()
    await in_status(queue, job, "completed")


async def test_lifecycle_retry_failed_and_back_from_the_dead_letters(queue: Queue, start: Start) -> None:
    healthy = False

    @queue.job(retry=Retry(2, backoff=["1ms"]))
    async def mail() -> str:
        if not healthy:
            raise RuntimeError("boom")
        return "sent"

    job = await mail.enqueue()
    await start(queue)
    await in_status(queue, job, "failed")
    types = [event.type for event in await queue.events(job.id)]
    assert types.count("job:retrying") == 1
    assert [one.id for one in await queue.list(status="failed")] == [job.id]
    healthy = True
    await queue.requeue(job.id)
    assert await job.result(timeout="30s") == "sent"


# -- dispatching ---------------------------------------------------------------------------------------------------


async def test_dispatch_from_a_mutation_inside_its_transaction(postgres_url: str) -> None:
    async with Queue(postgres_url) as queue, await psycopg.AsyncConnection.connect(postgres_url) as connection:
        await connection.execute("CREATE TABLE users (email text)")
        await connection.execute("INSERT INTO users VALUES ('ann@example.com')")
        job = await queue.enqueue("send_welcome_email", {"template": "welcome"}, connection=connection)
        assert await queue.count() == 0
        await connection.commit()
        assert (await queue.get(job.id)).status is Status.PENDING


async def test_dispatch_from_an_action_answers_before_the_work_is_done(queue: Queue, start: Start) -> None:
    gate = asyncio.Event()

    @queue.job
    async def process_webhook() -> None:
        await gate.wait()

    await start(queue)
    job = await process_webhook.enqueue()
    assert job.status is Status.PENDING
    gate.set()
    await in_status(queue, job, "completed")


async def test_dispatch_from_another_job_for_the_same_person(queue: Queue, start: Start) -> None:
    queue.register("child", lambda: None)

    @queue.job
    async def parent(ctx: Context) -> str:
        job: Job = await ctx.enqueue("child", {"n": 1})
        return job.id

    done = await run(queue, start, "parent", created_by="ann", scope="user", scope_id="u1")
    child = await queue.get(done.result_value)
    assert (child.topic, child.created_by, child.scope, child.scope_id) == ("child", "ann", "user", "u1")


async def test_scheduling_for_now_or_for_later(queue: Queue, start: Start) -> None:
    queue.register("mail", lambda: None)
    now, soon = await queue.enqueue("mail"), await queue.enqueue("mail", delay="200ms")
    later = await queue.enqueue("mail", delay="1h")
    await start(queue)
    for job in (now, soon):
        await in_status(queue, job, "completed")
    assert (await queue.get(later.id)).status is Status.PENDING


async def test_jobs_are_registered_before_they_are_worked_on(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="no handler is registered for send_email"):
        Worker(queue, topics=["send_email"])
    queue.register("send_email", lambda: None)
    Worker(queue, topics=["send_email"])


# -- idempotency ---------------------------------------------------------------------------------------------------


class Payment(BaseModel):
    payment_id: str


async def test_idempotent_by_key_a_job_runs_once_per_payment(queue: Queue, start: Start) -> None:
    captured: Counter[str] = Counter()

    @queue.job(idempotency_key="input.payment_id")
    async def process_payment(input: Payment) -> None:
        captured[input.payment_id] += 1

    await start(queue)
    for payment_id in ("p1", "p2"):
        jobs = await asyncio.gather(*(process_payment.enqueue(Payment(payment_id=payment_id)) for _ in range(10)))
        await in_status(queue, jobs[0], "completed")
        await process_payment.enqueue(Payment(payment_id=payment_id))
    await in_status(queue, await process_payment.enqueue(Payment(payment_id="p3")), "completed")
    assert captured == {"p1": 1, "p2": 1, "p3": 1}


async def test_idempotent_the_existing_jobs_id_is_returned(queue: Queue) -> None:
    queue.register("process_payment", lambda: None, idempotency_key="input.payment_id")
    first = await queue.enqueue("process_payment", {"payment_id": "p1"})
    again = await queue.enqueue("process_payment", {"payment_id": "p1"})
    assert again.id == first.id


# -- workers -------------------------------------------------------------------------------------------------------


async def test_worker_an_id_is_made_unless_one_is_given(queue: Queue, start: Start) -> None:
    queue.register("mail", lambda: None)
    one, two, named = Worker(queue), Worker(queue), await start(queue, name="worker-7")
    assert one.name != two.name
    assert named.name == "worker-7"

    async def there() -> bool:
        return [worker.name for worker in await queue.store.workers()] == ["worker-7"]

    await until(there)


async def test_worker_runs_at_most_as_many_jobs_as_its_slots(queue: Queue, start: Start) -> None:
    running, most, all_slots = 0, 0, asyncio.Barrier(4)

    @queue.job
    async def mail() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await all_slots.wait()
        running -= 1

    jobs = await queue.enqueue_many("mail", [{}] * 20)
    await start(queue, slots=4)
    for job in jobs:
        await in_status(queue, job, "completed")
    assert most == 4


async def test_worker_polls_for_jobs_without_a_hint(queue: Queue, start: Start, travel: Travel) -> None:
    queue.register("mail", lambda: None)
    job = await queue.enqueue("mail", delay="1h")
    await start(queue, lease="10h", poll_interval="100ms")
    await travel(3600)  # no hint comes with it
    await in_status(queue, job, "completed")


async def test_worker_claims_in_batches(queue: Queue, start: Start) -> None:
    brought: list[int] = []
    faulty(queue).after("claim", lambda claim: brought.append(len(claim.jobs)))
    queue.register("mail", noop)
    await queue.enqueue_many("mail", [{}] * 300)
    await start(queue)
    await until(lambda: sum(brought) == 300)
    assert max(brought) >= 10


async def noop() -> None: ...


async def test_worker_stale_threshold_is_its_lease(queue: Queue, start: Start) -> None:
    gate = asyncio.Event()

    @queue.job
    async def mail() -> None:
        await gate.wait()

    await start(queue, lease="7m")
    running = await in_status(queue, await mail.enqueue(), "processing")
    await lease_is(queue, running, timedelta(minutes=7))
    gate.set()


# -- what SKIP LOCKED ensures, and restarts ------------------------------------------------------------------------


async def test_no_two_workers_run_the_same_job(queue: Queue, program: StartProgram, tmp_path: Any) -> None:
    jobs = await queue.enqueue_many("note", [{}] * 150)
    for _ in range(3):
        program()
    await until(lambda: len(runs(tmp_path)) >= 150)

    async def all_done() -> bool:
        return await queue.count(status="completed") == 150

    await until(all_done)
    assert Counter(id for id, _, _ in runs(tmp_path)) == Counter(job.id for job in jobs)


async def test_the_stored_job_has_the_fields_of_the_seed(queue: Queue, start: Start) -> None:
    queue.register("mail", lambda: {"sent": True})
    done = (await run(queue, start, "mail", {"to": "ann"})).as_json()
    fields = (
        "id topic payload result status priority attempt maxAttempts lastError progress progressMessage capability "
        "lockedBy idempotencyKey runAt createdAt claimedAt startedAt completedAt failedAt lastHeartbeatAt"
    ).split()
    assert set(fields) <= set(done)
    assert (done["payload"], done["result"]) == ({"to": "ann"}, {"sent": True})
    times = [done[name] for name in ("createdAt", "claimedAt", "startedAt", "completedAt")]
    assert None not in times
    assert times == sorted(times)
