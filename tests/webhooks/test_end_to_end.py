"""From a job to a receiver: workers run, and the one that leads sends."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.waiting import ended, until
from tests.webhooks.receiver import SECRET, Receiver, answer
from tests.webhooks.test_sender import DELIVERED, delivered, delivery_of, stall
from tests.worker.conftest import Start, start
from treadle import Context, Fail, Queue, Retry
from treadle.maintenance import sender as sending
from treadle.policy import saved_endpoint

pytestmark = pytest.mark.every_store
__all__ = ["start"]

ROOT = Path(__file__).parents[2]
OTHER_PROCESS = """
import asyncio, sys
from treadle import Queue, Worker

queue = Queue(sys.argv[1])

@queue.job
async def add(a: int, b: int) -> int:
    return a + b

async def main() -> None:
    async with queue:
        await Worker(queue, maintenance=False).run(signals=True)

asyncio.run(main())
"""


@pytest.fixture
async def queue(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queue]:
    monkeypatch.setenv("TREADLE_WEBHOOK_ALLOW", "127.0.0.0/8")
    monkeypatch.setenv("TREADLE_WEBHOOK_SECRET", SECRET)
    async with Queue(url) as queue:
        yield queue


def events_of(receiver: Receiver) -> list[str]:
    return [request.json["type"].removeprefix("job:") for request in receiver.received]


async def test_a_jobs_own_url_is_told_of_its_end(queue: Queue, start: Start, receiver: Receiver) -> None:
    @queue.job
    async def add(a: int, b: int) -> int:
        return a + b

    await start(queue)
    job = await queue.enqueue("add", {"a": 1, "b": 2}, webhook_url=receiver.url)
    await delivered(queue, job.id)
    (request,) = receiver.received
    told = Webhook(SECRET).verify(request.body, request.headers)["data"]["job"]
    assert (told["id"], told["status"], told["result"]) == (job.id, "completed", 3)
    assert (await queue.get(job.id)).webhook_sent is True


async def test_retries_and_the_failure_are_told_in_order(queue: Queue, start: Start, receiver: Receiver) -> None:
    @queue.job(retry=Retry(3, backoff=["10ms"]))
    async def fails(ctx: Context) -> None:
        if ctx.is_last_attempt:
            raise Fail("no more")
        raise RuntimeError("not yet")

    await start(queue)
    job = await queue.enqueue("fails", {}, webhook_url=receiver.url)
    await until(lambda: len(receiver.received) == 3)
    assert sorted(events_of(receiver)) == ["failed", "retrying", "retrying"]
    assert (await ended(queue, job)).status == "failed"


async def test_410_disables_an_endpoint_and_a_test_that_is_received_enables_it_again(
    queue: Queue, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_endpoint, "COUNTS_AFTER_MS", 0)
    endpoint = await queue.webhooks.create(receiver.url)
    await start(queue)
    receiver.answer = answer(410)
    await queue.cancel((await queue.enqueue("nobody", {})).id)

    async def disabled() -> bool:
        return not (await queue.webhooks.get(endpoint.id)).endpoint.enabled

    await until(disabled)
    receiver.answer = answer(204)
    assert (await queue.webhooks.test(endpoint.id)).status is DELIVERED
    assert (await queue.webhooks.get(endpoint.id)).endpoint.enabled
    request = receiver.received[-1]
    assert Webhook(str(endpoint.secret)).verify(request.body, request.headers)["type"] == "webhook:test"


async def test_what_other_processes_cause_is_sent_promptly(
    url: str, queue: Queue, start: Start, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader hears of it from the database: nobody looks by the clock here."""
    monkeypatch.setattr(sending, "LOOK_EVERY_S", 3_600.0)
    await start(queue)
    program = tmp_path / "program.py"
    program.write_text(OTHER_PROCESS)
    other = subprocess.Popen([sys.executable, program, url], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        for number in range(3):
            job = await queue.enqueue("add", {"a": number, "b": 1}, webhook_url=receiver.url)
            await delivered(queue, job.id)
    finally:
        other.terminate()
        await asyncio.to_thread(other.wait, 30)
    assert [request.json["data"]["job"]["result"] for request in receiver.received] == [1, 2, 3]


@pytest.mark.parametrize("hurry", [False, True], ids=["stop", "second stop"])
async def test_a_worker_stops_although_a_receiver_stalls(
    queue: Queue, start: Start, receiver: Receiver, hurry: bool
) -> None:
    receiver.answer = stall
    worker = await start(queue)
    id = (await queue.enqueue("nobody", {}, webhook_url=receiver.url)).id
    await queue.cancel(id)
    await until(lambda: receiver.under_way)
    worker.stop()
    if hurry:
        worker.stop()
    async with asyncio.timeout(10):
        await worker.done
    assert (await delivery_of(queue, id)).status is not DELIVERED
    assert [task for task in asyncio.all_tasks() if "_try" in repr(task.get_coro())] == []


async def test_a_worker_that_follows_sends_nothing(queue: Queue, start: Start, receiver: Receiver) -> None:
    worker = await start(queue, maintenance=False)
    await until(lambda: worker.metrics.slots)
    id = (await queue.enqueue("nobody", {}, webhook_url=receiver.url)).id
    await queue.cancel(id)
    await asyncio.sleep(0.2)  # time in which it would be sent
    assert receiver.received == []
    await start(queue)
    await delivered(queue, id)
