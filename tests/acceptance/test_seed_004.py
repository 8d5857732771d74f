"""Seed 004: phases (here steps), their events and their places in the life of a job. On each store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Start, StartProgram, Travel
from tests.acceptance.program import GATE, PHASES, RUNS, add_pipeline
from tests.http.api import Api, opened
from tests.queue.hands import Hands
from tests.waiting import ended, for_ever, in_status, until
from treadle import Context, Fail, Job, Queue, Retry

AGAIN = Retry(3, backoff="fixed", delay="1ms")
ORDER = ["pending", "processing", "completed"]


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with opened(url) as api:
        yield api


def steps_of(job: Any) -> list[tuple[str, str]]:
    return [(step["id"], step["status"]) for step in job.steps]


async def job_where(queue: Queue, id: str, message: str) -> Job:
    """The job once this message is stored."""

    async def look() -> Job | None:
        job = await queue.get(id)
        return job if job.progress_message == message else None

    found: Job = await until(look)
    return found


# -- phases ----------------------------------------------------------------------------------------------------------


async def test_phases_run_in_order_and_progress_follows_the_formula(queue: Queue, start: Start) -> None:
    """((phaseIndex + phaseProgress / 100) / totalPhases) x 100, for download, process and upload."""
    flow = queue.flow("pipeline")
    ran: list[str] = []
    seen: list[tuple[str | None, int]] = []

    async def report(ctx: Context, name: str) -> None:
        ran.append(name)
        for percent in (0, 50):
            await ctx.progress(percent, f"{name} {percent}")
            job = await job_where(queue, ctx.job_id, f"{name} {percent}")
            seen.append((job.step, job.progress))

    @flow.step
    async def download(ctx: Context, payload: dict[str, Any]) -> None:
        await report(ctx, "download")

    @flow.step
    async def process(ctx: Context, payload: dict[str, Any]) -> None:
        await report(ctx, "process")

    @flow.step
    async def upload(ctx: Context, payload: dict[str, Any]) -> str:
        await report(ctx, "upload")
        return "upload"

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("60s") == "upload"
    assert ran == list(PHASES)
    assert seen == [("download", 0), ("download", 16), ("process", 33), ("process", 50), ("upload", 66), ("upload", 83)]
    assert (await job.refresh()).progress == 100


async def test_a_job_of_one_phase_and_one_of_none_look_alike(queue: Queue, start: Start) -> None:
    flow = queue.flow("single")

    @flow.step
    async def run(ctx: Context, payload: dict[str, Any]) -> int:
        return 1

    @queue.job
    async def plain(payload: dict[str, Any]) -> int:
        return 1

    jobs = await flow.enqueue({}), await plain.enqueue({})
    await start(queue)
    for job, steps in zip(jobs, ([("run", "completed")], []), strict=True):
        assert await job.result("60s") == 1
        seen = await job.refresh()
        assert (seen.status, seen.progress, steps_of(seen)) == ("completed", 100, steps)


async def test_a_phase_has_every_field_of_the_seed(api: Api, start: Start) -> None:
    flow = api.queue.flow("pipeline", max_attempts=1)

    @flow.step
    async def download(ctx: Context, payload: dict[str, Any]) -> str:
        await ctx.progress(70, "7 of 10 files")
        return "files"

    @flow.step
    async def process(ctx: Context, payload: dict[str, Any]) -> None:
        raise ValueError("a broken file")

    job = await flow.enqueue({})
    await start(api.queue)
    await ended(api.queue, job)
    found = (await api.get(f"/api/jobs/{job.id}")).json()
    done, failed = found["steps"]
    assert (done["id"], done["status"], done["progress"], done["message"]) == (
        "download",
        "completed",
        100,
        "7 of 10 files",
    )
    assert (done["error"], done["result"]) == (None, "files")
    assert found["createdAt"] <= done["startedAt"] <= done["completedAt"] <= found["endedAt"]
    assert (failed["id"], failed["status"], failed["result"]) == ("process", "failed", None)
    assert "a broken file" in failed["error"]
    assert found["step"] == "process", "the last one that failed"


async def test_a_partial_retry_keeps_the_results_of_finished_phases(queue: Queue, start: Start) -> None:
    flow = queue.flow("pipeline", retry=AGAIN)
    ran: list[str] = []

    @flow.step
    async def download(ctx: Context, payload: dict[str, Any]) -> list[str]:
        ran.append("download")
        return ["a", "b"]

    @flow.step
    async def process(ctx: Context, payload: dict[str, Any]) -> int:
        ran.append("process")
        if ctx.attempt == 1:
            raise ConnectionError("try again")
        return len(ctx.results["download"])

    @flow.step
    async def upload(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
        ran.append("upload")
        return {name: ctx.results[name] for name in ("download", "process")}

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("60s") == {"download": ["a", "b"], "process": 2}
    assert ran == ["download", "process", "process", "upload"]


async def test_a_manual_retry_restarts_only_unfinished_phases(queue: Queue, start: Start) -> None:
    flow = queue.flow("pipeline", max_attempts=1)
    ran: list[str] = []
    broken = True

    @flow.step
    async def download(ctx: Context, payload: dict[str, Any]) -> str:
        ran.append("download")
        return "files"

    @flow.step
    async def process(ctx: Context, payload: dict[str, Any]) -> str:
        ran.append("process")
        if broken:
            raise Fail("a broken file")
        return ctx.results["download"]

    job = await flow.enqueue({})
    await start(queue)
    assert (await ended(queue, job)).status == "failed"
    broken = False
    back = await queue.requeue(job.id)
    assert steps_of(back) == [("download", "completed"), ("process", "pending")]
    assert await back.result("60s") == "files"
    assert ran == ["download", "process", "process"]


async def test_an_interrupted_phase_is_known_after_a_restart(
    queue: Queue, program: StartProgram, travel: Travel, tmp_path: Path
) -> None:
    """Its process is killed in the second phase. What the first one did is kept, and the job says where it was."""
    add_pipeline(queue, tmp_path)
    job = await queue.enqueue("pipeline", {})
    first = program(name="first")
    under_way = [("download", "completed"), ("process", "processing"), ("upload", "pending")]

    async def in_the_second() -> bool:
        return steps_of(await job.refresh()) == under_way

    await until(in_the_second)
    first.kill9()
    seen = await job.refresh()
    assert (seen.status, seen.step, steps_of(seen)) == ("processing", "process", under_way)
    await travel(301)
    assert await queue.reclaim() == 1
    seen = await job.refresh()
    assert (seen.status, seen.step, steps_of(seen)[:2]) == (
        "pending",
        "process",
        [("download", "completed"), ("process", "failed")],
    )
    assert seen.steps[1]["error"] == "worker lost"
    (tmp_path / GATE).touch()
    program(name="second")
    assert await job.result("60s") == "download, process, upload"
    assert (tmp_path / RUNS).read_text().split() == ["download", "process", "process", "upload"]


# -- events ----------------------------------------------------------------------------------------------------------


async def test_state_is_stored_before_its_event_is_sent(queue: Queue, start: Start) -> None:
    """A listener that looks at the job sees the state of the event or a later one, never an earlier one."""
    flow = queue.flow("pipeline")
    for name in PHASES:
        flow.step(name=name)(lambda ctx, payload: None)
    job = await flow.enqueue({})
    heard: list[str] = []
    stream = queue.stream(snapshot=True)
    assert (await anext(stream))["event"] == "snapshot"
    await start(queue)
    completed = 0
    async for event in stream:
        now = await queue.get(job.id)
        heard.append(event["event"])
        assert ORDER.index(now.status) >= ORDER.index(event["job"]["status"]), event["event"]
        completed += event["event"] == "job:step:completed"
        assert [status for _, status in steps_of(now)].count("completed") >= completed
        if event["event"] == "job:completed":
            break
    assert [name for name in heard if name != "job:progress"] == [
        "job:started",
        *["job:step:completed"] * len(PHASES),
        "job:completed",
    ]


async def test_progress_is_an_event(queue: Queue, start: Start) -> None:
    go = asyncio.Event()

    @queue.job
    async def export(ctx: Context) -> None:
        await ctx.progress(40, "2 of 5")
        await go.wait()

    stream = queue.stream(snapshot=True)
    await anext(stream)
    job = await export.enqueue()
    await start(queue)
    async with asyncio.timeout(60):
        async for event in stream:
            if event["event"] == "job:progress":
                break
    shown = event["job"]
    assert (shown["id"], shown["status"], shown["progress"]) == (job.id, "processing", 40)
    assert shown["progressMessage"] == "2 of 5"
    go.set()


async def test_the_events_of_a_job_that_is_retried_fails_is_cancelled_and_deleted(queue: Queue) -> None:
    hands = Hands(queue)
    stream = queue.stream(snapshot=True)
    await anext(stream)
    told: list[str] = []

    async def hear(count: int) -> dict[str, Any]:
        for _ in range(count):
            event = await asyncio.wait_for(anext(stream), 60)
            told.append(event["event"].removeprefix("job:"))
        return event

    job = await queue.enqueue("mail")
    await hands.fail(await hands.claim_one("mail"), retry_in_ms=0)
    await hear(3)
    await until(hands.promoted)
    await hands.fail(await hands.claim_one("mail"))
    await hear(2)
    await queue.requeue(job.id)
    await queue.cancel(job.id)
    await hear(2)
    await queue.delete(job.id)
    deleted = await hear(1)
    assert told == "enqueued started retrying started failed requeued cancelled deleted".split()
    assert deleted.keys() == {"event", "at", "deletedJobId"}
    assert deleted["deletedJobId"] == job.id


# -- the state machine -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_what_ended_becomes_stale_and_can_be_put_back(url: str, status: str) -> None:
    async with Queue(url, stale_after="0s") as queue:
        hands = Hands(queue)
        job = await queue.enqueue("mail")
        if status == "cancelled":
            await job.cancel()
        else:
            claimed = await hands.claim_one("mail")
            await (hands.complete(claimed) if status == "completed" else hands.fail(claimed))
        seen = await queue.get(job.id)
        assert (seen.status, seen.stale_at is not None) == (status, True)
        assert [one.id for one in await queue.list(status="stale")] == [job.id]
        assert (await queue.requeue(job.id)).status == "pending"


async def test_a_fatal_error_fails_right_away_and_a_recoverable_one_when_the_attempts_are_used_up(
    queue: Queue, start: Start
) -> None:
    ran: list[str] = []

    @queue.job(retry=AGAIN)
    async def work(payload: dict[str, Any]) -> None:
        ran.append(payload["error"])
        raise Fail("no use") if payload["error"] == "fatal" else ConnectionError("perhaps later")

    fatal, recoverable = await work.enqueue({"error": "fatal"}), await work.enqueue({"error": "recoverable"})
    await start(queue)
    for job, attempts in ((fatal, 1), (recoverable, 3)):
        seen = await ended(queue, job)
        assert (seen.status, seen.attempt) == ("failed", attempts)
    assert (ran.count("fatal"), ran.count("recoverable")) == (1, 3)


async def test_a_worker_drains_with_a_time_limit(queue: Queue, start: Start) -> None:
    """What is done in time is completed; the rest goes back to the queue, unspent."""
    begun, go = asyncio.Event(), asyncio.Event()

    @queue.job
    async def work(payload: dict[str, Any]) -> str:
        if payload["long"]:
            begun.set()
            await for_ever()
        await go.wait()
        return "done"

    short, long = await work.enqueue({"long": False}), await work.enqueue({"long": True})
    worker = await start(queue, drain="300ms")
    await begun.wait()
    await in_status(queue, short, "processing")
    worker.stop()
    go.set()
    assert (await ended(queue, short)).status == "completed"
    back = await in_status(queue, long, "pending")
    assert (back.attempt, back.locked_by) == (0, None)
