"""Seed 000, user story 4: a job that failed is tried again, so that a passing fault does no harm."""

from datetime import timedelta

import pytest

from tests.acceptance.conftest import Start, Travel
from tests.waiting import after_failures, in_status
from treadle import Queue, Retry, Status


def smtp_down() -> None:
    raise ConnectionError("SMTP connection failed")


@pytest.fixture
async def failing(queue: Queue, start: Start) -> Queue:
    queue.register("mail_digest", smtp_down)
    await start(queue, lease="10h")
    return queue


async def waits_for(queue: Queue, id: str) -> timedelta:
    """How long after its failure the job is due again; the failure's time is the event's."""
    failure = (await queue.events(id))[-1]
    assert failure.type == "job:retrying"
    return timedelta(milliseconds=failure.metadata["delayMs"])


async def test_1_with_attempts_left_a_failed_job_is_scheduled_again_with_a_growing_wait(
    failing: Queue, travel: Travel
) -> None:
    job = await failing.enqueue("mail_digest", max_retries=5)
    waits = []
    for failures in range(1, 5):
        again = await after_failures(failing, job, failures)
        assert again.status is Status.PENDING
        waits.append(await waits_for(failing, job.id))
        await travel(waits[-1].total_seconds())
    assert waits == [timedelta(minutes=minutes) for minutes in (1, 4, 16, 64)]


async def test_2_after_the_first_failure_it_runs_again_in_one_minute(failing: Queue, travel: Travel) -> None:
    job = await failing.enqueue("mail_digest")
    first = await after_failures(failing, job, 1)
    assert await waits_for(failing, job.id) == timedelta(minutes=1)
    assert first.run_at - first.updated_at == timedelta(minutes=1)
    await travel(60)
    assert (await after_failures(failing, job, 2)).attempt == 2


async def test_3_after_the_second_failure_it_runs_again_in_four_minutes(failing: Queue, travel: Travel) -> None:
    job = await failing.enqueue("mail_digest")
    await after_failures(failing, job, 1)
    await travel(60)
    second = await after_failures(failing, job, 2)
    assert await waits_for(failing, job.id) == timedelta(minutes=4)
    assert second.run_at - second.updated_at == timedelta(minutes=4)


async def test_4_after_the_third_failure_it_is_failed_the_dead_letter(failing: Queue, travel: Travel) -> None:
    job = await failing.enqueue("mail_digest")
    await after_failures(failing, job, 1)
    await travel(60)
    await after_failures(failing, job, 2)
    await travel(240)
    dead = await in_status(failing, job, "failed")
    assert (dead.retries, dead.max_retries) == (3, 3)
    assert [one.id for one in await failing.list(status="failed")] == [job.id]


async def test_5_last_error_keeps_the_stack(failing: Queue) -> None:
    job = await failing.enqueue("mail_digest")
    waiting = await after_failures(failing, job, 1)
    assert waiting.last_error is not None
    assert "Traceback (most recent call last)" in waiting.last_error
    assert "in smtp_down" in waiting.last_error
    assert waiting.last_error.rstrip().endswith("ConnectionError: SMTP connection failed")


async def test_independent_test_a_fault_that_passes_does_no_harm(queue: Queue, start: Start) -> None:
    attempts = []

    @queue.job(retry=Retry(3, backoff=["1ms"]))
    def mail_digest() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            smtp_down()
        return "sent"

    await start(queue)
    job = await mail_digest.enqueue()
    done = await in_status(queue, job, "completed")
    assert (done.attempt, done.retries, done.result_value) == (3, 2, "sent")
