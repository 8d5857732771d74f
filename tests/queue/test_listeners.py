"""`@queue.on("job:completed")`: functions of the program that hear what happens."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.crew import crew
from tests.queue.hands import Hands, eventually
from tests.waiting import for_ever, give_way
from treadle import InvalidInput, Job, Queue, Worker
from treadle.events.ring import Ring
from treadle.model import events
from treadle.queue import listeners

Heard = list[dict[str, Any]]


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


def names(heard: Heard) -> list[str]:
    return [event["event"].removeprefix("job:") for event in heard]


def hear(queue: Queue, *events: str, **options: Any) -> Heard:
    """What listeners for these events hear from now on."""
    heard: Heard = []
    for event in events:
        queue.on(event, **options)(heard.append)
    return heard


async def test_a_listener_hears_of_a_job_as_streams_do(queue: Queue) -> None:
    heard: Heard = []

    @queue.on("job:completed")
    async def completed(event: dict[str, Any]) -> None:
        assert (await event["job"].refresh()).status == "completed", "stored before it is told"
        heard.append(event)

    job = await queue.enqueue("mail", {"to": "ann"})
    await Hands(queue).do(job, {"sent": 1})
    await eventually(lambda: heard)
    (event,) = heard
    assert event.keys() == {"event", "at", "job"}
    assert event["event"] == "job:completed"
    assert isinstance(event["job"], Job)
    assert event["at"] == event["job"].as_json()["completedAt"]
    assert (event["job"].id, event["job"].payload, event["job"].result_value) == (job.id, {"to": "ann"}, {"sent": 1})


async def test_a_plain_function_hears_in_a_thread_with_blocking_methods(queue: Queue) -> None:
    heard: list[tuple[str, bool]] = []

    @queue.on("job:enqueued")
    def enqueued(event: dict[str, Any]) -> None:
        on_the_main_thread = threading.current_thread() is threading.main_thread()
        heard.append((event["job"].refresh().status, on_the_main_thread))

    await queue.enqueue("mail")
    await eventually(lambda: heard)
    assert heard == [("pending", False)]
    queue.sync.close()


async def test_every_kind_of_event(queue: Queue) -> None:
    heard = hear(queue, *sorted(events.NAMES))
    hands = Hands(queue)
    job = await queue.enqueue("mail", max_attempts=2)
    await hands.fail(await hands.claim_one("mail"), retry_in_ms=1)
    await eventually(hands.promoted)
    await hands.fail(await hands.claim_one("mail"))
    await queue.requeue(job.id)
    await queue.cancel(job.id)
    # Between the listeners of different events there is no order.
    expected = ["cancelled", "enqueued", "failed", "requeued", "retrying", "started", "started"]
    await eventually(lambda: sorted(names(heard)) == expected)
    await queue.delete(job.id)
    await eventually(lambda: len(heard) == 8)
    (deleted,) = [event for event in heard if event["event"] == "job:deleted"]
    assert deleted.keys() == {"event", "at", "deletedJobId"}


async def test_of_a_topic_only(queue: Queue) -> None:
    heard = hear(queue, "job:enqueued", topic="mail")
    everything = hear(queue, "job:enqueued")
    await queue.enqueue("other")
    job = await queue.enqueue("mail")
    await eventually(lambda: len(everything) == 2)
    await eventually(lambda: heard)
    assert [event["job"].id for event in heard] == [job.id]


async def test_a_listener_hears_in_order_and_each_event_once(queue: Queue) -> None:
    heard: list[str] = []

    @queue.on("job:enqueued")
    async def slow(event: dict[str, Any]) -> None:
        await asyncio.sleep(0.001)  # slower than events come
        heard.append(event["job"].id)

    jobs = await queue.enqueue_many("mail", [{"n": n} for n in range(200)])
    await eventually(lambda: len(heard) == 200)
    assert heard == [job.id for job in jobs]


async def test_what_other_processes_do_is_heard(queue: Queue) -> None:
    heard = hear(queue, "job:completed")
    await queue.open()
    made, _ = await crew(queue.url, "produce", [20]), await crew(queue.url, "drain", ["w1", "w2"])
    await eventually(lambda: len(heard) == 20)
    assert sorted(event["job"].id for event in heard) == sorted(made[0])


@pytest.mark.parametrize("name", ["job:phase:completed", "job:step:completed"])
async def test_steps(queue: Queue, name: str) -> None:
    flow = queue.flow("report")

    @flow.step
    async def collect() -> dict[str, int]:
        return {"rows": 7}

    @flow.step
    async def send() -> str:
        return "sent"

    heard = hear(queue, name)
    await flow.enqueue({})
    await queue.run_until_empty()
    await eventually(lambda: len(heard) == 2)
    assert {event["event"] for event in heard} == {"job:step:completed"}
    assert heard[0]["job"].steps[0]["status"] == "completed"
    assert {step["result"] for event in heard for step in event["job"].steps} == {None}, "results are read with the job"


async def test_steps_with_keys_are_told_four_times_a_second(queue: Queue) -> None:
    flow = queue.flow("parts")

    @flow.step
    async def spread(ctx: Any) -> None:
        for n in range(300):
            await ctx.step(f"part{n % 2}", _nothing, key=n)

    heard = hear(queue, "job:step:completed")
    done = hear(queue, "job:completed")
    await flow.enqueue({})
    await queue.run_until_empty()
    await eventually(lambda: done)
    assert len(heard) < 50


async def _nothing() -> None:
    pass


async def test_a_job_that_waits_for_an_answer(queue: Queue) -> None:
    @queue.job
    async def ask(ctx: Any) -> Any:
        return await ctx.wait_external("answer", timeout="1h")

    heard = hear(queue, "job:waiting")
    job = await ask.enqueue()
    working = asyncio.create_task(queue.work())
    await eventually(lambda: heard)
    assert (heard[0]["job"].id, heard[0]["job"].status) == (job.id, "waiting")
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


# -- which names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("completed", "job:completed"),
        ("job:complete", "job:completed"),
        ("job:fail", "job:failed"),
        ("phase:completed", "job:phase:completed"),
        ("", "job:"),
        ("snapshot", "job:"),
        (None, "job:"),
        (7, "job:"),
    ],
)
def test_an_unknown_event_is_refused_with_the_nearest(sqlite_url: str, wrong: Any, right: str) -> None:
    with pytest.raises(InvalidInput, match=f"is not an event; did you mean {right}"):
        Queue(sqlite_url).on(wrong)(print)


@pytest.mark.parametrize("topic", ["No", "", "a b", 5])
def test_what_is_no_topic_is_refused(sqlite_url: str, topic: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a topic"):
        Queue(sqlite_url).on("job:completed", topic=topic)(print)


def test_what_is_no_function_is_refused(sqlite_url: str) -> None:
    with pytest.raises(InvalidInput, match="is not a function"):
        Queue(sqlite_url).on("job:completed")(5)  # type: ignore[type-var]


# -- listeners that misbehave ----------------------------------------------------------------------


class Unshowable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


RAISED = [
    ValueError("Boom"),
    KeyboardInterrupt(),
    SystemExit(3),
    asyncio.CancelledError(),
    StopIteration(),
    GeneratorExit(),
    Unshowable(),
    BaseExceptionGroup("all", [SystemExit(1)]),
]


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_whatever_a_listener_raises_harms_nothing(
    queue: Queue, error: BaseException, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def fail(event: dict[str, Any]) -> None:
        heard.append(event["job"].id)
        raise error

    async def fail_later(event: dict[str, Any]) -> None:
        fail(event)

    queue.on("job:enqueued")(fail if how == "sync" else fail_later)
    others = hear(queue, "job:enqueued")
    jobs = [(await queue.enqueue("mail")).id for _ in range(2)]
    await eventually(lambda: heard == jobs)
    await eventually(lambda: len(others) == 2)
    await eventually(lambda: sum("the listener" in one.message for one in caplog.records) == 2)
    assert f"of job:enqueued of job {jobs[0]} failed" in caplog.text


async def test_a_listener_that_cancels_its_task_goes_on(queue: Queue) -> None:
    heard: list[str] = []

    @queue.on("job:enqueued")
    async def rude(event: dict[str, Any]) -> None:
        heard.append(event["job"].id)
        task = asyncio.current_task()
        assert task
        task.cancel()
        await give_way()

    jobs = [(await queue.enqueue("mail")).id for _ in range(3)]
    await eventually(lambda: heard == jobs)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_listener_that_never_returns_holds_up_nobody(
    url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "FINISH_S", 0.05)
    queue = Queue(url)
    begun: list[str] = []
    let_go = threading.Event()

    def stuck(event: dict[str, Any]) -> None:
        begun.append("")
        let_go.wait()

    async def stuck_too(event: dict[str, Any]) -> None:
        begun.append("")
        await for_ever()

    queue.on("job:enqueued")(stuck if how == "sync" else stuck_too)
    others = hear(queue, "job:enqueued")
    async with queue:
        await queue.enqueue_many("mail", [{}] * 3)
        await eventually(lambda: begun == [""])
        await eventually(lambda: len(others) == 3)
    let_go.set()


async def test_a_listener_that_is_too_slow_misses_events_and_the_log_says_so(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []
    go_on = asyncio.Event()

    @queue.on("job:enqueued")
    async def slow(event: dict[str, Any]) -> None:
        await go_on.wait()
        heard.append(event["job"].payload["n"])

    queue.feed._ring = Ring(most=5)
    others = hear(queue, "job:enqueued")
    for n in range(20):
        await queue.enqueue("mail", {"n": n})
        await eventually(lambda n=n: len(others) == n + 1)  # type: ignore[misc]
    with caplog.at_level(logging.WARNING, "treadle.listeners"):
        go_on.set()
        await eventually(lambda: "has missed events" in caplog.text)
    await queue.enqueue("mail", {"n": 20})
    await eventually(lambda: heard and heard[-1] == 20)
    assert heard[0] == 0
    assert heard == sorted(heard)


async def test_a_closing_queue_lets_listeners_finish(url: str) -> None:
    finished: list[str] = []
    queue = Queue(url)

    @queue.on("job:enqueued")
    async def careful(event: dict[str, Any]) -> None:
        finished.append("begun")
        await asyncio.sleep(0.1)  # work that a close must not cut short
        finished.append("finished")

    async with queue:
        await queue.enqueue("mail")
        await eventually(lambda: finished)
    assert finished == ["begun", "finished"]


# -- where they listen -----------------------------------------------------------------------------


async def test_a_queue_that_opens_again_listens_again(url: str) -> None:
    queue = Queue(url)
    heard = hear(queue, "job:enqueued")
    for n in range(1, 4):
        async with queue:
            await queue.enqueue("mail")
            await eventually(lambda n=n: len(heard) == n)  # type: ignore[misc]


async def test_one_registered_while_the_queue_is_open_hears_the_next_event(queue: Queue) -> None:
    await queue.enqueue("mail")
    heard = hear(queue, "job:enqueued")
    job = await queue.enqueue("mail")
    await eventually(lambda: heard)
    assert [event["job"].id for event in heard] == [job.id]


async def test_on_two_loops_of_a_process_each_event_is_heard_once(queue: Queue) -> None:
    heard = hear(queue, "job:enqueued")
    here = await queue.enqueue("mail")
    there = await asyncio.to_thread(queue.sync.enqueue, "mail")
    more = hear(queue, "job:enqueued")
    last = await asyncio.to_thread(queue.sync.enqueue, "mail")
    await eventually(lambda: more and more[-1]["job"].id == last.id)
    await eventually(lambda: len(heard) == 3)
    assert [event["job"].id for event in heard] == [here.id, there.id, last.id]
    await asyncio.to_thread(queue.sync.close)


async def test_the_end_of_a_servers_streams_does_not_end_listeners(queue: Queue) -> None:
    heard = hear(queue, "job:enqueued")
    await queue.open()
    stream = asyncio.create_task(anext(queue.stream()))
    await eventually(lambda: queue.feed._listeners == 2)
    await queue.feed.stop()
    with pytest.raises(StopAsyncIteration):
        await stream
    await queue.enqueue("mail")
    await eventually(lambda: heard)


async def test_without_a_listener_nothing_is_read(queue: Queue) -> None:
    await queue.enqueue("mail")
    assert queue._sessions.current()._feed is None


async def test_a_process_that_was_silenced_calls_none(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_silenced", True)
    hear(queue, "job:enqueued")
    await queue.enqueue("mail")
    assert queue._sessions.current()._feed is None


# -- own jobs --------------------------------------------------------------------------------------


async def test_local_means_the_jobs_of_this_process(queue: Queue, url: str) -> None:
    """Two queues with workers stand for two processes: each hears of the jobs that its own worker ran."""
    other = Queue(url)
    ran: dict[Queue, list[str]] = {queue: [], other: []}
    heard = {one: hear(one, "job:started", "job:completed", local=True) for one in ran}
    everything = {one: hear(one, "job:completed") for one in ran}
    for one, ids in ran.items():

        @one.job
        async def mail(ctx: Any, ids: list[str] = ids) -> None:
            ids.append(ctx.job_id)
            await asyncio.sleep(0.01)  # long enough that both workers get some

    async with other:
        await other.open()
        jobs = await queue.enqueue_many("mail", [{}] * 30)
        workers = [Worker(one, slots=2) for one in ran]
        working = [asyncio.create_task(worker.run()) for worker in workers]
        await eventually(lambda: all(len(one) == 30 for one in everything.values()))
        for one, ids in ran.items():
            await eventually(lambda one=one, ids=ids: len(heard[one]) == 2 * len(ids))  # type: ignore[misc]
            for name in ("started", "completed"):
                told = [event["job"].id for event in heard[one] if names([event]) == [name]]
                assert sorted(told) == sorted(ids)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*working)
    assert sorted(ran[queue] + ran[other]) == sorted(job.id for job in jobs)


async def test_a_job_that_has_not_run_belongs_to_the_process_that_enqueued_it(queue: Queue, url: str) -> None:
    async with Queue(url) as other:
        mine = hear(queue, "job:enqueued", "job:cancelled", local=True)
        theirs = hear(other, "job:enqueued", "job:cancelled", local=True)
        await queue.open()
        await other.open()
        job = await queue.enqueue("mail")
        await other.enqueue("mail")
        await other.cancel(job.id)
        await eventually(lambda: len(mine) == 2)
        await eventually(lambda: len(theirs) == 1)
        assert {event["job"].id for event in mine} == {job.id}
        assert sorted(names(mine)) == ["cancelled", "enqueued"]
        assert names(theirs) == ["enqueued"]
