"""`queue.lifespan()` in FastAPI and Starlette."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from tests.waiting import until
from treadle import InvalidInput, Queue


@pytest.mark.parametrize("framework", [FastAPI, Starlette])
async def test_the_queue_is_open_and_its_jobs_run_while_the_application_runs(sqlite_url: str, framework: Any) -> None:
    queue = Queue(sqlite_url)

    @queue.job
    async def double(number: int) -> int:
        return 2 * number

    application = framework(lifespan=queue.lifespan(worker=True, slots=3))
    async with application.router.lifespan_context(application):
        job = await double.enqueue(4)
        assert await job.result(timeout="30s") == 8
        (worker,) = await queue.store.workers()
        assert worker.slots == 3
    with pytest.raises(InvalidInput, match="not open"):
        _ = queue.store


async def test_the_applications_own_lifespan_runs_inside_and_its_state_is_kept(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    happened: list[str] = []

    @queue.on_worker_start
    def starts() -> None:
        happened.append("worker starts")

    @queue.on_worker_stop
    def stops() -> None:
        happened.append("worker stops")

    @contextlib.asynccontextmanager
    async def own(app: Any) -> AsyncIterator[dict[str, str]]:
        await queue.count()
        happened.append("opened")
        yield {"model": "loaded"}
        await queue.count()
        happened.append("closed")

    application = Starlette(lifespan=queue.lifespan(own, worker=True))
    async with application.router.lifespan_context(application) as state:
        assert state == {"model": "loaded"}
        await until(lambda: "worker starts" in happened)
    assert happened == ["opened", "worker starts", "worker stops", "closed"]


async def test_it_can_stand_inside_the_applications_own_lifespan(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)

    @contextlib.asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[None]:
        async with queue.lifespan()(app):
            yield

    application = FastAPI(lifespan=own)
    async with application.router.lifespan_context(application):
        assert await queue.count() == 0


async def test_a_running_job_may_finish_when_the_application_stops(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    started = asyncio.Event()

    @queue.job
    async def slow() -> str:
        started.set()
        await asyncio.sleep(0.2)  # still running when the application stops
        return "done"

    application = Starlette(lifespan=queue.lifespan(worker=True))
    async with application.router.lifespan_context(application):
        job = await slow.enqueue()
        await started.wait()
    async with queue:
        assert (await queue.get(job.id)).status == "completed"


async def test_a_worker_that_ends_by_an_error_is_told_and_the_application_goes_on(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(sqlite_url)

    @queue.on_worker_start
    def fails() -> None:
        raise RuntimeError("no model")

    application = Starlette(lifespan=queue.lifespan(worker=True))
    async with application.router.lifespan_context(application):
        await until(lambda: any("runs no jobs any more" in record.message for record in caplog.records))
        assert await queue.count() == 0
    assert [record.levelno for record in caplog.records if "no jobs" in record.message] == [logging.ERROR]


async def test_an_application_does_not_start_without_its_database(tmp_path: Any) -> None:
    (tmp_path / "nowhere").write_text("a file, not a folder")
    queue = Queue(f"sqlite:///{tmp_path}/nowhere/jobs.db")
    application = Starlette(lifespan=queue.lifespan())
    with pytest.raises(Exception, match="nowhere"):
        async with application.router.lifespan_context(application):
            pass


def test_mistakes_are_told(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    with pytest.raises(InvalidInput, match="worker=True"):
        queue.lifespan(slots=3)
    with pytest.raises(InvalidInput, match=r"lifespan=queue\.lifespan\(\)"):
        queue.lifespan(FastAPI())  # type: ignore[arg-type]


def test_a_queue_opened_on_a_loop_that_has_ended_says_so_and_can_be_used_again(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(queue.open())
    loop.close()

    async def later() -> None:
        with pytest.raises(InvalidInput, match=r"another one, which has ended.*FastAPI\(lifespan=queue\.lifespan"):
            _ = queue.store
        job = await queue.enqueue("mail")
        assert (await queue.get(job.id)).status == "pending"
        await queue.close()

    asyncio.run(later())
