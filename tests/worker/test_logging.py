"""What a worker says of jobs that fail: one line each, with the job's facts for machines."""

import logging

import pytest

from tests.worker.conftest import Start
from treadle import Fail, Queue, Retry, Snooze


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.message) for one in caplog.records if one.name == "treadle.worker"]


async def test_a_failure_and_the_last_one(queue: Queue, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    @queue.job(retry=Retry(2, backoff="fixed", delay="10ms"))
    async def fragile() -> None:
        raise ValueError("broken")

    job = await fragile.enqueue()
    await start(queue)
    with pytest.raises(Exception, match="broken"):
        await job.result("15s")
    first, last = [one for one in caplog.records if one.name == "treadle.worker"]
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    assert first.message == "fragile failed (attempt 1 of 2), again in 10ms: ValueError: broken"
    assert last.message == "fragile failed (attempt 2 of 2): ValueError: broken"
    assert (last.job_id, last.topic, last.attempt) == (job.id, "fragile", 2)  # type: ignore[attr-defined]


async def test_what_is_no_failure_is_not_told(queue: Queue, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    runs = 0

    @queue.job
    async def patient() -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise Snooze("10ms")
        return "done"

    await start(queue)
    assert await (await patient.enqueue()).result("15s") == "done"
    assert told(caplog) == []


async def test_a_refusal_without_retry(queue: Queue, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    @queue.job
    async def picky() -> None:
        raise Fail("not this one")

    job = await picky.enqueue()
    await start(queue)
    with pytest.raises(Exception, match="not this one"):
        await job.result("15s")
    assert [level for level, _ in told(caplog)] == ["ERROR"]
