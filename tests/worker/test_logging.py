"""What a worker logs about jobs: starts, endings and failures, with the job's facts for machines."""

import logging
import re

import pytest

from tests.waiting import give_way, until
from tests.worker.conftest import Start
from treadle import Fail, Queue, Retry, Snooze


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.message) for one in caplog.records if one.name == "treadle.worker"]


def of_worker(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.name == "treadle.worker"]


async def test_a_failure_and_the_last_one(queue: Queue, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    @queue.job(retry=Retry(2, backoff="fixed", delay="10ms"))
    async def fragile() -> None:
        raise ValueError("broken")

    job = await fragile.enqueue()
    await start(queue)
    with pytest.raises(Exception, match="broken"):
        await job.result("60s")
    first, last = await until(lambda: len(found := of_worker(caplog)) == 2 and found)
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    assert first.message == "fragile failed (attempt 1 of 2), again in 10ms: ValueError: broken"
    assert last.message == "fragile failed (attempt 2 of 2): ValueError: broken"
    assert {"job_id": job.id, "topic": "fragile", "attempt": 2}.items() <= vars(last).items()


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
    assert await (await patient.enqueue()).result("60s") == "done"
    assert told(caplog) == []


async def test_a_refusal_without_retry(queue: Queue, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    @queue.job
    async def picky() -> None:
        raise Fail("not this one")

    job = await picky.enqueue()
    await start(queue)
    with pytest.raises(Exception, match="not this one"):
        await job.result("60s")
    await until(lambda: [level for level, _ in told(caplog)] == ["ERROR"])


async def test_start_and_end_of_a_job_with_its_duration(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "treadle.worker")
    tries: list[int] = []

    @queue.job(retry=Retry(2, backoff=[0.001]))
    async def second_time_lucky() -> None:
        tries.append(1)
        await give_way()
        if len(tries) == 1:
            raise ValueError("not yet")

    await start(queue)
    job = await second_time_lucky.enqueue()
    await job.result("60s")
    await until(lambda: any("completed in" in line for _, line in told(caplog)))
    first, _, again, end = [one for one in caplog.records if "second_time_lucky" in one.message]
    assert first.message == "second_time_lucky started"
    assert again.message == "second_time_lucky started (attempt 2 of 2)"
    assert re.fullmatch(r"second_time_lucky completed in \d+ ms", end.message)
    assert (vars(end)["job_id"], end.levelname) == (job.id, "INFO")


async def test_at_high_speed_a_few_jobs_are_told_and_the_others_counted(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "treadle.worker")

    @queue.job
    async def quick() -> None: ...

    await quick.enqueue_many([{}] * 2000)
    worker = await start(queue)
    await until(lambda: worker.metrics.completed == 2000)

    def counted() -> int:
        more = [re.fullmatch(r"(\d+) more jobs completed", line) for _, line in told(caplog)]
        single = [line for _, line in told(caplog) if line.startswith("quick completed")]
        return len(single) + sum(int(match[1]) for match in more if match)

    await until(lambda: counted() == 2000)
    assert sum("quick" in line for _, line in told(caplog)) <= 400, "2 × 20 lines a second"
