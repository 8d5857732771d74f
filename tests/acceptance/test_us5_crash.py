"""Seed 000, user story 5: when a worker crashes, another takes its jobs over. Real processes, killed with SIGKILL."""

from datetime import timedelta
from pathlib import Path

from tests.acceptance.conftest import Program, Start, StartProgram, Travel
from tests.acceptance.program import GATE, make_queue, runs
from tests.waiting import in_status, lease_is, until
from treadle import Job, Queue, Status


async def crashed_job(queue: Queue, program: StartProgram, folder: Path, **options: object) -> tuple[Job, Program]:
    """A job left by a worker that was killed while it ran."""
    job = await queue.enqueue("wait_for_gate")
    worker = program(**options)
    await until(lambda: runs(folder))
    worker.kill9()
    return job, worker


async def test_1_after_the_crash_the_job_is_still_processing(
    queue: Queue, program: StartProgram, tmp_path: Path
) -> None:
    job, worker = await crashed_job(queue, program, tmp_path)
    left = await queue.get(job.id)
    assert (left.status, left.attempt) == (Status.PROCESSING, 1)
    assert left.locked_by is not None
    assert str(worker.pid) in left.locked_by


async def test_2_when_locked_until_is_over_another_worker_takes_the_job_over(
    queue: Queue, program: StartProgram, tmp_path: Path
) -> None:
    job, first = await crashed_job(queue, program, tmp_path, lease="1s", reap_interval="50ms")
    second = program(lease="1s", reap_interval="50ms")
    await until(lambda: len(runs(tmp_path)) == 2)
    assert runs(tmp_path) == [(job.id, 1, first.pid), (job.id, 2, second.pid)]
    assert [event.type for event in await queue.events(job.id)].count("job:reclaimed") == 1


async def test_3_by_default_the_job_can_be_taken_over_after_five_minutes(
    queue: Queue, program: StartProgram, tmp_path: Path, travel: Travel, start: Start
) -> None:
    job, _ = await crashed_job(queue, program, tmp_path)
    left = await queue.get(job.id)
    await lease_is(queue, left, timedelta(minutes=5))
    (tmp_path / GATE).touch()
    other = make_queue(queue.url, tmp_path)
    async with other:
        await travel(4 * 60)
        await start(other)
        sentinel = await other.enqueue("note")
        await in_status(queue, sentinel, "completed")
        assert (await queue.get(job.id)).status is Status.PROCESSING
        await travel(61)
        await in_status(queue, job, "completed")


async def test_4_taken_over_and_successful_the_job_is_completed(
    queue: Queue, program: StartProgram, tmp_path: Path
) -> None:
    job, _ = await crashed_job(queue, program, tmp_path, lease="1s")
    (tmp_path / GATE).touch()
    second = program(reap_interval="50ms")
    done = await in_status(queue, job, "completed")
    assert done.result_value == {"pid": second.pid, "attempt": 2}
    assert (done.attempt, done.retries) == (2, 1)
    second.stop()
