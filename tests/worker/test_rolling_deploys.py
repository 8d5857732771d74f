"""Two versions of a program at work: no step is skipped, none runs twice, and no old worker ends a new flow."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.waiting import ended, event_types, until
from tests.worker import deployed
from tests.worker.conftest import Start
from treadle import Context, Job, Queue
from treadle.policy import flow as policy


class Deploy(Protocol):
    def __call__(self, version: str) -> None: ...


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    path = tmp_path / "noted"
    path.touch()
    return path


@pytest.fixture
def deploy(url: str, noted: Path) -> Iterator[Deploy]:
    """Start a worker process with this version of the program."""
    running: list[subprocess.Popen[bytes]] = []

    def deploy(version: str) -> None:
        running.append(subprocess.Popen([sys.executable, "-m", "tests.worker.deployed", url, version, str(noted)]))

    yield deploy
    for process in running:
        process.kill()
        process.wait()


async def _workers(queue: Queue, count: int) -> bool:
    return len(await queue.store.workers()) == count


async def made_by(version: str, url: str, noted: Path) -> Job:
    async with Queue(url) as queue:
        deployed.program(queue, version, noted)
        await queue.save_templates()
        return await queue.enqueue("shop")


async def has_snoozed(queue: Queue, job: Job) -> bool:
    return "job:snoozed" in await event_types(queue, job)


async def test_an_old_worker_does_not_run_its_plain_handler_for_a_flow(
    url: str, queue: Queue, deploy: Deploy, noted: Path
) -> None:
    deploy("plain")
    await until(lambda: _workers(queue, 1))
    job = await made_by("flow", url, noted)
    await until(lambda: has_snoozed(queue, job))
    job = await queue.get(job.id)
    assert (job.status, job.attempt, [step["status"] for step in job.steps]) == ("pending", 0, ["pending"] * 2)
    assert "no worker has the code of step first" in " ".join(await queue.why(job.id))
    deploy("flow")
    assert await queue.result(job.id, "60s") == "second"
    assert (await queue.get(job.id)).attempt == 1
    assert noted.read_text().splitlines() == ["flow: first", "flow: second"]


async def test_an_old_worker_leaves_a_step_that_is_new_to_the_new_one(
    url: str, queue: Queue, deploy: Deploy, noted: Path
) -> None:
    deploy("flow")
    await until(lambda: _workers(queue, 1))
    job = await made_by("longer flow", url, noted)
    await until(lambda: has_snoozed(queue, job))
    assert "no worker has the code of step between" in " ".join(await queue.why(job.id))
    deploy("longer flow")
    assert (await ended(queue, job)).status == "completed"
    lines = noted.read_text().splitlines()
    assert [line.partition(": ")[2] for line in lines] == ["first", "between", "second"]
    assert lines[1] == "longer flow: between"


async def test_a_job_that_was_plain_runs_as_the_flow_that_it_became(queue: Queue, start: Start, url: str) -> None:
    async with Queue(url) as old:
        old.register("shop", _plain)
        job = await old.enqueue("shop")
    flow = queue.flow("shop")
    flow.step(name="only")(_plain)
    await start(queue)
    assert await job.result("30s") == "ran"


@pytest.mark.parametrize("kind", [{}, {"process": True}], ids=["here", "in a process"])
async def test_a_plain_handler_leaves_a_flow_that_has_begun(
    queue: Queue, start: Start, url: str, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Queue(url) as new:
        flow = new.flow("shop")
        flow.step(name="first")(_plain)
        flow.external("approve")
        flow.step(name="last")(_plain)
        job = await new.enqueue("shop")
        first = await start(new)
        await until(lambda: _is_waiting(new, job))
        first.stop()
        await first.done
        await new.signal(job.id, "approve", 1)
    queue.register("shop", _plain, **kind)
    monkeypatch.setattr(policy, "UNSERVED_MS", 20)
    worker = await start(queue)
    await until(lambda: has_snoozed(queue, job))
    worker.stop()
    await worker.done
    assert "no worker has the code of step last" in " ".join(await queue.why(job.id))
    assert (await queue.get(job.id)).attempt == 0


async def test_steps_that_a_plain_handler_made_do_not_stop_it(queue: Queue, start: Start) -> None:
    @queue.job
    async def shop(ctx: Context) -> str:
        await ctx.step("one", _plain)
        await ctx.sleep("20ms")
        return str(await ctx.step("two", _plain))

    await start(queue)
    assert await (await shop.enqueue()).result("30s") == "ran"


async def _is_waiting(queue: Queue, job: Job) -> bool:
    return (await queue.get(job.id)).status == "waiting"


def _plain() -> str:
    return "ran"
