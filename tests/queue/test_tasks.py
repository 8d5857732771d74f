"""Tasks: functions that are called as before, or enqueued with their payload or their own arguments."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from pydantic import BaseModel

from treadle import Context, InvalidInput, InvalidPayload, Job, JobRequest, Queue, Worker
from treadle.model.job import ResultT
from treadle.queue import ArgumentsTask, PayloadTask


@dataclass
class Video:
    url: str
    frames: int = 10


@pytest.fixture
async def worker(queue: Queue) -> AsyncIterator[Worker]:
    """Starts when the test has registered its handlers."""
    worker = Worker(queue, poll_interval="50ms")
    yield worker
    worker.stop()


async def result_of(worker: Worker, job: Job[ResultT]) -> ResultT:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        found = await job.result("60s")
        worker.stop()
    return found


# -- ordinary arguments ------------------------------------------------------------------------------------------


async def test_a_function_is_enqueued_with_its_own_arguments(queue: Queue, worker: Worker) -> None:
    @queue.job
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert isinstance(add, ArgumentsTask)
    assert add(1, 2) == 3
    job = await add.enqueue(1, b=3)
    assert job.payload == {"a": 1, "b": 3}
    assert (await add.enqueue(a=1)).payload == {"a": 1}
    assert await result_of(worker, job) == 4


async def test_a_default_is_used_when_the_job_runs(queue: Queue, worker: Worker) -> None:
    @queue.job
    async def scale(ctx: Context, width: int, *, by: float = 2.0) -> list[Any]:
        return [ctx.payload, width * by]

    assert await result_of(worker, await scale.enqueue(4)) == [{"width": 4}, 8.0]


class Report(BaseModel):
    days: int
    title: str = "Report"


async def test_a_payloads_own_default_is_used_without_one(queue: Queue) -> None:
    week = Report(days=7)

    @queue.job(schedule="@weekly")
    def report(report: Report = week) -> int:
        return report.days

    @queue.job
    def perhaps(report: Report | None = None) -> int:
        return 0 if report is None else report.days

    @queue.job
    def plain(options={"days": 3}) -> int:  # noqa: B006
        return options["days"]

    jobs: list[Job[int]] = [
        await report.enqueue(),
        await report.enqueue(Report(days=1)),
        await perhaps.enqueue(),
        await perhaps.enqueue(Report(days=2)),
        await plain.enqueue(),
    ]
    assert jobs[0].payload == {"days": 7, "title": "Report"}
    await queue.save_templates()
    assert (await queue.schedules.get("report")).payload == {"days": 7, "title": "Report"}
    with pytest.raises(InvalidPayload, match="days"):
        await queue.enqueue("report", {})
    await queue.run_until_empty()
    assert [await job.result("60s") for job in jobs] == [7, 1, 0, 2, 3]


async def test_options_come_before_the_arguments(queue: Queue) -> None:
    @queue.job
    def add(a: int, priority: str, delay: int = 0) -> int:
        return a

    job = await add.options(delay="15m", priority="low").enqueue(1, priority="mine", delay=7)
    assert job.payload == {"a": 1, "priority": "mine", "delay": 7}
    assert (job.priority, (job.run_at - job.created_at).total_seconds()) == (25, 900)
    many = await add.options(scope="user").options(scope_id="7").enqueue_many([(1, "x"), {"a": 2, "priority": "y"}])
    assert [one.payload for one in many] == [{"a": 1, "priority": "x"}, {"a": 2, "priority": "y"}]
    assert {(one.scope, one.scope_id) for one in many} == {("user", "7")}
    assert (await add.enqueue(1, "plain")).scope is None


async def test_arguments_that_do_not_fit_are_refused(queue: Queue) -> None:
    @queue.job
    def add(a: int, b: int = 2) -> int:
        return a + b

    with pytest.raises(InvalidPayload, match="add: missing a required argument: 'a'"):
        await add.enqueue()  # type: ignore[call-arg]
    with pytest.raises(InvalidPayload, match=r"add: payload\.a: Input should be a valid integer"):
        await add.enqueue("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match=r"add: payload\.c: Extra inputs are not permitted"):
        await queue.enqueue("add", {"a": 1, "c": 1})
    assert await queue.count() == 0


async def test_a_process_gets_its_arguments_too(queue: Queue) -> None:
    from tests.queue import process_tasks

    task = queue.register("area", process_tasks.area, process=True)
    job = await queue.enqueue(task.topic, {"width": 3, "height": 4})
    assert await result_of(Worker(queue), job) == 12


async def test_others_validate_by_the_saved_signature(queue: Queue, url: str) -> None:
    @queue.job
    def add(a: int, b: int = 2) -> int:
        return a + b

    await queue.save_templates()
    async with Queue(url) as other:
        assert (await other.enqueue("add", {"a": 1})).payload == {"a": 1}
        with pytest.raises(InvalidPayload):
            await other.enqueue("add", {"b": 1})


# -- payloads ------------------------------------------------------------------------------------------------------


async def test_one_object_like_parameter_is_the_payload(queue: Queue, worker: Worker) -> None:
    @queue.job
    async def transcode(ctx: Context, video: Video) -> int:
        return video.frames

    assert isinstance(transcode, PayloadTask)
    job = await transcode.enqueue(Video("a.mp4", 5), priority="high")
    assert (job.payload, job.priority) == ({"url": "a.mp4", "frames": 5}, 75)
    low = await transcode.options(priority="low", delay="1h").enqueue(Video("b.mp4"), delay="2h")
    assert (low.priority, (low.run_at - low.created_at).total_seconds()) == (25, 7200)
    assert await result_of(worker, job) == 5


async def test_a_function_without_parameters_may_have_any_payload(queue: Queue) -> None:
    @queue.job
    def ping(ctx: Context) -> None: ...

    assert (await ping.enqueue()).payload == {}
    assert (await queue.enqueue(ping, {"n": 1})).payload == {"n": 1}
    assert (await ping.enqueue({"n": 2}, priority="low")).priority == 25


async def test_an_option_among_the_arguments_is_refused_with_its_place(queue: Queue) -> None:
    @queue.job
    def add(a: int, b: int = 2) -> int:
        return a + b

    told = r"got an unexpected keyword argument 'delay'; options go before: \.options\(delay=…\)\.enqueue\(…\)"
    with pytest.raises(InvalidPayload, match=told):
        await add.enqueue(1, delay="15m")  # type: ignore[call-arg]
    with pytest.raises(InvalidPayload, match=told):
        add.sync.enqueue(1, delay="15m")  # type: ignore[call-arg]
    with pytest.raises(InvalidPayload, match=r"options go before: \.options\(delay=…\)"):
        add.sync.enqueue(1, countdown=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidPayload, match=r"add: got an unexpected keyword argument 'c'$"):
        await add.enqueue(1, c=3)  # type: ignore[call-arg]


# -- by the task itself --------------------------------------------------------------------------------------------


async def test_the_queue_takes_the_task_itself(queue: Queue) -> None:
    @queue.job(topic="video.transcode")
    def transcode(video: Video) -> int:
        return video.frames

    @queue.job
    def add(a: int, b: int) -> int:
        return a + b

    assert (await queue.enqueue(transcode, Video("a.mp4"), delay="1h")).topic == "video.transcode"
    assert (await queue.enqueue(add, {"a": 1, "b": 2})).payload == {"a": 1, "b": 2}
    assert [job.topic for job in await queue.enqueue_many(add, [{"a": 1, "b": 2}])] == ["add"]
    mixed = await queue.enqueue_many([JobRequest(add, {"a": 1, "b": 2}), JobRequest(transcode, Video("a"))])
    assert [job.topic for job in mixed] == ["add", "video.transcode"]


async def test_an_option_of_another_queue_is_named_by_ours(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="countdown: enqueue has no such option; use delay="):
        await queue.enqueue("mail", countdown=5)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match=r"depends_on: enqueue has no such option; use the steps of a flow"):
        await queue.enqueue("mail", depends_on="another")  # type: ignore[call-overload]
    task = queue.register("mail", lambda: None)
    with pytest.raises(TypeError, match="prioritty: enqueue has no such option; use priority="):
        task.options(prioritty="high")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("delay", r"use add\.sync\.enqueue\(…\), or await add\.enqueue\(…\)"),
        ("apply_async", r"use add\.options\(delay='15m'\)\.sync\.enqueue\(…\)"),
        ("schedule", r"use add\.options\(delay='15m'\)"),
        ("retry", r"use raise RetryAfter\('1m'\) in the handler"),
        ("colour", "a task has no colour$"),
    ],
)
async def test_a_method_of_another_queues_task_is_named_by_ours(queue: Queue, name: str, told: str) -> None:
    @queue.job
    def add(a: int, b: int = 2) -> int:
        return a + b

    with pytest.raises(AttributeError, match=told):
        getattr(add, name)
    assert not hasattr(add, "apply_async")


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("retry_backoff", r"use retry=Retry\(…, backoff='exponential'\)"),
        ("retry_delay", r"use retry=Retry\(…, delay=…\)"),
        ("acks_late", "leave it out: a job whose worker dies always runs again"),
        ("job_timeout", "use timeout="),
        ("result_ttl", "use retention={'delete_after': '1d'}"),
        ("crontab", "use schedule="),
    ],
)
async def test_an_option_of_another_queues_decorator_is_named_by_ours(queue: Queue, option: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=f"mail: {option}: a job has no such option; {told}"):
        queue.register("mail", lambda: None, **cast(Any, {option: 1}))


async def test_what_other_queues_take_with_the_arguments_is_told(queue: Queue) -> None:
    @queue.job
    def add(a: int, b: int) -> int:
        return a + b

    told = r"unexpected keyword argument 'job_timeout'; use @queue\.job\(timeout=…\)"
    with pytest.raises(InvalidPayload, match=told):
        await add.enqueue(1, 2, job_timeout=3)  # type: ignore[call-arg]


async def test_a_function_that_is_no_task_is_told_so(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match=r"topic: add is a function, not a task; put @queue\.job on it"):
        await queue.enqueue(cast(Any, add), {"a": 1})
    with pytest.raises(InvalidInput, match="add is a function"):
        queue.sync.enqueue(cast(Any, add), {"a": 1})


def add(a: int) -> int:
    return a


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("task", r"use @queue\.job"),
        ("enqueue_in", r"use task\.options\(delay="),
        ("add_job", r"use @queue\.job\(schedule="),
    ],
)
async def test_a_method_of_another_queue_is_named_by_ours(queue: Queue, name: str, told: str) -> None:
    with pytest.raises(AttributeError, match=f"a queue has no {name}; {told}"):
        getattr(queue, name)
    with pytest.raises(AttributeError, match="object has no attribute 'nonsense'"):
        queue.nonsense  # type: ignore[attr-defined]  # noqa: B018


async def test_a_topic_is_named_by_keyword(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match=r"@queue\.job: name the topic with @queue\.job\(topic='mail'\)"):
        queue.job("mail")  # type: ignore[call-overload]


async def test_a_connection_belongs_to_all_jobs_of_a_list(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="connection: all jobs share it"):
        await queue.enqueue_many([JobRequest("mail", {}, {"connection": None})])


# -- the sync face -------------------------------------------------------------------------------------------------


def test_a_task_is_enqueued_without_an_event_loop(url: str) -> None:
    queue = Queue(url)

    @queue.job
    def add(a: int, b: int = 2) -> int:
        return a + b

    @queue.job
    def transcode(video: Video) -> int:
        return video.frames

    job = add.options(priority="low").sync.enqueue(1, b=3)
    assert (job.refresh().payload, job.priority) == ({"a": 1, "b": 3}, 25)
    assert [one.payload for one in add.sync.enqueue_many([(1,), {"a": 2}])] == [{"a": 1}, {"a": 2}]
    video = transcode.sync.enqueue(Video("a.mp4"), delay="1h")
    assert video.cancel().status == "cancelled"
    assert len(transcode.options(scope="s").sync.enqueue_many([Video("a"), Video("b")])) == 2
    assert queue.sync.enqueue(add, {"a": 5}).payload == {"a": 5}
    queue.sync.close()


# -- idempotent ------------------------------------------------------------------------------------------------------


async def test_an_idempotent_task_makes_one_job_for_one_payload(queue: Queue, url: str) -> None:
    @queue.job(idempotent=True)
    def charge(account: int, amount: int) -> None: ...

    await queue.save_templates()
    first = await charge.enqueue(7, amount=5)
    again = await charge.enqueue(amount=5, account=7)
    assert (again.id, again.deduplicated) == (first.id, True)
    assert (await charge.enqueue(7, 6)).id != first.id
    assert not (await charge.options(scope_id="other").enqueue(7, 5)).deduplicated
    mine = await charge.options(idempotency_key="mine").enqueue(7, 5)
    assert mine.id != first.id
    async with Queue(url) as other:
        assert (await other.enqueue("charge", {"amount": 5, "account": 7})).id == first.id


async def test_one_attempt_is_one_run_and_none_is_refused(queue: Queue) -> None:
    assert (await queue.enqueue("mail", max_retries=1)).max_attempts == 1
    with pytest.raises(InvalidInput, match="max_retries: '0' is not between 1 and 1,000,000; .* so 1 is one run"):
        await queue.enqueue("mail", max_retries=0)
