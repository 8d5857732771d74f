"""Steps in handlers and declared flows: kept, typed, tried again alone, waited for without a slot."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import deaf_until, ended, in_status, until
from tests.worker import step_handlers as handlers
from tests.worker.conftest import Start
from treadle import CancelPolicy, Context, Flow, Job, Queue, Retry, Status
from treadle.model import steps as limits
from treadle.model.errors import (
    AnswerError,
    DoubledStep,
    InvalidAnswer,
    InvalidInput,
    JobFailed,
    StepEnded,
    TooManySteps,
    UnknownStep,
    WaitTimeout,
    WrongState,
)
from treadle.store.values import StepWrite
from treadle.worker import checkpoints

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "coroutine": (handlers.in_coroutine, {}),
    "thread": (handlers.in_thread, {}),
    "process": (handlers.in_thread, {"process": True}),
    "async process": (handlers.in_coroutine, {"process": True}),
}
WAITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "coroutine": (handlers.waits, {}),
    "thread": (handlers.waits_in_thread, {}),
    "process": (handlers.waits_in_thread, {"process": True}),
}
NESTED_WAITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "coroutine": (handlers.waits_in_a_step, {}),
    "thread": (handlers.waits_in_a_step_in_thread, {}),
    "process": (handlers.waits_in_a_step_in_thread, {"process": True}),
    "async process": (handlers.waits_in_a_step, {"process": True}),
}
CAREFUL: dict[str, tuple[Any, dict[str, Any]]] = {
    "coroutine": (handlers.careful, {}),
    "thread": (handlers.careful_in_thread, {}),
    "process": (handlers.careful_in_thread, {"process": True}),
    "flow": (None, {}),
}
TELLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "coroutine": (handlers.tells_progress_async, {}),
    "thread": (handlers.tells_progress, {}),
    "process": (handlers.tells_progress, {"process": True}),
}
QUICK = CancelPolicy(grace="10ms")
AGAIN = Retry(3, backoff="fixed", delay="1ms")


def states(job: Job) -> dict[str, str]:
    return {step["id"]: step["status"] for step in job.steps}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "noted")


# -- ctx.step ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_finished_step_never_runs_again(queue: Queue, start: Start, path: str, kind: str) -> None:
    function, options = KINDS[kind]
    queue.register("steps", function, retry=AGAIN, **options)
    job = await queue.enqueue("steps", {"path": path, "fails": 2})
    await start(queue)
    assert await job.result("30s") == [0, 1, 2, 9]
    assert handlers.noted(path) == ["doc0", "doc1", "doc2", "doc9", "between", "between", "between"]
    seen = await job.refresh()
    assert [(step["id"], step["status"]) for step in seen.steps] == [("doc", "completed"), ("plain", "completed")]
    assert seen.steps[0]["items"] == {"total": 3, "done": 3, "failed": 0}
    assert seen.steps[1]["result"] == {"id": 9, "words": ["a"] * 9}
    page = await queue.steps(job.id, "doc", offset=1, limit=1)
    assert (page.total, page.items[0]["key"], page.items[0]["result"]) == (3, "1", {"id": 1, "words": ["a"]})
    types = [event.type for event in await queue.events(job.id)]
    assert types.count("job:step:completed") == 4


async def test_a_step_is_not_left_under_way_when_its_handler_returns_without_it(queue: Queue, start: Start) -> None:
    begun: list[asyncio.Task[Any]] = []

    async def shown(job_id: str) -> bool:
        return states(await queue.get(job_id)) == {"slow": "processing"}

    @queue.job(max_attempts=1)
    async def hasty(ctx: Context) -> int:
        begun.append(asyncio.ensure_future(ctx.step("slow", asyncio.Event().wait)))
        await until(lambda: shown(ctx.job_id))
        return 1

    job = await queue.enqueue("hasty")
    await start(queue)
    assert await job.result("30s") == 1
    assert states(await job.refresh()) == {"slow": "pending"}
    begun[0].cancel()
    await asyncio.gather(*begun, return_exceptions=True)


async def test_gathered_steps_never_run_again(queue: Queue, start: Start) -> None:
    ran: list[int] = []

    async def page(number: int) -> int:
        ran.append(number)
        return number

    @queue.job(retry=AGAIN)
    async def pages(ctx: Context) -> int:
        numbers = await asyncio.gather(*(ctx.step("page", page, n, key=n) for n in range(500)))
        if not ctx.is_retry:
            raise RuntimeError("as told")
        return sum(numbers)

    job = await queue.enqueue("pages")
    await start(queue)
    assert await job.result("30s") == sum(range(500))
    assert sorted(ran) == list(range(500))
    assert (await job.refresh()).steps[0]["items"] == {"total": 500, "done": 500, "failed": 0}


@pytest.mark.parametrize("kind", ["flow", "handler"])
async def test_a_step_is_known_soon_after_it_began_and_is_failed_when_its_worker_is_lost(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Long before the progress of a job is written."""
    monkeypatch.setattr(checkpoints, "TICK_S", 3600.0)
    over = asyncio.Event()

    async def slow() -> int:
        await over.wait()
        return 1

    async def shown(state: str) -> bool:
        return states(await job.refresh()) == {"slow": state}

    if kind == "flow":
        flow: Flow[dict[str, Any]] = queue.flow("work", max_attempts=2)

        @flow.step(name="slow")
        async def step(ctx: Context, payload: dict[str, Any]) -> int:
            return await slow()
    else:

        @queue.job(topic="work", max_attempts=2)
        async def work(ctx: Context) -> int:
            return int(await ctx.step("slow", slow))

    job = await queue.enqueue("work", {})
    await start(queue, maintenance=False)
    await until(lambda: shown("processing"))
    await queue.pause("work")  # or the worker would take it again
    [holding] = await queue.store.held_by([job.id])
    assert holding
    await queue.store.close_lease(holding.job.lease)
    await queue.reclaim()
    seen = await job.refresh()
    assert (seen.step, states(seen), seen.steps[0]["error"]) == ("slow", {"slow": "failed"}, "worker lost")
    over.set()


async def test_the_same_step_twice_is_an_error(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def doubled(ctx: Context) -> int:
        await ctx.step("one", asyncio.sleep, 0)
        await ctx.step("one", asyncio.sleep, 0)
        return 1

    job = await queue.enqueue("doubled")
    await start(queue)
    with pytest.raises(JobFailed, match="runs twice in one attempt"):
        await job.result("30s")
    assert (await job.refresh()).error_type == DoubledStep.__name__


@pytest.mark.parametrize(
    ("name", "key"),
    [("", ""), ("x" * 256, ""), ("x" * 10_000, ""), ("a\nb", ""), (7, ""), ("a", "k" * 256), ("a", 1.5)],
)
async def test_bad_names_and_keys(queue: Queue, start: Start, name: Any, key: Any) -> None:
    @queue.job(max_attempts=1)
    async def named(ctx: Context) -> None:
        await ctx.step(name, asyncio.sleep, 0, key=key)

    job = await queue.enqueue("named")
    await start(queue)
    with pytest.raises(JobFailed, match="InvalidInput"):
        await job.result("30s")
    assert (await job.refresh()).steps == []


async def test_a_step_is_tried_by_its_own_policy_first(queue: Queue, start: Start) -> None:
    tries: list[int] = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return "done"

    @queue.job(max_attempts=1)
    async def patient(ctx: Context) -> str:
        return await ctx.step("flaky", flaky, retry=AGAIN)

    job = await queue.enqueue("patient")
    await start(queue)
    assert await job.result("30s") == "done"
    assert (await job.refresh()).steps[0]["attempt"] == 3


async def test_a_step_that_waits_long_gives_its_slot_and_its_attempt_back(queue: Queue, start: Start) -> None:
    async def broken() -> None:
        raise ValueError("not yet")

    @queue.job(max_attempts=1)
    async def patient(ctx: Context) -> None:
        await ctx.step("broken", broken, retry=Retry(3, backoff="fixed", delay="1m"))

    job = await queue.enqueue("patient")
    await start(queue)
    await eventually_event(queue, job.id, "job:snoozed")
    seen = await job.refresh()
    assert (seen.status, seen.attempt) == (Status.PENDING, 0)
    assert (seen.steps[0]["status"], seen.steps[0]["attempt"]) == ("pending", 1)
    assert "not yet" in seen.steps[0]["error"]


async def eventually_event(queue: Queue, job_id: str, type_: str) -> None:
    async def there() -> bool:
        return type_ in [event.type for event in await queue.events(job_id)]

    await until(there)


async def test_a_step_has_its_own_time_limit(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def slow(ctx: Context) -> None:
        await ctx.step("slow", asyncio.sleep, 60, timeout="50ms")

    job = await queue.enqueue("slow")
    await start(queue)
    with pytest.raises(JobFailed, match="step slow ran longer than its limit of 50ms"):
        await job.result("30s")
    assert states(await job.refresh()) == {"slow": "failed"}


async def test_a_cancel_waits_for_a_step_that_must_finish(queue: Queue, start: Start) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def careful() -> str:
        begun.set()
        await go.wait()
        done.append("careful")
        return "ok"

    @queue.job
    async def handler(ctx: Context) -> None:
        await ctx.step("careful", careful, cancelable=False)
        await ctx.step("never", asyncio.sleep, 0)
        done.append("never")

    job = await queue.enqueue("handler")
    await start(queue)
    await begun.wait()
    await queue.cancel(job.id, "stop")
    await in_status(queue, job, Status.CANCELLING)
    go.set()
    await in_status(queue, job, Status.CANCELLED)
    assert done == ["careful"]
    assert states(await job.refresh()) == {"careful": "completed"}


@pytest.mark.parametrize("kind", CAREFUL)
async def test_the_reaper_leaves_a_step_that_must_finish_alone(
    queue: FaultyQueue, start: Start, tmp_path: Path, kind: str
) -> None:
    """The grace counts from its end."""
    payload = {name: str(tmp_path / name) for name in ("path", "begun", "go")}
    if kind == "flow":
        flow = queue.flow("careful", cancel=QUICK)
        flow.step(cancelable=False)(handlers.careful_step)
        flow.external("never")
    else:
        function, options = CAREFUL[kind]
        queue.register("careful", function, cancel=QUICK, **options)
    job = await queue.enqueue("careful", payload)
    await start(queue, reap_interval="20ms")
    await until(Path(payload["begun"]).exists)
    await queue.cancel(job.id, "stop")
    looks = queue.faults.calls["reap"]
    await until(lambda: queue.faults.calls["reap"] > looks + 5)
    assert (await job.refresh()).status is Status.CANCELLING
    Path(payload["go"]).touch()
    seen = await ended(queue, job)
    assert (seen.status, handlers.noted(payload["path"])) == (Status.CANCELLED, ["careful"])
    assert next(step["status"] for step in seen.steps if step["id"].startswith("careful")) == "completed"


async def test_a_step_that_must_finish_has_its_time_limit(queue: Queue, start: Start) -> None:
    flow = queue.flow("bounded", cancel=QUICK)
    begun, let_go = asyncio.Event(), asyncio.Event()

    @flow.step(cancelable=False, timeout="300ms")
    async def deaf(ctx: Context, payload: dict[str, Any]) -> None:
        begun.set()
        await deaf_until(let_go)

    job = await flow.enqueue({})
    await start(queue, reap_interval="20ms")
    await begun.wait()
    await queue.cancel(job.id, "stop")
    seen = await ended(queue, job)
    let_go.set()
    assert (seen.status, states(seen)) == (Status.CANCELLED, {"deaf": "cancelled"})


# -- flows -------------------------------------------------------------------------------------------


@pytest.mark.every_store
async def test_a_flow_of_all_three_kinds(queue: Queue, start: Start, path: str) -> None:
    queue.handlers["mixed"] = handlers.flow.handler
    job = await queue.enqueue("mixed", {"path": path})
    assert states(job) == {"first": "pending", "second": "pending", "third": "pending"}
    assert job.steps[0]["name"] == "In a coroutine"
    await start(queue)
    result = await job.result("30s")
    assert result[0] != result[1]
    assert handlers.noted(path) == ["first", "second", "third", "doc5"]
    seen = await job.refresh()
    assert states(seen) == {
        "first": "completed",
        "second": "completed",
        "third": "completed",
        "third/inner": "completed",
    }
    assert (seen.progress, seen.step) == (100, "third/inner")


async def test_a_retry_runs_only_what_has_not_completed(queue: Queue, start: Start) -> None:
    ran: list[str] = []
    flow = queue.flow("partial", retry=AGAIN)

    @flow.step
    async def one(ctx: Context, payload: dict[str, Any]) -> int:
        ran.append("one")
        await ctx.progress(50)
        return 1

    @flow.step
    async def two(ctx: Context, payload: dict[str, Any]) -> int:
        ran.append("two")
        if ran.count("two") < 3:
            raise ValueError("not yet")
        return ctx.results["one"] + 1

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("30s") == 2
    assert ran == ["one", "two", "two", "two"]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kind", TELLS)
async def test_a_step_shows_how_far_it_is(
    queue: FaultyQueue, start: Start, tmp_path: Path, kind: str, fails: bool
) -> None:
    function, options = TELLS[kind]
    flow = queue.flow("telling", max_attempts=1)
    flow.step(name="first")(handlers.nothing)
    flow.step(name="read", **options)(function)
    flow.step(name="last")(handlers.nothing)
    payload = {name: str(tmp_path / name) for name in ("path", "begun", "go")}
    job = await flow.enqueue({**payload, "fails": fails})
    await start(queue)

    async def told() -> bool:
        step = (await job.refresh()).steps[1]
        return (step["status"], step["progress"], step["message"]) == ("processing", 40, "page 4\\x00")

    await until(told)
    seen = await job.refresh()
    assert (seen.progress, seen.progress_message, seen.step) == (46, "page 4\\x00", "read")
    assert seen.steps[2]["progress"] == 0
    Path(payload["go"]).touch()
    seen = await ended(queue, job)
    expected = ("failed", 60) if fails else ("completed", 100)
    assert (seen.steps[1]["status"], seen.steps[1]["progress"]) == expected
    assert seen.steps[1]["message"] == "page 4\\x00"
    assert seen.progress == (53 if fails else 100)


async def test_progress_of_a_step_costs_no_write_per_report(queue: FaultyQueue, start: Start, tmp_path: Path) -> None:
    flow = queue.flow("telling")
    flow.step(handlers.tells_progress_async)
    payload = {name: str(tmp_path / name) for name in ("path", "begun", "go")}
    writes: list[StepWrite] = []
    queue.faults.before("checkpoint", lambda lease, some: writes.extend(step for one in some for step in one.steps))
    job = await flow.enqueue(payload)
    await start(queue)
    await until(lambda: any(step.progress == 40 for step in writes))
    Path(payload["go"]).touch()
    await job.result("30s")
    assert {step.progress for step in writes} <= {0, 40, 60}, "2,001 reports"


async def test_when(queue: Queue, start: Start) -> None:
    flow = queue.flow("conditional")

    @flow.step
    async def check(ctx: Context, payload: dict[str, Any]) -> bool:
        return bool(payload["go"])

    @flow.step(when=lambda ctx, payload: ctx.results["check"])
    async def perhaps(ctx: Context, payload: dict[str, Any]) -> str:
        return "ran"

    @flow.step
    async def last(ctx: Context, payload: dict[str, Any]) -> str | None:
        return ctx.results["perhaps"]

    await start(queue)
    yes, no = await flow.enqueue_many([{"go": True}, {"go": False}])
    assert (await yes.result("30s"), await no.result("30s")) == ("ran", None)
    assert states(await no.refresh())["perhaps"] == "skipped"


async def test_a_flow_waits_for_an_answer(queue: Queue, start: Start, path: str) -> None:
    flow = queue.flow("approval", max_attempts=1)

    @flow.step
    async def prepare(ctx: Context, payload: dict[str, Any]) -> int:
        handlers.note(path, "prepare")
        return 1

    flow.external("approve", answer=handlers.Doc, timeout="1h")

    @flow.step
    async def publish(ctx: Context, payload: dict[str, Any]) -> str:
        answer = ctx.results["approve"]
        assert isinstance(answer, handlers.Doc)
        return f"by {answer.id}"

    job = await flow.enqueue({})
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    seen = await job.refresh()
    assert (seen.attempt, seen.locked_by, seen.step, seen.progress) == (0, None, "approve", 33)
    with pytest.raises(InvalidAnswer, match="result.words"):
        await queue.signal(job.id, "approve", {"id": 1, "words": 5})
    with pytest.raises(UnknownStep):
        await queue.signal(job.id, "approval", {})
    with pytest.raises(StepEnded):
        await queue.signal(job.id, "prepare", {})
    await queue.signal(job.id, "approve", {"id": 7, "words": []}, answered_by="ann")
    with pytest.raises(StepEnded):
        await queue.signal(job.id, "approve", {"id": 8, "words": []})
    assert await job.result("30s") == "by 7"
    assert handlers.noted(path) == ["prepare"]
    with pytest.raises((StepEnded, WrongState)):
        await queue.signal(job.id, "approve", {"id": 8, "words": []})


async def test_an_early_answer_and_an_error(queue: Queue, start: Start) -> None:
    flow = queue.flow("early", max_attempts=1)
    flow.external("approve", answer=int)

    @flow.step
    async def publish(ctx: Context, payload: dict[str, Any]) -> int:
        return ctx.results["approve"] + 1

    good, bad = await flow.enqueue_many([{}, {}])
    await queue.signal(good.id, "approve", 4)
    await queue.signal(bad.id, "approve", error="not like this")
    await start(queue)
    assert await good.result("30s") == 5
    with pytest.raises(JobFailed, match="not like this"):
        await bad.result("30s")
    seen = await bad.refresh()
    assert (seen.error_type, states(seen)["approve"]) == (AnswerError.__name__, "failed")


async def test_a_wait_without_an_answer(queue: Queue, start: Start) -> None:
    flow = queue.flow("late", max_attempts=1)
    flow.external("approve", timeout="50ms")
    job = await flow.enqueue({})
    await start(queue)
    with pytest.raises(JobFailed, match="nobody answered step approve in time"):
        await job.result("30s")
    assert (await job.refresh()).error_type == WaitTimeout.__name__


@pytest.mark.parametrize("kind", WAITS)
async def test_a_handler_waits_and_sleeps(queue: Queue, start: Start, path: str, kind: str) -> None:
    function, options = WAITS[kind]
    queue.register("waits", function, max_attempts=1, **options)
    job = await queue.enqueue("waits", {"path": path})
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    with pytest.raises(InvalidAnswer, match=r"result"):
        await queue.signal(job.id, "approve", {"id": "no"})
    await queue.signal(job.id, "approve", {"id": 3, "words": []})
    assert await job.result("30s") == "approved 3"
    assert handlers.noted(path) == ["doc1"]
    assert states(await job.refresh()) == {"before": "completed", "approve": "completed", "sleep": "completed"}


@pytest.mark.parametrize("kind", NESTED_WAITS)
async def test_a_step_waits_and_sleeps(queue: Queue, start: Start, path: str, kind: str) -> None:
    """It runs again from its start, with what is stored of the steps in it; its tries and the attempt come back."""
    function, options = NESTED_WAITS[kind]
    queue.register("waits", function, max_attempts=1, **options)
    # Longer than a busy machine takes to park it: a sleep that is over by then parks nothing.
    job = await queue.enqueue("waits", {"path": path, "nap": "500ms"})
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    seen = await job.refresh()
    assert (seen.attempt, states(seen)) == (
        0,
        {"outer": "pending", "outer/before": "completed", "outer/approve": "waiting"},
    )
    await queue.signal(job.id, "outer/approve", {"id": 3, "words": []})
    assert await job.result("30s") == "approved 3"
    assert handlers.noted(path) == ["outer", "doc1", "outer", "outer"]
    seen = await job.refresh()
    assert set(states(seen).values()) == {"completed"}
    assert (seen.attempt, seen.steps[0]["id"], seen.steps[0]["attempt"]) == (1, "outer", 1)


async def test_a_step_that_waits_lets_other_steps_finish(queue: Queue, start: Start) -> None:
    """Also branches of the same name: the job is set aside when none is left that can go on."""
    begun, go = asyncio.Event(), asyncio.Event()

    @queue.job(max_attempts=1)
    async def branches(ctx: Context) -> list[Any]:
        async def work(key: int) -> Any:
            if key < 2:
                return await ctx.wait_external("approve", key=key)
            begun.set()
            await go.wait()
            return "worked"

        return await asyncio.gather(*(ctx.step("one", work, key, key=key) for key in range(3)))

    job = await queue.enqueue("branches")
    await start(queue)
    await begun.wait()
    assert (await job.refresh()).status is Status.PROCESSING
    go.set()
    await in_status(queue, job, Status.WAITING)
    page = await queue.steps(job.id, "one")
    assert {one["key"]: one["status"] for one in page.items} == {"0": "pending", "1": "pending", "2": "completed"}
    await queue.signal(job.id, "one/approve", "a", key=0)
    await in_status(queue, job, Status.WAITING)
    await queue.signal(job.id, "one/approve", "b", key=1)
    assert await job.result("30s") == ["a", "b", "worked"]


async def test_a_wait_is_not_named_like_a_sleep(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def confused(ctx: Context) -> None:
        await ctx.wait_external("sleep")

    job = await queue.enqueue("confused")
    await start(queue)
    with pytest.raises(JobFailed, match=r"InvalidInput: step: 'sleep' is the name of ctx\.sleep's steps"):
        await job.result("30s")


async def test_why_names_the_waits_of_a_job(queue: Queue, start: Start) -> None:
    @queue.job
    async def patient(ctx: Context) -> None:
        waits = [ctx.wait_external("approve", key=7, timeout="1h"), ctx.wait_external("review")]
        await asyncio.gather(*waits, ctx.sleep("2h"))

    @queue.job
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep("2h")

    job, asleep = await queue.enqueue("patient"), await queue.enqueue("sleeper")
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    said = await queue.why(job.id)
    (approve,) = (await queue.steps(job.id, "approve")).items
    (review,) = (await queue.steps(job.id, "review")).items
    (nap,) = (await queue.steps(job.id, "sleep")).items
    assert set(said) == {
        f"it waits for an answer to step approve (7) since {approve['startedAt']}, until {approve['waitsUntil']}",
        f"it waits for an answer to step review since {review['startedAt']}, without a time limit",
        f"it sleeps in step sleep until {nap['waitsUntil']}",
    }
    assert None not in (approve["waitsUntil"], nap["waitsUntil"])
    await eventually_event(queue, asleep.id, "job:snoozed")
    (reason,) = await queue.why(asleep.id)
    assert reason.startswith("it is due at ")


@pytest.mark.parametrize("kind", WAITS)
async def test_a_wrong_answer_that_came_early_is_dropped(
    queue: Queue, start: Start, path: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its schema was not known yet. The job waits for a valid answer, and no attempt is spent."""
    function, options = WAITS[kind]
    queue.register("waits", function, max_attempts=1, **options)
    job = await queue.enqueue("waits", {"path": path})
    await queue.signal(job.id, "approve", {"id": "no"})
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    assert states(await job.refresh()) == {"before": "completed", "approve": "waiting"}
    assert f"job {job.id}: the answer to step approve was dropped: " in caplog.text
    await queue.signal(job.id, "approve", {"id": 3, "words": []})
    assert await job.result("30s") == "approved 3"
    assert handlers.noted(path) == ["doc1"]


async def test_a_handler_can_catch_a_timeout(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def impatient(ctx: Context) -> str:
        try:
            return str(await ctx.wait_external("approve", timeout="30ms"))
        except WaitTimeout:
            return "nobody"

    job = await queue.enqueue("impatient")
    await start(queue)
    assert await job.result("30s") == "nobody"


async def test_a_sleeping_job_is_pending(queue: Queue, start: Start) -> None:
    @queue.job
    async def sleepy(ctx: Context) -> str:
        await ctx.sleep("1h")
        return "awake"

    job = await queue.enqueue("sleepy")
    await start(queue)
    await eventually_event(queue, job.id, "job:snoozed")
    with pytest.raises(UnknownStep, match="it sleeps"):
        await queue.signal(job.id, "sleep", 1)
    seen = await job.refresh()
    assert (seen.status, seen.attempt, (seen.run_at - seen.created_at).total_seconds() > 3000) == (
        Status.PENDING,
        0,
        True,
    )


async def test_no_step_starts_after_a_cancel(queue: Queue, start: Start) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    ran: list[str] = []
    flow = queue.flow("stopped", cancel=CancelPolicy(grace="5s"))

    @flow.step(cancelable=False)
    async def careful(ctx: Context, payload: dict[str, Any]) -> int:
        begun.set()
        await go.wait()
        ran.append("careful")
        return 1

    @flow.step
    async def never(ctx: Context, payload: dict[str, Any]) -> None:
        ran.append("never")

    job = await flow.enqueue({})
    await start(queue)
    await begun.wait()
    await queue.cancel(job.id, "enough")
    await in_status(queue, job, Status.CANCELLING)
    go.set()
    await in_status(queue, job, Status.CANCELLED)
    assert ran == ["careful"]
    assert states(await job.refresh()) == {"careful": "completed", "never": "cancelled"}


async def test_twenty_waits_spend_no_attempt(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=3)
    async def talkative(ctx: Context) -> int:
        return sum([await ctx.wait_external("turn", key=n, answer=int) for n in range(20)])

    job = await queue.enqueue("talkative")
    await start(queue)
    for n in range(20):
        await in_status(queue, job, Status.WAITING)
        await queue.signal(job.id, "turn", n, key=n)
    assert await job.result("30s") == sum(range(20))


async def test_a_parked_jobs_time_limit_stands_still(queue: Queue, start: Start) -> None:
    flow = queue.flow("limited", timeout="2s", max_attempts=1)

    @flow.step
    async def one(ctx: Context, payload: dict[str, Any]) -> None: ...

    flow.external("approve")

    @flow.step
    async def two(ctx: Context, payload: dict[str, Any]) -> str:
        return "in time"

    job = await flow.enqueue({})
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    await asyncio.sleep(2.2)  # longer than the flow may be active
    await queue.signal(job.id, "approve")
    assert await job.result("30s") == "in time"


# -- again -------------------------------------------------------------------------------------------


async def test_requeue_in_python(queue: Queue, start: Start) -> None:
    ran: list[str] = []
    flow = queue.flow("again", max_attempts=1)

    @flow.step
    async def one(ctx: Context, payload: dict[str, Any]) -> None:
        ran.append("one")

    @flow.step
    async def two(ctx: Context, payload: dict[str, Any]) -> str:
        ran.append("two")
        if payload.get("bad"):
            raise ValueError("bad")
        return "good"

    job = await flow.enqueue({"bad": True})
    await start(queue)
    await ended(queue, job)
    assert (await queue.requeue_plan(job.id)).steps == ["two"]
    await queue.requeue(job.id)
    await ended(queue, job)
    assert ran == ["one", "two", "two"]
    await queue.requeue(job.id, payload={"bad": False})
    assert await job.result("30s") == "good"
    assert ran == ["one", "two", "two", "one", "two"]
    assert (await queue.requeue_plan(job.id, force=True)).steps == ["one", "two"]
    with pytest.raises(WrongState):
        await queue.requeue(job.id)


async def test_a_flow_that_outlives_a_deploy(queue: Queue, start: Start, url: str) -> None:
    """One step is added, one removed, one renamed while the job waits."""
    old = queue.flow("deployed")

    @old.step
    async def kept(ctx: Context, payload: dict[str, Any]) -> int:
        return 1

    old.external("approve")

    @old.step
    async def removed(ctx: Context, payload: dict[str, Any]) -> None: ...

    @old.step
    async def before(ctx: Context, payload: dict[str, Any]) -> None: ...

    job = await old.enqueue({})
    worker = await start(queue)
    await in_status(queue, job, Status.WAITING)
    worker.stop()
    await worker.done
    async with Queue(url) as newer:
        ran: list[str] = []
        new = newer.flow("deployed")

        @new.step(name="kept")
        async def still_kept(ctx: Context, payload: dict[str, Any]) -> int:
            ran.append("kept")
            return 2

        new.external("approve")

        @new.step
        async def added(ctx: Context, payload: dict[str, Any]) -> None:
            ran.append("added")

        @new.step(name="after")
        async def renamed(ctx: Context, payload: dict[str, Any]) -> int:
            ran.append("after")
            return int(ctx.results["kept"])

        await start(newer)
        await newer.signal(job.id, "approve")
        assert await newer.result(job.id, "30s") == 1
        assert ran == ["added", "after"]


async def test_an_older_worker_leaves_a_new_step_to_others(queue: Queue, start: Start, url: str) -> None:
    def declare(queue: Queue, names: list[str]) -> None:
        flow = queue.flow("growing")
        for name in names:

            @flow.step(name=name)
            async def step(ctx: Context, payload: dict[str, Any]) -> int:
                return 1

    declare(queue, ["one"])
    await queue.save_templates()
    async with Queue(url) as newer:
        declare(newer, ["one", "two"])
        await newer.save_templates()
        job = await newer.enqueue("growing", {})
        older = await start(queue)
        await eventually_event(queue, job.id, "job:snoozed")
        assert "no worker has the code of step two" in await newer.why(job.id)
        assert states(await newer.get(job.id)) == {"one": "completed", "two": "pending"}
        older.stop()
        await older.done
        await start(newer)
        assert await newer.result(job.id, "30s") == 1
        assert (await newer.get(job.id)).attempt == 1


async def test_a_signal_while_its_step_runs_does_not_start_it_twice(queue: Queue, start: Start) -> None:
    """Neither a signal for a step with code nor an early answer to the next one."""
    begun, go = asyncio.Event(), asyncio.Event()
    ran: list[str] = []
    flow = queue.flow("signalled", max_attempts=1)

    @flow.step
    async def prepare(ctx: Context, payload: dict[str, Any]) -> None:
        ran.append("prepare")
        begun.set()
        await go.wait()

    flow.external("approve", answer=int)

    @flow.step
    async def publish(ctx: Context, payload: dict[str, Any]) -> int:
        ran.append("publish")
        return int(ctx.results["approve"])

    job = await flow.enqueue({})
    await start(queue)
    await begun.wait()
    with pytest.raises(UnknownStep):
        await queue.signal(job.id, "prepare", 1)
    await queue.signal(job.id, "approve", 2)
    with pytest.raises(StepEnded):
        await queue.signal(job.id, "approve", 3)
    go.set()
    assert await job.result("30s") == 2
    assert ran == ["prepare", "publish"]


async def test_a_signal_while_a_handler_runs_does_not_start_it_twice(queue: Queue, start: Start) -> None:
    """The step waits in one branch of a handler that is busy in another."""
    begun, go = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    async def work() -> str:
        ran.append("work")
        begun.set()
        await go.wait()
        return "worked"

    @queue.job(max_attempts=1)
    async def both(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.step("work", work), ctx.wait_external("approve", answer=int)))

    job = await queue.enqueue("both")
    await start(queue)
    await begun.wait()
    await queue.signal(job.id, "approve", 2)
    assert (await job.refresh()).status is Status.PROCESSING
    go.set()
    assert await job.result("30s") == ["worked", 2]
    assert ran == ["work"]


# -- limits ------------------------------------------------------------------------------------------


async def test_the_most_step_names_of_a_job(queue: Queue, start: Start) -> None:
    assert (limits.MAX_NAMES, limits.MAX_ROWS) == (200, 100_000)

    @queue.job(max_attempts=1)
    async def wide(ctx: Context, payload: dict[str, int]) -> None:
        for number in range(payload["names"]):
            await ctx.step(f"step {number}", asyncio.sleep, 0)

    fits, over = await queue.enqueue_many("wide", [{"names": 200}, {"names": 201}])
    await start(queue)
    await fits.result("60s")
    assert len((await fits.refresh()).steps) == 200
    with pytest.raises(JobFailed, match="a job has at most 200 steps; tell runs of one step apart by key="):
        await over.result("60s")
    assert (await over.refresh()).error_type == TooManySteps.__name__


async def test_the_most_runs_of_steps_of_a_job(queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted over all attempts."""
    monkeypatch.setattr(limits, "MAX_ROWS", 30)

    @queue.job(retry=Retry(2, backoff="fixed", delay="1ms"))
    async def long(ctx: Context, payload: dict[str, int]) -> None:
        for turn in range(20 * ctx.attempt):
            await ctx.step("turn", asyncio.sleep, 0, key=turn)
        if ctx.attempt < payload["attempts"]:
            raise ValueError("once more")

    fits, over = await queue.enqueue_many("long", [{"attempts": 1}, {"attempts": 2}])
    await start(queue)
    await fits.result("60s")
    with pytest.raises(JobFailed, match="a job has at most 30 runs of steps; split the work into several jobs"):
        await over.result("60s")
    assert (await over.refresh()).steps[0]["items"] == {"total": 30, "done": 30, "failed": 0}


async def test_a_flow_has_at_most_200_steps(queue: Queue) -> None:
    flow = queue.flow("wide")
    for number in range(200):
        flow.external(f"step {number}")
    with pytest.raises(InvalidInput, match="a flow has at most 200 steps"):
        flow.external("one more")


@pytest.mark.parametrize("declared", [False, True])
async def test_a_result_of_50_mb_fails_its_step_and_stays_out_of_lists(
    queue: Queue, start: Start, declared: bool
) -> None:
    async def large(ctx: Context, payload: dict[str, Any]) -> str:
        return "x" * 50_000_000

    if declared:
        queue.flow("greedy").step(large)
    else:

        @queue.job
        async def greedy(ctx: Context) -> None:
            await ctx.step("large", large, ctx, {})

    job = await queue.enqueue("greedy")
    await start(queue)
    await ended(queue, job)
    seen = await job.refresh()
    assert (seen.status, seen.attempt, seen.steps[0]["status"]) == (Status.FAILED, 1, "failed")
    for error in (seen.last_error, seen.steps[0]["error"]):
        assert error is not None
        assert "the limit is 1,048,576" in error
        assert "xxx" not in error
    assert (seen.steps[0]["result"], seen.steps[0]["resultSize"]) == (None, None)
    shown = [one.as_json() for one in await queue.list()]
    assert len(json.dumps(shown)) < 10_000


# -- bad declarations ----------------------------------------------------------------------------------


async def test_bad_declarations(queue: Queue) -> None:
    flow = queue.flow("bad")

    async def step(ctx: Context, payload: dict[str, Any]) -> None: ...

    flow.step(step)
    for declare in (
        lambda: flow.step(step),
        lambda: flow.external("step"),
        lambda: flow.external("x" * 10_000),
        lambda: flow.step(name="a/b")(step),
        lambda: flow.step(name="other", timeout=0)(step),
        lambda: flow.step(name="other", when="yes")(step),  # type: ignore[call-overload]
        lambda: flow.external("other", answer_rule="((("),
        lambda: queue.flow("bad"),
        lambda: queue.flow("worse", process=True),
        lambda: queue.flow("Bad Name"),
    ):
        with pytest.raises((InvalidInput, ValueError)):
            declare()
    assert [one.name for one in flow.handler.steps] == ["step"]
