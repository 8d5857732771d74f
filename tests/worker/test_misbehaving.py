"""Whatever the code of a program raises: its attempt is settled, the slot and the worker live, other topics go on."""

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import ended, event_types, for_ever, in_status, until
from tests.worker import misbehaving as bad
from tests.worker.conftest import Start, StartedWorker
from treadle import Context, Job, Queue, Retry
from treadle.store.values import Settlement

SLOTS = 2
HANDLERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "coroutine": (bad.handler, {}),
    "coroutine that waits": (bad.patient_handler, {}),
    "thread": (bad.plain_handler, {}),
    "process": (bad.plain_handler, {"process": True}),
    "async process": (bad.patient_handler, {"process": True}),
    "step": (bad.step_in_coroutine, {}),
    "plain step": (bad.plain_step_in_coroutine, {}),
    "gathered steps": (bad.gathered_steps, {}),
    "step in a thread": (bad.step_in_function, {}),
    "step in a process": (bad.step_in_function, {"process": True}),
    "steps in an async process": (bad.gathered_steps, {"process": True}),
    "result": (bad.returns_written, {}),
    "result in a thread": (bad.returns_written_in_thread, {}),
    "result in a process": (bad.returns_written_in_thread, {"process": True}),
}
STEPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "coroutine": (bad.patient_handler, {}),
    "thread": (bad.plain_handler, {}),
    "process": (bad.plain_handler, {"process": True}),
    "steps": (bad.gathered_steps, {}),
}


@pytest.fixture
def queue(queue: FaultyQueue) -> FaultyQueue:
    """With a topic whose jobs wait for each other."""
    met: list[asyncio.Barrier] = []

    @queue.job(topic="meet")
    async def meet() -> str:
        met[:] = met or [asyncio.Barrier(SLOTS)]
        async with asyncio.timeout(60):
            await met[0].wait()
        return "here"

    return queue


async def all_ended(queue: Queue, topic: str, prefix: str = "") -> dict[str, str]:
    """How a job of this topic has ended for each error."""
    jobs = {error: await queue.enqueue(topic, {"error": prefix + error}, max_attempts=1) for error in bad.ERRORS}
    return {error: (await ended(queue, job)).status for error, job in jobs.items()}


async def assert_alive(queue: Queue, worker: StartedWorker) -> None:
    """All its slots take jobs, and it holds no other."""
    for job in [await queue.enqueue("meet") for _ in range(SLOTS)]:
        assert await job.result("60s") == "here"
    await until(lambda: worker.metrics.free_slots() == SLOTS)
    assert not worker.done.done()
    assert (await queue.stats()).processing == 0


ALL_FAILED = dict.fromkeys(bad.ERRORS, "failed")
ALL_COMPLETED = dict.fromkeys(bad.ERRORS, "completed")


@pytest.mark.parametrize("kind", HANDLERS)
async def test_a_handler_may_raise_anything(queue: Queue, start: Start, kind: str) -> None:
    function, options = HANDLERS[kind]
    queue.register("bad", function, **options)
    worker = await start(queue, slots=SLOTS)
    assert await all_ended(queue, "bad") == ALL_FAILED
    await assert_alive(queue, worker)


async def test_the_error_of_a_job_is_what_was_raised(queue: Queue, start: Start) -> None:
    queue.register("bad", bad.patient_handler)
    await start(queue)
    job = await ended(queue, await queue.enqueue("bad", {"error": "KeyboardInterrupt"}, max_attempts=1))
    assert job.error_type == "KeyboardInterrupt"
    job = await ended(queue, await queue.enqueue("bad", {"error": "NoTime"}, max_attempts=1))
    assert job.error_type == "tests.worker.misbehaving.NoTime"


@pytest.mark.parametrize("kind", STEPS)
async def test_a_declared_step_may_raise_anything(queue: Queue, start: Start, kind: str) -> None:
    function, options = STEPS[kind]
    flow = queue.flow("bad")
    flow.step(name="first", **options)(function)
    flow.step(name="second")(bad.quiet)
    worker = await start(queue, slots=SLOTS)
    assert await all_ended(queue, "bad") == ALL_FAILED
    await assert_alive(queue, worker)


@pytest.mark.parametrize("kind", ["coroutine", "function", "awaitable"])
@pytest.mark.parametrize("external", [False, True])
async def test_a_when_may_raise_anything(queue: Queue, start: Start, kind: str, external: bool) -> None:
    async def in_coroutine(ctx: Context, payload: dict[str, str]) -> bool:
        await bad.misbehaves(payload["error"])
        return True

    def in_function(ctx: Context, payload: dict[str, str]) -> bool:
        bad.misbehave(payload["error"])
        return True

    whens: dict[str, Callable[..., Any]] = {
        "coroutine": in_coroutine,
        "function": in_function,
        "awaitable": functools.partial(lambda ask, ctx, payload: ask(ctx, payload), in_coroutine),
    }
    flow = queue.flow("bad")
    if external:
        flow.external("only", when=whens[kind])
    else:
        flow.step(name="only", when=whens[kind])(bad.quiet)
    worker = await start(queue, slots=SLOTS)
    assert await all_ended(queue, "bad") == ALL_FAILED
    await assert_alive(queue, worker)


@pytest.mark.parametrize("options", [{}, {"process": True}], ids=["here", "in a process"])
@pytest.mark.parametrize("function", [bad.takes_checked, bad.takes_checked_in_thread])
async def test_a_payload_type_may_raise_anything(
    queue: Queue, start: Start, function: Callable[..., Any], options: dict[str, Any]
) -> None:
    async with Queue(queue.url) as stranger:
        jobs = [await stranger.enqueue("bad", {"error": error}, max_attempts=1) for error in bad.ERRORS]
    queue.register("bad", function, **options)
    worker = await start(queue, slots=SLOTS)
    assert [(await ended(queue, job)).status for job in jobs] == ["failed"] * len(jobs)
    await assert_alive(queue, worker)


@pytest.mark.parametrize("moment", ["on_start", "on_success", "on_failure", "on_retry"])
@pytest.mark.parametrize("waits", [False, True], ids=["function", "coroutine"])
async def test_a_hook_may_raise_anything_and_changes_nothing(
    queue: Queue, start: Start, moment: str, waits: bool
) -> None:
    told: list[str] = []

    async def in_coroutine(ctx: Context, *values: object) -> None:
        await bad.misbehaves(ctx.payload["error"])

    def in_function(ctx: Context, *values: object) -> None:
        bad.misbehave(ctx.payload["error"])

    getattr(queue, moment)(in_coroutine if waits else in_function)
    getattr(queue, moment)(lambda ctx, *values: told.append(ctx.payload["error"]))
    retries = 2 if moment == "on_retry" else 1

    @queue.job(topic="bad", max_attempts=retries)
    async def fails(payload: dict[str, str]) -> None:
        if moment in ("on_failure", "on_retry"):
            raise LookupError

    worker = await start(queue, slots=SLOTS)
    jobs = [await queue.enqueue("bad", {"error": error}) for error in bad.ERRORS]
    await until(lambda: sorted(told) == sorted(bad.ERRORS), explain=lambda: str(told))
    if moment != "on_retry":
        expected = "failed" if moment == "on_failure" else "completed"
        assert {(await ended(queue, job)).status for job in jobs} == {expected}
    await assert_alive(queue, worker)


@pytest.mark.parametrize(
    ("middleware", "handler"),
    [(bad.middleware, bad.quiet), (bad.plain_middleware, bad.quiet_in_thread)],
    ids=["coroutine", "function"],
)
@pytest.mark.parametrize("options", [{}, {"process": True}], ids=["here", "in a process"])
async def test_middleware_may_raise_anything(
    queue: Queue, start: Start, middleware: Callable[..., Any], handler: Callable[..., Any], options: dict[str, Any]
) -> None:
    queue.middleware(middleware)
    queue.register("bad", handler, **options)
    worker = await start(queue, slots=SLOTS)
    assert await all_ended(queue, "bad") == ALL_FAILED
    await assert_alive(queue, worker)


@pytest.mark.parametrize("flow", [False, True])
async def test_a_retry_policy_may_raise_anything(queue: Queue, start: Start, flow: bool) -> None:
    policies = {error: bad.Moody(3) for error in bad.ERRORS}
    for error, policy in policies.items():
        object.__setattr__(policy, "error", error)
        if flow:
            queue.flow(error.lower(), retry=policy).step(name="only")(bad.handler)
        else:
            queue.register(error.lower(), bad.handler, retry=policy)
    worker = await start(queue, slots=SLOTS)
    jobs = [await queue.enqueue(error.lower(), {"error": "MemoryError"}) for error in bad.ERRORS]
    assert [(await ended(queue, job)).status for job in jobs] == ["failed"] * len(jobs)
    await assert_alive(queue, worker)


@pytest.mark.parametrize("error", ["MemoryError", "SystemExit", "CancelledError"])
async def test_a_listener_to_outcomes_may_raise_and_stops_nothing(queue: Queue, error: str) -> None:
    told: list[Settlement] = []
    worker = StartedWorker(queue, slots=SLOTS)

    def listen(settlements: Any) -> None:
        told.extend(settlements)
        bad.misbehave(error)

    worker.on_settled = listen
    worker.done = asyncio.create_task(worker.run())
    await assert_alive(queue, worker)
    await assert_alive(queue, worker)
    assert len(told) == 2 * SLOTS
    assert worker.metrics.lease_losses == 0
    worker.stop()
    await worker.done


# -- a `when` that takes long ----------------------------------------------------------------------------------------


async def slow_job(queue: Queue, when: Callable[..., Any], **options: Any) -> Job:
    flow = queue.flow("slow", max_attempts=1)
    flow.step(name="only", when=when, **options)(bad.quiet)
    return await queue.enqueue("slow", {"error": ""})


async def endless(ctx: Context, payload: object) -> bool:
    await for_ever()
    return True


async def test_a_when_has_the_time_limit_of_its_step(queue: Queue, start: Start) -> None:
    job = await slow_job(queue, endless, timeout="50ms")
    worker = await start(queue, slots=SLOTS)
    job = await ended(queue, job)
    assert (job.status, job.error_type) == ("failed", "TimeoutError")
    assert "step only ran longer than its limit of 50ms" in (job.last_error or "")
    await assert_alive(queue, worker)


async def test_a_when_has_the_time_limit_of_its_flow(queue: Queue, start: Start) -> None:
    flow = queue.flow("slow", max_attempts=1, timeout="50ms")
    flow.external("only", when=endless)
    worker = await start(queue, slots=SLOTS)
    job = await ended(queue, await queue.enqueue("slow"))
    assert (job.status, job.error_type) == ("failed", "TimeoutError")
    await assert_alive(queue, worker)


@pytest.mark.parametrize("cancelable", [True, False])
async def test_a_when_hears_a_cancel(queue: Queue, start: Start, cancelable: bool) -> None:
    asked = asyncio.Event()

    async def when(ctx: Context, payload: object) -> bool:
        asked.set()
        return await endless(ctx, payload)

    job = await slow_job(queue, when, cancelable=cancelable)
    worker = await start(queue, slots=SLOTS)
    await asyncio.wait_for(asked.wait(), 60)
    await queue.cancel(job.id)
    job = await ended(queue, job, 20)  # sooner than the grace
    assert job.status == "cancelled"
    assert {step["status"] for step in job.steps} == {"cancelled"}
    await assert_alive(queue, worker)


async def test_a_when_that_blocks_holds_up_its_own_slot_alone(queue: Queue, start: Start) -> None:
    let_go = threading.Event()

    def when(ctx: Context, payload: object) -> bool:
        return let_go.wait(60)

    @queue.job
    async def other() -> str:
        return "done"

    job = await slow_job(queue, when)
    worker = await start(queue, slots=SLOTS)
    await in_status(queue, job, "processing")
    assert await (await other.enqueue()).result("60s") == "done"
    let_go.set()
    assert (await ended(queue, job)).status == "completed"
    await assert_alive(queue, worker)


async def test_a_when_that_is_asked_again_decides_anew(queue: Queue, start: Start) -> None:
    said: list[bool] = []

    def when(ctx: Context, payload: object) -> bool:
        said.append(len(said) > 0)
        if not said[-1]:
            raise LookupError
        return True

    flow = queue.flow("moody", retry=Retry(2, backoff=[0.001]))
    flow.step(name="only", when=when)(bad.quiet)
    await start(queue)
    job = await ended(queue, await queue.enqueue("moody", {"error": ""}))
    assert (job.status, said) == ("completed", [False, True])
    assert "job:retrying" in await event_types(queue, job)
