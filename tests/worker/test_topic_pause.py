"""429 from an API: one handler pauses its whole topic, and no job loses an attempt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import ended, until
from tests.worker import process_handlers as handlers
from tests.worker.conftest import Start
from treadle import Context, Job, Queue, Retry, RetryAfter

SLOTS = 4
KINDS = [(handlers.limited_async, False), (handlers.limited, False), (handlers.limited, True)]


async def all_put_back(queue: Queue) -> bool:
    stats = await queue.stats()
    paused = [one.paused_until is not None for one in await queue.topics() if one.topic == "api"]
    return stats.processing == 0 and paused == [True]


@pytest.mark.parametrize(("handler", "process"), KINDS, ids=["coroutine", "thread", "process"])
async def test_one_429_among_100_jobs_costs_one_call_a_slot_and_no_attempt(
    queue: Queue, start: Start, tmp_path: Path, handler: Callable[..., Any], process: bool
) -> None:
    calls, gate = tmp_path / "calls", tmp_path / "gate"
    queue.register("api", handler, process=process)
    jobs = await queue.enqueue_many("api", [{"calls": str(calls), "gate": str(gate)}] * 100)
    await start(queue, slots=SLOTS)
    await until(calls.exists)
    await until(lambda: all_put_back(queue))
    called = len(calls.read_text())
    assert 1 <= called <= SLOTS
    assert {(job.status, job.attempt) for job in [await queue.get(job.id) for job in jobs]} == {("pending", 0)}
    await its_reasons(queue, jobs)
    gate.touch()
    await queue.resume("api")  # an operator need not wait, and no worker remembers its own pause
    await until(lambda: enough_completed(queue, 100 - called))
    assert len(calls.read_text()) == 100, "those that heard 429 wait for their own hour"


async def enough_completed(queue: Queue, count: int) -> bool:
    return (await queue.stats()).completed == count


async def its_reasons(queue: Queue, jobs: list[Job]) -> None:
    """Jobs that called the API wait for their time, all jobs wait for the topic, and the history says why."""
    told = {job.id: await queue.why(job.id) for job in jobs}
    assert all(any("topic api is paused until " in reason for reason in reasons) for reasons in told.values())
    snoozed = [job for job in jobs if any(reason.startswith("it is due at ") for reason in told[job.id])]
    assert snoozed
    for job in snoozed:
        messages = [event.message for event in await queue.events(job.id) if event.type == "job:snoozed"]
        assert messages == ["429 Too Many Requests; its topic is paused for 1h"]


async def test_a_pause_ends_by_itself_and_other_topics_go_on(queue: Queue, start: Start) -> None:
    heard: list[str] = []

    @queue.job
    async def api(n: int) -> int:
        heard.append(f"api {n}")
        if len(heard) == 1:
            raise RetryAfter("2s", topic=True)
        return n

    @queue.job
    async def mail() -> None:
        heard.append("mail")

    first, second = await api.enqueue(1), await api.enqueue(2)
    await start(queue, slots=1, poll_interval="50ms")
    await until(lambda: all_put_back(queue))
    assert (await ended(queue, await mail.enqueue())).status == "completed"
    assert [(await ended(queue, job)).attempt for job in (first, second)] == [1, 1]
    assert heard.index("mail") < len(heard) - 2


@pytest.mark.parametrize("declared", [True, False])
async def test_a_step_pauses_the_topic_and_costs_no_try(queue: Queue, start: Start, declared: bool) -> None:
    """In a flow and in a handler; the step before it is kept."""
    heard: list[str] = []

    def before() -> None:
        heard.append("before")

    def call() -> str:
        heard.append("call")
        if heard.count("call") == 1:
            raise RetryAfter("2s", "429", topic=True)
        return "done"

    if declared:
        flow = queue.flow("api", max_attempts=1)
        flow.step(name="before")(lambda ctx, payload: before())
        flow.step(name="call", retry=Retry(2))(lambda ctx, payload: call())
    else:

        @queue.job(max_attempts=1)
        def api(ctx: Context) -> str:
            ctx.step("before", before)
            return str(ctx.step("call", call, retry=Retry(2)))

    job = await queue.enqueue("api", {})
    await start(queue, poll_interval="50ms")
    await until(lambda: all_put_back(queue))
    seen = await queue.get(job.id)
    assert (seen.attempt, [(step["status"], step["attempt"]) for step in seen.steps]) == (
        0,
        [("completed", 1), ("pending", 0)],
    )
    assert await job.result("30s") == "done"
    assert heard == ["before", "call", "call"]
    assert (await queue.get(job.id)).steps[1]["attempt"] == 1


@pytest.mark.parametrize("delay", ["soon", -1])
async def test_a_delay_that_is_none_fails_the_job(queue: Queue, start: Start, delay: Any) -> None:
    @queue.job
    async def api() -> None:
        raise RetryAfter(delay, topic=True)

    await start(queue)
    job = await ended(queue, await api.enqueue())
    assert (job.status, job.error_type) == ("failed", "InvalidInput")
    assert [one.paused_until for one in await queue.topics()] == [None]
