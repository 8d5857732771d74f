"""A rate limit counts starts of the handler, not claims."""

import asyncio
import time
from typing import Any

from tests.faulty import Around, FaultyQueue
from tests.waiting import ended, event_types, until
from tests.worker.conftest import Start
from treadle import Queue, Rate


async def test_a_job_that_cannot_start_in_time_is_given_back(queue: FaultyQueue, start: Start) -> None:
    """The loop is blocked between the claim's answer and the handler: the job starts in a later window."""
    starts: list[float] = []
    held_up = False

    async def slow(claim: Around, *arguments: Any) -> Any:
        nonlocal held_up
        answer = await claim(*arguments)
        if answer.jobs and not held_up:
            held_up = True
            await asyncio.sleep(0.3)  # past its window
        return answer

    queue.faults.around("claim", slow)

    @queue.job(topic="mail", rate=Rate(1, "100ms"))
    async def mail() -> None:
        starts.append(time.monotonic())

    await queue.save_templates()
    job = await mail.enqueue()
    await start(queue)
    await ended(queue, job)
    assert "released" in [event.removeprefix("job:") for event in await event_types(queue, job)]
    assert len(starts) == 1


async def test_no_more_handlers_start_in_a_window_than_the_rate_allows(queue: Queue, start: Start) -> None:
    starts: list[float] = []

    @queue.job(topic="mail", rate=Rate(2, "300ms"))
    async def mail() -> None:
        starts.append(time.monotonic())

    await queue.save_templates()
    await mail.enqueue_many([{}] * 8)
    await start(queue, slots=4)
    await start(queue, slots=4)
    await until(lambda: len(starts) == 8)
    assert all(later - earlier >= 0.3 for earlier, later in zip(starts, starts[2:], strict=False))
