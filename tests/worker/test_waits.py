"""A waiting job is set aside no matter what its handler does, goes on where it was, and fails by its policy."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import ended, event_types, in_status, job_where, until
from tests.worker import step_handlers
from tests.worker import wait_handlers as handlers
from tests.worker.conftest import Start
from tests.worker.step_handlers import note, noted
from treadle import Concurrency, Context, Job, JobFailed, Queue, Retry, Snooze, Status, WaitTimeout
from treadle.policy import flow as policy
from treadle.policy import rules
from treadle.store.views import Listing

Kinds = dict[str, tuple[Any, dict[str, Any]]]


def of_all_kinds(coroutine: Any, function: Any) -> Kinds:
    return {
        "coroutine": (coroutine, {}),
        "thread": (function, {}),
        "process": (function, {"process": True}),
        "async process": (coroutine, {"process": True}),
    }


TELLS = of_all_kinds(handlers.tells_and_waits, handlers.tells_and_waits_in_thread)
CATCHES = of_all_kinds(handlers.catches_all, handlers.catches_all_in_thread)
RETRIES = of_all_kinds(handlers.retries_around_a_step, handlers.retries_around_a_step_in_thread)
ASKS = of_all_kinds(handlers.asks, handlers.asks_in_thread)
WAITS = of_all_kinds(step_handlers.waits, step_handlers.waits_in_thread)
OFTEN = Retry(100, backoff="fixed", delay="1ms")
SOON = Retry(3, backoff="fixed", delay="1ms")


def states(job: Job) -> dict[str, str]:
    return {step["id"]: step["status"] for step in job.steps}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "noted")


async def found(queue: Queue, text: str) -> list[Job]:
    return await queue.store.list(Listing(condition=rules.parse_filter(text)))


# -- progress ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TELLS)
async def test_a_handler_keeps_its_own_progress_while_it_waits(
    queue: Queue, start: Start, path: str, kind: str
) -> None:
    function, options = TELLS[kind]
    queue.register("tells", function, **options)
    job = await queue.enqueue("tells", {"path": path})
    await start(queue)
    seen = await in_status(queue, job, Status.WAITING)
    assert (seen.progress, seen.progress_message) == (40, "page 4")
    assert [one.id for one in await found(queue, "progress = 40 && progressMessage = 'page 4'")] == [job.id]
    await queue.signal(job.id, "approve", "yes")
    assert await job.result("30s") == "yes"
    assert (await job.refresh()).progress == 100


async def test_a_handler_keeps_its_own_progress_until_it_reports_again(queue: Queue, start: Start) -> None:
    """While it sleeps, waits for its next attempt, and runs again."""
    go = asyncio.Event()

    @queue.job(retry=Retry(2, backoff="fixed", delay="1ms"))
    async def long(ctx: Context) -> None:
        await ctx.step("first", asyncio.sleep, 0)
        if ctx.attempt == 2:
            await go.wait()
        await ctx.progress(70)
        raise ValueError("once")

    job = await long.enqueue()
    worker = await start(queue)
    await in_status(queue, job, Status.PROCESSING)
    await until(lambda: _retried(queue, job))
    assert (await job.refresh()).progress == 70
    go.set()
    assert (await ended(queue, job)).progress == 70
    worker.stop()
    await worker.done
    await queue.requeue(job.id)
    assert (await job.refresh()).progress == 0


async def _retried(queue: Queue, job: Job) -> bool:
    return "job:retrying" in await event_types(queue, job)


async def test_a_flow_shows_what_it_has_done_before_it_goes_on(queue: Queue, start: Start) -> None:
    """By the formula, in every state."""
    flow = queue.flow("two_thirds", retry=Retry(2, backoff="fixed", delay="1h"))
    for name in ("one", "two"):
        flow.step(name=name)(_nothing)

    @flow.step
    async def three(ctx: Context, payload: dict[str, Any]) -> None:
        raise ValueError("no")

    job = await flow.enqueue({})
    worker = await start(queue)
    await until(lambda: _retried(queue, job))
    assert ((await job.refresh()).status, (await job.refresh()).progress) == (Status.PENDING, 66)
    assert [one.id for one in await found(queue, "progress = 66")] == [job.id]
    worker.stop()
    await worker.done
    await queue.cancel(job.id)
    assert (await job.refresh()).progress == 66
    await queue.requeue(job.id)
    assert (await job.refresh()).progress == 66
    await queue.cancel(job.id)
    await queue.requeue(job.id, mode="from", step="two")
    assert (await job.refresh()).progress == 33
    await queue.cancel(job.id)
    await queue.requeue(job.id, mode="all")
    assert (await job.refresh()).progress == 0


async def _nothing(ctx: Context, payload: dict[str, Any]) -> None: ...


# -- no matter what the handler does -------------------------------------------------------------------------


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize("handler", [handlers.gathers, handlers.gathers_in_a_group])
async def test_gathered_waits_are_not_taken_for_results(
    queue: Queue, start: Start, path: str, handler: Any, process: bool
) -> None:
    queue.register("gathers", handler, process=process, max_attempts=1)
    job = await queue.enqueue("gathers", {"path": path})
    await start(queue)
    seen = await in_status(queue, job, Status.WAITING)
    # A process tells its worker of one wait after the other: the second may follow when the handler is called again.
    assert states(seen) == {"one": "waiting", "two": "waiting"} or (process and states(seen) == {"one": "waiting"})
    await queue.signal(job.id, "one", 1)
    await until(lambda: _waits_again(queue, job))
    assert states(await job.refresh()) == {"one": "completed", "two": "waiting"}
    assert noted(path) == []
    await queue.signal(job.id, "two", 2)
    assert await job.result("30s") == [1, 2]
    assert noted(path) == ["gathered"]


async def _waits_again(queue: Queue, job: Job) -> bool:
    return (await event_types(queue, job)).count("job:waiting") == 2


@pytest.mark.parametrize("kind", CATCHES)
async def test_a_handler_that_catches_everything_is_set_aside(queue: Queue, start: Start, path: str, kind: str) -> None:
    """It returned, but it can't have what it waits for: it is called again, and no step ran without the answer."""
    function, options = CATCHES[kind]
    queue.register("catches", function, max_attempts=1, **options)
    job = await queue.enqueue("catches", {"path": path})
    await start(queue)
    seen = await in_status(queue, job, Status.WAITING)
    assert (states(seen), seen.attempt) == ({"approve": "waiting"}, 0)
    await queue.signal(job.id, "approve", "yes")
    assert await job.result("30s") == "yes"
    assert noted(path) == ["after-yes"]


async def test_a_wait_that_its_handler_gave_up_leaves_nothing(queue: Queue, start: Start) -> None:
    """Another branch was busy, so the job was not set aside."""

    @queue.job(max_attempts=1)
    async def hasty(ctx: Context) -> str:
        go = asyncio.Event()
        busy = asyncio.ensure_future(ctx.step("busy", go.wait))
        try:
            await asyncio.wait_for(ctx.wait_external("approve"), 0.05)
        except TimeoutError:
            go.set()
        await busy
        await ctx.wait_external("other")
        return "done"

    job = await hasty.enqueue()
    await start(queue)
    seen = await in_status(queue, job, Status.WAITING)
    assert states(seen) == {"busy": "completed", "other": "waiting"}


# -- several branches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sleep_first", [True, False])
async def test_an_answer_wakes_a_job_that_sleeps_in_another_branch(
    queue: Queue, start: Start, sleep_first: bool
) -> None:
    @queue.job(max_attempts=1)
    async def both(ctx: Context) -> str:
        async def nap() -> str:
            await ctx.sleep("2h")
            return "slept"

        async def ask() -> str:
            return str(await ctx.wait_external("approve"))

        branches = [asyncio.ensure_future(one()) for one in ([nap, ask] if sleep_first else [ask, nap])]
        done, _ = await asyncio.wait(branches, return_when="FIRST_COMPLETED")
        await asyncio.gather(*branches, return_exceptions=True)
        return str(done.pop().result())

    job = await both.enqueue()
    await start(queue)
    seen = await in_status(queue, job, Status.WAITING)
    assert states(seen) == {"sleep": "waiting", "approve": "waiting"}
    assert seen.waits_until is not None
    await queue.signal(job.id, "approve", "yes")
    await until(lambda: _answered(queue, job))


async def _answered(queue: Queue, job: Job) -> bool:
    return states(await queue.get(job.id))["approve"] == "completed"


async def test_a_step_that_is_due_for_its_next_try_wakes_a_job_that_waits(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "WAIT_IN_PLACE_MS", 0)
    tries: list[int] = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return "done"

    @queue.job(max_attempts=1)
    async def both(ctx: Context) -> list[Any]:
        retry = Retry(3, backoff="fixed", delay="50ms")
        return list(await asyncio.gather(ctx.wait_external("approve"), ctx.step("flaky", flaky, retry=retry)))

    job = await both.enqueue()
    await start(queue)
    await until(lambda: len(tries) == 3)
    seen = await until(lambda: _flaky_done(queue, job))
    assert (seen.attempt, seen.steps[0]["id"]) == (0, "approve")
    await queue.signal(job.id, "approve", "yes")
    assert await job.result("30s") == ["yes", "done"]
    assert len(tries) == 3


async def _flaky_done(queue: Queue, job: Job) -> Job | None:
    now = await queue.get(job.id)
    return now if now.status is Status.WAITING and states(now)["flaky"] == "completed" else None


async def test_a_long_pause_of_one_step_lets_others_finish(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "WAIT_IN_PLACE_MS", 0)
    begun, go = asyncio.Event(), asyncio.Event()

    async def broken() -> None:
        raise ValueError("not yet")

    async def work() -> str:
        begun.set()
        await go.wait()
        return "worked"

    @queue.job(max_attempts=1)
    async def both(ctx: Context) -> None:
        pause = ctx.step("broken", broken, retry=Retry(3, backoff="fixed", delay="1h"))
        await asyncio.gather(pause, ctx.step("work", work))

    job = await both.enqueue()
    await start(queue)
    await begun.wait()
    await until(lambda: _broken_once(queue, job))
    assert (await job.refresh()).status is Status.PROCESSING
    go.set()
    seen = await in_status(queue, job, Status.PENDING)
    assert (seen.attempt, states(seen)) == (0, {"broken": "pending", "work": "completed"})
    assert (await queue.events(job.id))[-1].message == "step broken is tried again in 1h"


async def _broken_once(queue: Queue, job: Job) -> bool:
    return any(step["id"] == "broken" and step["error"] for step in (await queue.get(job.id)).steps)


async def test_a_job_and_the_one_it_waits_for_finish_under_one_key(queue: Queue, start: Start) -> None:
    """A key that lets one of them run at a time: a job that waits does not hold it."""

    @queue.job(concurrency=Concurrency("queue_same_scope", keys=("input.key",), limit=1), max_attempts=1)
    async def family(ctx: Context, payload: dict[str, Any]) -> int:
        if "parent" in payload:
            await queue.signal(payload["parent"], "child_done", 7)
            return 0
        await ctx.step("child", _enqueue_child, ctx)
        return int(await ctx.wait_external("child_done", timeout="1h"))

    parent = await queue.enqueue("family", {"key": "same"})
    await start(queue)
    assert await parent.result("30s") == 7
    child = await queue.get((await parent.refresh()).steps[0]["result"])
    assert child.status is Status.COMPLETED


async def _enqueue_child(ctx: Context) -> str:
    return (await ctx.enqueue("family", {"key": "same", "parent": ctx.job_id})).id


# -- steps in steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*RETRIES, "flow"])
async def test_another_try_of_a_step_makes_the_steps_in_it_again(
    queue: Queue, start: Start, path: str, kind: str
) -> None:
    """They are not duplicates, and completed steps inside them are kept."""
    if kind == "flow":
        flow = queue.flow("around", max_attempts=1)
        flow.step(name="outer", retry=SOON)(handlers.fails_after)
    else:
        function, options = RETRIES[kind]
        queue.register("around", function, max_attempts=1, **options)
    job = await queue.enqueue("around", {"path": path})
    await start(queue)
    assert await job.result("30s") == "done"
    assert noted(path) == ["inner", "outer", "outer", "outer"]
    seen = await job.refresh()
    assert states(seen) == {"outer": "completed", "outer/inner": "completed"}
    assert {step["id"]: step["attempt"] for step in seen.steps} == {"outer": 3, "outer/inner": 1}


@pytest.mark.parametrize("kind", WAITS)
@pytest.mark.every_store
async def test_a_declared_step_waits_and_sleeps(queue: Queue, start: Start, path: str, kind: str) -> None:
    """Its try and the attempt come back, and its flow goes on after it."""
    function, options = WAITS[kind]
    flow = queue.flow("waits", max_attempts=1)
    flow.step(name="ask", retry=Retry(1), **options)(function)
    flow.step(name="last")(_nothing)
    job = await flow.enqueue({"path": path})
    await start(queue)
    seen = await in_status(queue, job, Status.WAITING)
    assert (seen.attempt, seen.steps[0]["attempt"], seen.step, seen.progress) == (0, 0, "ask/approve", 0)
    assert states(seen) == {
        "ask": "pending",
        "ask/approve": "waiting",
        "ask/before": "completed",
        "last": "pending",
    }
    await queue.signal(job.id, "ask/approve", {"id": 3, "words": []})
    await job.result("30s")
    seen = await job.refresh()
    assert (seen.steps[0]["result"], seen.attempt, seen.steps[0]["attempt"]) == ("approved 3", 1, 1)
    assert noted(path) == ["doc1"]


async def test_tries_are_counted_over_a_restart(queue: Queue, start: Start) -> None:
    """A worker that stops between two tries stores how many there were."""
    tries: list[int] = []
    failed = asyncio.Event()

    async def flaky() -> None:
        tries.append(1)
        failed.set()
        raise ValueError("never")

    @queue.job(max_attempts=1)
    async def patient(ctx: Context) -> None:
        await ctx.step("flaky", flaky, retry=Retry(2, backoff="fixed", delay=1.5))

    job = await patient.enqueue()
    first = await start(queue, drain="0s")
    await failed.wait()
    await until(lambda: _failed_once(queue, job))
    first.stop()
    await first.done
    await start(queue)
    await ended(queue, job)
    assert len(tries) == 2


async def _failed_once(queue: Queue, job: Job) -> bool:
    return any("never" in (step["error"] or "") for step in (await queue.get(job.id)).steps)


# -- waits that fail -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*ASKS, "flow"])
async def test_a_wait_that_fails_is_the_jobs_failure_by_its_policy(
    queue: Queue, start: Start, path: str, kind: str
) -> None:
    """The next attempt waits again."""
    if kind == "flow":
        flow = queue.flow("asks", retry=OFTEN)
        flow.external("approve", timeout="100ms")
    else:
        function, options = ASKS[kind]
        queue.register("asks", function, retry=OFTEN, **options)
    job = await queue.enqueue("asks", {"path": path, "timeout": "100ms"})
    await start(queue)
    seen = await job_where(queue, job, lambda now: now.retries > 0 and now.status == Status.WAITING)
    assert (seen.error_type, seen.attempt, states(seen)) == ("WaitTimeout", seen.retries, {"approve": "waiting"})
    retrying = [event for event in await queue.events(job.id) if event.type == "job:retrying"]
    assert retrying[0].message.endswith("WaitTimeout: nobody answered step approve in time")


@pytest.mark.parametrize("kind", [*ASKS, "flow"])
async def test_an_error_as_an_answer_fails_the_job_by_its_policy(
    queue: Queue, start: Start, path: str, kind: str
) -> None:
    if kind == "flow":
        flow = queue.flow("asks", retry=SOON)
        flow.external("approve")
    else:
        function, options = ASKS[kind]
        queue.register("asks", function, retry=SOON, **options)
    job = await queue.enqueue("asks", {"path": path})
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    await queue.signal(job.id, "approve", error="not like this")
    await until(lambda: _waits_again(queue, job))
    seen = await in_status(queue, job, Status.WAITING)
    assert (seen.error_type, seen.attempt, seen.steps[0]["attempt"]) == ("AnswerError", 1, 2)
    await queue.signal(job.id, "approve", "yes")
    assert await job.result("30s") == "yes"
    assert (await job.refresh()).attempt == 2


async def test_a_policy_can_end_the_job_at_the_first_timeout(queue: Queue, start: Start) -> None:
    flow = queue.flow("strict", retry=Retry(3, on={WaitTimeout: False}))
    flow.external("approve", timeout="20ms")
    job = await flow.enqueue({})
    await start(queue)
    with pytest.raises(JobFailed, match="nobody answered step approve in time"):
        await job.result("30s")
    seen = await job.refresh()
    assert (seen.attempt, states(seen), seen.steps[0]["error"]) == (
        1,
        {"approve": "failed"},
        "nobody answered step approve in time",
    )


async def test_a_timeout_that_was_caught_is_remembered(queue: Queue, start: Start, path: str) -> None:
    """The handler went on without an answer: the next attempt does not wait for it again."""
    queue.register("puts_up", handlers.puts_up_with_it, retry=SOON)
    job = await queue.enqueue("puts_up", {"path": path, "timeout": "50ms"})
    await start(queue)
    assert await job.result("30s") == "done"
    assert noted(path) == ["WaitTimeout", "WaitTimeout"]
    assert (await event_types(queue, job)).count("job:waiting") == 1


async def test_a_snooze_in_a_step_costs_it_no_try(queue: Queue, start: Start, path: str) -> None:
    def sleepy() -> str:
        note(path, "called")
        if len(noted(path)) < 4:
            raise Snooze("1ms")
        return "awake"

    flow = queue.flow("sleepy_flow", max_attempts=1)

    @flow.step(retry=Retry(2))
    def one(ctx: Context, payload: dict[str, Any]) -> str:
        return sleepy()

    @queue.job(max_attempts=1)
    def sleepy_job(ctx: Context) -> str:
        return str(ctx.step("one", sleepy, retry=Retry(2)))

    await start(queue)
    for topic in ("sleepy_flow", "sleepy_job"):
        Path(path).unlink(missing_ok=True)
        job = await queue.enqueue(topic, {})
        assert await job.result("30s") == "awake"
        assert (await job.refresh()).steps[0]["attempt"] == 1


async def test_hooks_hear_of_a_wait_and_of_a_condition_that_fail(queue: Queue, start: Start) -> None:
    heard: list[str] = []
    late = queue.flow("late", max_attempts=1)
    late.external("approve", timeout="1ms")
    wrong = queue.flow("wrong", max_attempts=1)
    wrong.step(when=lambda ctx, payload: payload["missing"], retry=SOON)(_nothing)

    @queue.on_failure
    async def failed(ctx: Context, error: BaseException) -> None:
        heard.append(f"{ctx.topic} {getattr(error, 'type', type(error).__name__)}")

    jobs = [await flow.enqueue({}) for flow in (late, wrong)]
    await start(queue)
    for job in jobs:
        await ended(queue, job)
    await until(lambda: len(heard) == 2)
    assert sorted(heard) == ["late WaitTimeout", "wrong KeyError"]
