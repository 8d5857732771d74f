"""Hooks in the worker's process and middleware around handlers."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from tests.faulty import FaultyQueue
from tests.waiting import ended, for_ever, give_way, stays, until
from tests.worker import process_handlers as handlers
from tests.worker.conftest import Start
from treadle import Context, Fail, InvalidInput, Queue, RemoteError, Retry, Worker
from treadle.queue import steering

AT_ONCE = Retry(2, backoff=[0.001])


class Sum(BaseModel):
    total: int


def keep(queue: Queue, told: list[tuple[str, Any]]) -> None:
    @queue.on_start
    async def started(ctx: Context) -> None:
        told.append(("start", ctx.attempt))

    @queue.on_success
    async def succeeded(ctx: Context, result: Any) -> None:
        told.append(("success", result))

    @queue.on_failure
    async def failed(ctx: Context, error: BaseException) -> None:
        told.append(("failure", error))

    @queue.on_retry
    async def retried(ctx: Context, error: BaseException) -> None:
        told.append(("retry", error))


async def test_hooks_are_told_of_start_and_success_with_the_typed_result(queue: Queue, start: Start) -> None:
    told: list[tuple[str, Any]] = []
    keep(queue, told)

    @queue.job
    async def add(ctx: Context, payload: dict[str, int]) -> Sum:
        assert told == [("start", 1)]
        return Sum(total=payload["a"] + payload["b"])

    await start(queue)
    await add.enqueue({"a": 1, "b": 2})
    await until(lambda: len(told) == 2)
    assert told == [("start", 1), ("success", Sum(total=3))]


async def test_a_hook_after_the_end_sees_the_outcome_stored(queue: Queue, start: Start) -> None:
    statuses: asyncio.Queue[str] = asyncio.Queue()

    @queue.on_success
    @queue.on_failure
    async def look(ctx: Context, what: Any) -> None:
        statuses.put_nowait((await queue.get(ctx.job_id)).status)

    @queue.job(max_attempts=1)
    async def perhaps(payload: dict[str, bool]) -> None:
        if not payload["works"]:
            raise ValueError

    await start(queue, slots=1)
    await perhaps.enqueue({"works": True})
    assert await asyncio.wait_for(statuses.get(), 60) == "completed"
    await perhaps.enqueue({"works": False})
    assert await asyncio.wait_for(statuses.get(), 60) == "failed"


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_retry_and_the_last_failure_come_with_the_exception_itself(
    queue: Queue, start: Start, kind: str
) -> None:
    told: list[tuple[str, Any]] = []
    keep(queue, told)
    error = LookupError("gone")

    async def in_coroutine() -> None:
        raise error

    def in_thread() -> None:
        raise error

    queue.register("fragile", in_coroutine if kind == "coroutine" else in_thread, retry=AT_ONCE)
    await start(queue)
    await ended(queue, await queue.enqueue("fragile"))
    await until(lambda: len(told) == 4)
    assert told == [("start", 1), ("retry", error), ("start", 2), ("failure", error)]


async def test_a_handler_in_a_process_hands_over_a_remote_error_and_its_result(queue: Queue, start: Start) -> None:
    told: list[tuple[str, Any]] = []
    keep(queue, told)
    queue.register("raises", handlers.raises, process=True, max_attempts=1)
    queue.register("plain", handlers.plain, process=True)
    await start(queue, slots=1)
    await queue.enqueue("raises", {"what": "flaky"})
    await until(lambda: len(told) == 2, 30)
    error = told[1][1]
    assert isinstance(error, RemoteError)
    assert error.type == "tests.worker.process_handlers.Flaky"
    assert "in raises" in error.text
    await queue.enqueue("plain", {"x": 7})
    await until(lambda: len(told) == 4, 30)
    assert told[3][1]["x"] == 7


async def test_a_timeout_and_a_refused_payload_are_failures_too(url: str, queue: Queue, start: Start) -> None:
    told: list[tuple[str, Any]] = []
    keep(queue, told)

    @queue.job(timeout="50ms", max_attempts=1)
    async def slow() -> None:
        await for_ever()

    @queue.job
    async def strict(sum: Sum) -> None: ...

    async with Queue(url) as stranger:
        mistyped = await stranger.enqueue("strict", {"total": "many"})
    await start(queue, slots=1, topics=["strict"])
    await ended(queue, mistyped)
    await start(queue, slots=1, topics=["slow"])
    await slow.enqueue()
    await until(lambda: len(told) == 4)
    failures = [what for moment, what in told if moment == "failure"]
    assert [type(error).__name__ for error in failures] == ["InvalidPayload", "TimeoutError"]


async def test_a_topics_own_hook_hears_of_its_jobs_alone(queue: Queue, start: Start) -> None:
    told: list[str] = []

    def notify(ctx: Context, error: BaseException) -> None:
        told.append(f"{ctx.topic}: {error}")

    @queue.job(on_failure=notify)
    async def watched() -> None:
        raise Fail("broken")

    @queue.job
    async def unwatched() -> None:
        raise Fail("broken, too")

    await start(queue, slots=1)
    await ended(queue, await unwatched.enqueue())
    await ended(queue, await watched.enqueue())
    await until(lambda: told)
    assert told == ["watched: broken"]


@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
async def test_a_topics_own_hooks_for_every_kind_of_handler(queue: Queue, start: Start, kind: str) -> None:
    told: list[str] = []

    def note(moment: str) -> Callable[..., None]:
        def hook(ctx: Context, what: Any = None) -> None:
            error = type(what).__name__ if isinstance(what, BaseException) else what
            told.append(f"{moment} {ctx.attempt} {error}")

        return hook

    async def in_coroutine(ctx: Context, payload: dict[str, Any]) -> str:
        return handlers.fails_until(ctx, payload)

    function = in_coroutine if kind == "coroutine" else handlers.fails_until
    hooks = {f"on_{moment}": note(moment) for moment in ("start", "retry", "success", "failure")}
    queue.register("fragile", function, process=kind == "process", retry=AT_ONCE, **hooks)  # type: ignore[arg-type]
    error = "RemoteError" if kind == "process" else "LookupError"
    await start(queue, slots=1)
    await queue.enqueue("fragile", {"attempt": 2})
    await until(lambda: len(told) == 4, 30)
    assert told == ["start 1 None", f"retry 1 {error}", "start 2 None", "success 2 worked"]
    told.clear()
    await queue.enqueue("fragile", {"attempt": 3})
    await until(lambda: len(told) == 4, 30)
    assert told == ["start 1 None", f"retry 1 {error}", "start 2 None", f"failure 2 {error}"]


@pytest.mark.parametrize("lose_answer", [False, True])
async def test_a_hook_runs_at_most_once_when_an_outcome_is_written_again(
    queue: FaultyQueue, start: Start, lose_answer: bool
) -> None:
    told: list[tuple[str, Any]] = []
    keep(queue, told)

    @queue.job
    async def quick(n: int) -> int:
        return n

    worker = await start(queue, slots=1)
    queue.faults.fail("settle", times=1, lose_answer=lose_answer)
    job = await quick.enqueue(1)
    assert await job.result("60s") == 1
    assert await (await quick.enqueue(2)).result("60s") == 2
    worker.stop()
    await worker.done
    assert queue.faults.calls["settle"] >= 3
    assert told.count(("success", 1)) == 1
    assert told.count(("success", 2)) == 1


async def test_a_hook_that_raises_is_logged_and_harms_nothing(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    @queue.on_start
    def broken_start(ctx: Context) -> None:
        raise SystemExit(3)

    @queue.on_success
    async def broken(ctx: Context, result: Any) -> None:
        raise ValueError("a bug in a hook")

    @queue.on_success
    async def fine(ctx: Context, result: Any) -> None:
        told.append(result)

    @queue.job
    async def quick() -> str:
        return "done"

    await start(queue, slots=1)
    for _ in range(2):
        assert await (await quick.enqueue()).result("60s") == "done"
    await until(lambda: told == ["done", "done"])
    logged = [record.message for record in caplog.records if "hook" in record.message]
    assert sum("broken_start" in line for line in logged) == 2
    assert sum("broken of job" in line for line in logged) == 2


async def test_a_sync_hook_does_not_block_the_worker_and_can_enqueue(queue: Queue, start: Start) -> None:
    main = threading.get_ident()
    threads: list[int] = []

    @queue.job
    async def follow_up(payload: dict[str, Any]) -> Any:
        return payload

    def then(ctx: Context, result: Any) -> None:
        threads.append(threading.get_ident())
        ctx.enqueue("follow_up", {"after": result, "first": ctx.payload["x"]})

    @queue.job(on_success=then)
    async def first(payload: dict[str, int]) -> int:
        return payload["x"] + 1

    await start(queue)
    await first.enqueue({"x": 1})

    async def followed() -> Any:
        return [job for job in await queue.list(topic="follow_up") if job.status == "completed"]

    (job,) = await until(followed)
    assert job.result_value == {"after": 2, "first": 1}
    assert main not in threads


async def test_hooks_that_still_run_when_the_worker_stops_may_finish(queue: Queue, start: Start) -> None:
    begun, let_go, told = asyncio.Event(), asyncio.Event(), []

    @queue.on_success
    async def slow(ctx: Context, result: Any) -> None:
        begun.set()
        await let_go.wait()
        told.append(result)

    @queue.job
    async def quick() -> str:
        return "done"

    worker = await start(queue)
    await quick.enqueue()
    await asyncio.wait_for(begun.wait(), 60)
    worker.stop()
    await stays(lambda: not worker.done.done(), 0.05)
    let_go.set()
    await worker.done
    assert told == ["done"]


async def test_a_job_that_is_cancelled_while_its_start_hook_runs_never_begins(queue: Queue, start: Start) -> None:
    begun, ran = asyncio.Event(), []

    @queue.on_start
    async def endless(ctx: Context) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    @queue.job
    async def quick() -> None:
        ran.append(1)

    await start(queue)
    job = await quick.enqueue()
    await asyncio.wait_for(begun.wait(), 60)
    await job.cancel("enough")
    assert (await ended(queue, job)).status == "cancelled"
    assert not ran


async def test_jobs_that_did_not_end_here_run_no_hooks(queue: Queue, start: Start) -> None:
    told: list[tuple[str, Any]] = []
    keep(queue, told)
    let_go = asyncio.Event()

    @queue.job
    async def long() -> None:
        await let_go.wait()

    worker = await start(queue, slots=1, lease="200ms", maintenance=False)
    job = await long.enqueue()
    await until(lambda: told)
    await steering.release(queue.store, [job.id])
    await until(lambda: worker.metrics.lease_losses)
    worker.stop()
    await worker.done
    assert [moment for moment, _ in told if moment != "start"] == []


# -- the worker's own ------------------------------------------------------------------------------------


async def test_worker_hooks_open_before_the_first_job_and_close_after_the_last(queue: Queue, start: Start) -> None:
    told: list[Any] = []
    let_go = asyncio.Event()

    @queue.on_worker_start
    async def open_pool() -> None:
        told.append("open")

    @queue.on_worker_start
    def load_model(worker: Worker) -> None:
        told.append(worker.name)

    @queue.on_worker_stop
    async def broken() -> None:
        raise ValueError

    @queue.job
    async def work() -> None:
        told.append("job")
        await let_go.wait()
        told.append("done")

    queue.on_worker_stop(lambda: told.append("close"))
    queue.hooks.worker_stop.reverse()
    worker = await start(queue, name="ada")
    await work.enqueue()
    await until(lambda: "job" in told)
    worker.stop()
    await stays(lambda: told == ["open", "ada", "job"], 0.05)
    let_go.set()
    await worker.done
    assert told == ["open", "ada", "job", "done", "close"]


async def test_a_worker_does_not_start_if_a_start_hook_raises(queue: Queue) -> None:
    closed: list[int] = []
    queue.on_worker_stop(lambda: closed.append(1))

    @queue.on_worker_start
    async def broken() -> None:
        raise ConnectionError("no pool")

    with pytest.raises(ConnectionError, match="no pool"):
        await Worker(queue).run()
    assert not closed, "nothing was opened"


def test_what_is_no_function_is_refused(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    with pytest.raises(InvalidInput, match="on_failure: 'mail' is not a function"):
        queue.job(on_failure="mail")(handlers.plain)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="on_start"):
        queue.on_start(7)  # type: ignore[type-var]


# -- middleware ------------------------------------------------------------------------------------------

tenant = contextvars.ContextVar("tenant", default="nobody")


async def test_middleware_wraps_coroutines_in_the_order_of_registration(queue: Queue, start: Start) -> None:
    order: list[str] = []

    @queue.middleware
    async def outer(ctx: Context, call: Callable[[], Any]) -> Any:
        order.append(f"outer {ctx.topic} {ctx.payload['x']}")
        token = tenant.set("ada")
        try:
            return {"wrapped": await call()}
        finally:
            tenant.reset(token)
            order.append("outer ends")

    @queue.middleware
    async def inner(ctx: Context, call: Callable[[], Any]) -> Any:
        order.append("inner")
        await give_way()
        return await call()

    @queue.job
    async def who(payload: dict[str, int]) -> Any:
        order.append("handler")
        return tenant.get()

    await start(queue)
    assert await (await who.enqueue({"x": 1})).result("60s") == {"wrapped": "ada"}
    assert order == ["outer who 1", "inner", "handler", "outer ends"]


async def test_middleware_can_translate_an_error(queue: Queue, start: Start) -> None:
    @queue.middleware
    async def translate(ctx: Context, call: Callable[[], Any]) -> Any:
        try:
            return await call()
        except KeyError as error:
            raise Fail(f"no such {error}") from error

    @queue.job
    async def look_up() -> None:
        raise KeyError("customer")

    await start(queue)
    job = await ended(queue, await look_up.enqueue())
    assert (job.status, job.attempt, job.error_type) == ("failed", 1, "Fail")


async def test_each_form_of_middleware_wraps_its_kind_of_handlers(queue: Queue, start: Start) -> None:
    @queue.middleware
    async def for_coroutines(ctx: Context, call: Callable[[], Any]) -> Any:
        return ["async", await call()]

    @queue.middleware
    def for_functions(ctx: Context, call: Callable[[], Any]) -> Any:
        return ["sync", threading.current_thread() is threading.main_thread(), call()]

    @queue.job
    async def coroutine() -> Any:
        return "c"

    @queue.job
    def function() -> Any:
        return "f"

    await start(queue)
    assert await (await coroutine.enqueue()).result("60s") == ["async", "c"]
    assert await (await function.enqueue()).result("60s") == ["sync", False, "f"]


async def test_middleware_of_a_handler_in_a_process_runs_in_that_process(queue: Queue, start: Start) -> None:
    queue.middleware(handlers.signed)
    queue.middleware(handlers.signed_async)
    queue.register("plain", handlers.plain, process=True)
    queue.register("coroutine", handlers.coroutine, process=True)
    await start(queue, slots=1)
    result = await (await queue.enqueue("plain", {"x": 1})).result("30s")
    assert result["signed"] == ["plain", result["pid"]]
    assert await (await queue.enqueue("coroutine")).result("30s") == result["pid"] + 1_000_000


async def test_middleware_that_a_process_cannot_find_is_refused_at_the_start(queue: Queue) -> None:
    @queue.middleware
    def local(ctx: Context, call: Callable[[], Any]) -> Any:
        return call()

    queue.register("plain", handlers.plain, process=True)
    with pytest.raises(InvalidInput, match="local can't run in a process"):
        await Worker(queue).run()
