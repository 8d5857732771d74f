"""Flows whose steps form a graph: branches side by side, joins, ends, failures, waits, cancels, requeues."""

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.waiting import ended, in_status, until
from tests.worker.conftest import Start
from treadle import CancelPolicy, Context, Fail, Flow, Job, Queue, Retry, Snooze, Status
from treadle.model.errors import InvalidInput, JobFailed

AGAIN = Retry(3, backoff="fixed", delay="1ms")
Payload = dict[str, Any]


def states(job: Job) -> dict[str, str]:
    return {step["id"]: step["status"] for step in job.steps}


class Gates:
    """Steps that run until they are let go, in any order."""

    def __init__(self) -> None:
        self.open: dict[str, asyncio.Event] = {}
        self.begun: list[str] = []
        self.running: set[str] = set()
        self.most = 0

    def gate(self, name: str) -> asyncio.Event:
        return self.open.setdefault(name, asyncio.Event())

    def let_go(self, *names: str) -> None:
        for name in names:
            self.gate(name).set()

    async def passes(self, name: str) -> str:
        self.begun.append(name)
        self.running.add(name)
        self.most = max(self.most, len(self.running))
        try:
            await self.gate(name).wait()
        finally:
            self.running.discard(name)
        return name

    def step(self, flow: Flow[Payload], name: str, **options: Any) -> Any:
        @flow.step(name=name, **options)
        async def step(ctx: Context, payload: Payload) -> str:
            return await self.passes(name)

        return step

    async def run(self, *names: str) -> None:
        await until(lambda: self.running == set(names), explain=lambda: f"{self.running} run")


@pytest.fixture
def gates() -> Gates:
    return Gates()


def diamond(queue: Queue, gates: Gates, **options: Any) -> Flow[Payload]:
    """fetch, then embed beside tag, then publish."""
    flow: Flow[Payload] = queue.flow("diamond", retry=AGAIN, **options)
    fetch = gates.step(flow, "fetch")
    embed = gates.step(flow, "embed")
    gates.step(flow, "tag", after=[fetch])
    gates.step(flow, "publish", after=[embed, "tag"])
    return flow


# -- the order ---------------------------------------------------------------------------------------


async def test_branches_run_side_by_side_and_a_join_waits_for_all(queue: Queue, start: Start, gates: Gates) -> None:
    job = await diamond(queue, gates).enqueue({})
    await start(queue, slots=1)
    await gates.run("fetch")
    gates.let_go("fetch")
    await gates.run("embed", "tag")
    await until(lambda: _shows(job, "embed", 25))
    gates.let_go("tag")
    await gates.run("embed")
    await until(lambda: _shows(job, "embed", 50))
    assert states(job) == {"fetch": "completed", "embed": "processing", "tag": "completed", "publish": "pending"}
    gates.let_go("embed", "publish")
    assert await job.result("30s") == "publish"
    assert sorted(gates.begun) == ["embed", "fetch", "publish", "tag"]
    assert set(states(await job.refresh()).values()) == {"completed"}


async def _shows(job: Job, step: str, progress: int) -> bool:
    await job.refresh()
    return (job.step, job.progress) == (step, progress)


async def test_the_current_step_is_the_first_declared_of_those_that_run(
    queue: Queue, start: Start, gates: Gates
) -> None:
    flow: Flow[Payload] = queue.flow("work")
    gates.step(flow, "first", after=[])
    early = asyncio.Event()

    @flow.step(after=[])
    async def second(ctx: Context, payload: Payload) -> None:
        await ctx.progress(90)
        early.set()
        await gates.passes("second")

    job = await flow.enqueue({})
    await start(queue)
    await gates.run("first", "second")
    await early.wait()
    await until(lambda: _shows(job, "first", 0))
    gates.let_go("first")
    await until(lambda: _shows(job, "second", 95))
    gates.let_go("second")
    assert await job.result("30s") == {"first": "first", "second": None}


@pytest.mark.parametrize("parallel", [1, 3])
async def test_at_most_parallel_steps_run_at_once(queue: Queue, start: Start, gates: Gates, parallel: int) -> None:
    flow: Flow[Payload] = queue.flow("wide", parallel=parallel)
    names = [f"s{number}" for number in range(7)]
    for name in names:
        gates.step(flow, name, after=[])
    job = await flow.enqueue({})
    await start(queue, slots=1)
    for number in range(len(names)):
        await gates.run(*names[number : number + parallel])
        gates.let_go(names[number])
    assert await job.result("30s") == {name: name for name in names}
    assert gates.most == parallel


async def test_threads_and_processes_run_side_by_side(queue: Queue, start: Start) -> None:
    together = threading.Barrier(2, timeout=20)
    flow: Flow[Payload] = queue.flow("mixed")

    @flow.step(after=[])
    def one(ctx: Context, payload: Payload) -> int:
        together.wait()
        return 1

    @flow.step(after=[])
    def two(ctx: Context, payload: Payload) -> int:
        together.wait()
        return 2

    flow.step(after=[], process=True)(three)

    @flow.step(after=[one, two, "three"])
    async def total(ctx: Context, payload: Payload) -> int:
        return int(ctx.results["one"] + ctx.results["two"] + ctx.results["three"])

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("30s") == 6


def three(ctx: Context, payload: Payload) -> int:
    return 3


async def test_a_condition_that_is_not_met_skips_its_step_alone(queue: Queue, start: Start) -> None:
    flow: Flow[Payload] = queue.flow("conditional")

    @flow.step
    async def fetch(ctx: Context, payload: Payload) -> int:
        return 3

    @flow.step(after=[fetch], when=lambda ctx, payload: ctx.results["fetch"] > 5)
    async def large(ctx: Context, payload: Payload) -> str:
        return "large"

    @flow.step(after=[fetch], when=lambda ctx, payload: ctx.results["fetch"] <= 5)
    def small(ctx: Context, payload: Payload) -> str:
        return "small"

    @flow.step(after=[large, small])
    async def tell(ctx: Context, payload: Payload) -> list[Any]:
        return [ctx.results["large"], ctx.results["small"]]

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("30s") == [None, "small"]
    assert states(await job.refresh()) == {
        "fetch": "completed",
        "large": "skipped",
        "small": "completed",
        "tell": "completed",
    }


async def test_large_results_of_all_ends_are_in_the_jobs_result(queue: Queue, start: Start) -> None:
    flow: Flow[Payload] = queue.flow("ends", retry=AGAIN)
    tried: list[str] = []

    @flow.step
    async def large(ctx: Context, payload: Payload) -> str:
        return "x" * 100_000

    @flow.step(after=[])
    async def late(ctx: Context, payload: Payload) -> int:
        tried.append("late")
        if len(tried) < 2:
            raise RuntimeError("as told")
        return 2

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("30s") == {"large": "x" * 100_000, "late": 2}


# -- failures ----------------------------------------------------------------------------------------


async def test_when_a_branch_fails_the_others_finish_and_nothing_new_begins(
    queue: Queue, start: Start, gates: Gates
) -> None:
    """What they have done is kept: the next attempt runs only the rest."""
    flow: Flow[Payload] = queue.flow("work", retry=Retry(2, backoff="fixed", delay="1h"))
    runs: Counter[str] = Counter()

    @flow.step(after=[])
    async def broken(ctx: Context, payload: Payload) -> str:
        runs["broken"] += 1
        await gates.passes("broken")
        if not ctx.is_retry:
            raise RuntimeError("as told")
        return "mended"

    gates.step(flow, "slow", after=[])
    gates.step(flow, "next", after=["slow"])
    job = await flow.enqueue({})
    await start(queue)
    await gates.run("broken", "slow")
    gates.let_go("broken")
    await until(lambda: _are(job, {"broken": "failed", "slow": "processing", "next": "pending"}))
    assert (await job.refresh()).status is Status.PROCESSING
    gates.let_go("slow", "next")
    job = await in_status(queue, job, Status.PENDING)
    assert states(await job.refresh()) == {"broken": "failed", "slow": "completed", "next": "pending"}
    assert "as told" in (job.last_error or "")
    await queue.reschedule(job.id, run_at=job.created_at)
    assert await job.result("30s") == {"broken": "mended", "next": "next"}
    assert gates.begun.count("slow") == 1


async def _are(job: Job, expected: dict[str, str]) -> bool:
    return states(await job.refresh()) == expected


async def test_the_first_failure_counts(queue: Queue, start: Start, gates: Gates) -> None:
    flow: Flow[Payload] = queue.flow("work", max_attempts=3)

    @flow.step(after=[])
    async def fatal(ctx: Context, payload: Payload) -> None:
        raise Fail("the first")

    @flow.step(after=[])
    async def second(ctx: Context, payload: Payload) -> None:
        await gates.passes("second")
        raise RuntimeError("the second")

    job = await flow.enqueue({})
    await start(queue)
    await gates.run("second")
    gates.let_go("second")
    with pytest.raises(JobFailed, match="the first"):
        await job.result("30s")
    errors = {step["id"]: step["error"] for step in (await job.refresh()).steps}
    assert "the first" in errors["fatal"]
    assert "the second" in errors["second"]


async def test_a_step_that_is_tried_in_place_does_not_hold_up_the_others(
    queue: Queue, start: Start, gates: Gates
) -> None:
    flow: Flow[Payload] = queue.flow("work", max_attempts=1)
    tries: list[int] = []

    @flow.step(after=[], retry=Retry(2, backoff="fixed", delay="20s"))
    async def flaky(ctx: Context, payload: Payload) -> None:
        tries.append(1)
        raise RuntimeError("flaky")

    gates.step(flow, "other", after=[])
    gates.step(flow, "last", after=["other"])
    gates.let_go("other")
    job = await flow.enqueue({})
    await start(queue)
    await gates.run("last")
    await queue.cancel(job.id)
    job = await ended(queue, job)
    assert (job.status, len(tries)) == (Status.CANCELLED, 1)


async def test_a_snoozed_branch_lets_the_others_go_on(queue: Queue, start: Start, gates: Gates) -> None:
    flow: Flow[Payload] = queue.flow("work", max_attempts=1)
    asked: list[int] = []

    @flow.step(after=[])
    async def later(ctx: Context, payload: Payload) -> str:
        asked.append(ctx.attempt)
        if len(asked) == 1:
            raise Snooze("1h")
        return "later"

    gates.step(flow, "other", after=[])
    gates.step(flow, "rest", after=["other"])
    job = await flow.enqueue({})
    await start(queue)
    await gates.run("other")
    gates.let_go("other")
    await gates.run("rest")
    assert len(asked) == 1
    gates.let_go("rest")
    job = await in_status(queue, job, Status.PENDING)
    assert (job.attempt, states(job)) == (0, {"later": "pending", "other": "completed", "rest": "completed"})
    assert job.run_at - job.created_at < timedelta(hours=1, minutes=1)
    assert job.run_at - job.created_at > timedelta(minutes=55)
    await queue.reschedule(job.id, run_at=job.created_at)
    assert await job.result("30s") == {"later": "later", "rest": "rest"}


# -- waits -------------------------------------------------------------------------------------------


async def test_a_job_is_parked_only_when_every_branch_is_blocked(queue: Queue, start: Start, gates: Gates) -> None:
    flow: Flow[Payload] = queue.flow("work", max_attempts=1)

    @flow.step(after=[])
    async def asks(ctx: Context, payload: Payload) -> str:
        return str(await ctx.wait_external("inner"))

    flow.external("approve", after=[])
    gates.step(flow, "first", after=[])
    gates.step(flow, "second", after=["first"])

    @flow.step(after=["approve", "second", asks])
    async def join(ctx: Context, payload: Payload) -> list[Any]:
        return [ctx.results[name] for name in ("asks", "approve", "second")]

    job = await flow.enqueue({})
    await start(queue)
    await gates.run("first")
    gates.let_go("first")
    await gates.run("second")
    assert (await job.refresh()).status is Status.PROCESSING
    gates.let_go("second")
    job = await in_status(queue, job, Status.WAITING)
    assert states(job) == {
        "asks": "pending",
        "asks/inner": "waiting",
        "approve": "waiting",
        "first": "completed",
        "second": "completed",
        "join": "pending",
    }
    await queue.signal(job.id, "approve", "yes")
    job = await in_status(queue, job, Status.WAITING)
    await queue.signal(job.id, "asks/inner", "too")
    assert await job.result("30s") == ["too", "yes", "second"]
    assert Counter(gates.begun) == {"first": 1, "second": 1}


async def test_calls_that_wait_leave_their_places_to_others(queue: Queue, start: Start, gates: Gates) -> None:
    flow: Flow[Payload] = queue.flow("work", max_attempts=1, parallel=2)

    def asking(name: str) -> None:
        @flow.step(name=name, after=[])
        async def asks(ctx: Context, payload: Payload) -> str:
            return str(await ctx.wait_external("answer"))

    for name in ("a", "b", "c"):
        asking(name)
    gates.step(flow, "work", after=[])
    gates.let_go("work")
    job = await flow.enqueue({})
    await start(queue)
    job = await in_status(queue, job, Status.WAITING)
    assert [name for name, state in states(job).items() if state == "waiting"] == ["a/answer", "b/answer", "c/answer"]
    assert states(job)["work"] == "completed"
    for name in ("c", "a", "b"):
        await queue.signal(job.id, f"{name}/answer", name)
    assert await job.result("30s") == {"a": "a", "b": "b", "c": "c", "work": "work"}


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_a_wait_in_another_kind_of_step_beside_one_that_works(
    queue: Queue, start: Start, gates: Gates, kind: str
) -> None:
    flow: Flow[Payload] = queue.flow("work", max_attempts=1)
    flow.step(after=[], process=kind == "process")(waits_blocking)
    gates.step(flow, "other", after=[])
    job = await flow.enqueue({})
    await start(queue)
    await gates.run("other")
    gates.let_go("other")
    job = await in_status(queue, job, Status.WAITING)
    assert states(job)["waits_blocking/answer"] == "waiting"
    await queue.signal(job.id, "waits_blocking/answer", 7)
    assert await job.result("30s") == {"waits_blocking": 7, "other": "other"}


def waits_blocking(ctx: Context, payload: Payload) -> int:
    return int(ctx.wait_external("answer"))


async def test_a_wait_ends_without_its_row_when_another_branch_fails(queue: Queue, start: Start, gates: Gates) -> None:
    flow: Flow[Payload] = queue.flow("work", max_attempts=1)

    @flow.step(after=[])
    async def asks(ctx: Context, payload: Payload) -> str:
        return str(await ctx.wait_external("inner"))

    @flow.step(after=[])
    async def broken(ctx: Context, payload: Payload) -> None:
        await gates.passes("broken")
        raise RuntimeError("as told")

    job = await flow.enqueue({})
    await start(queue)
    await gates.run("broken")
    gates.let_go("broken")
    with pytest.raises(JobFailed, match="as told"):
        await job.result("30s")
    assert states(await job.refresh()) == {"asks": "pending", "broken": "failed"}


# -- stopping ----------------------------------------------------------------------------------------


async def test_a_cancel_stops_all_branches_but_those_that_must_finish(queue: Queue, start: Start, gates: Gates) -> None:
    flow: Flow[Payload] = queue.flow("work", cancel=CancelPolicy(grace="10s"))
    gates.step(flow, "stops", after=[])
    gates.step(flow, "finishes", after=[], cancelable=False)
    gates.step(flow, "never", after=["finishes"])
    job = await flow.enqueue({})
    await start(queue)
    await gates.run("stops", "finishes")
    await queue.cancel(job.id)
    await gates.run("finishes")
    assert (await job.refresh()).status is Status.CANCELLING
    gates.let_go("finishes", "never")
    job = await ended(queue, job)
    assert job.status is Status.CANCELLED
    assert states(job) == {"stops": "cancelled", "finishes": "completed", "never": "cancelled"}
    assert "never" not in gates.begun


async def test_a_worker_that_stops_gives_the_job_back_with_what_is_done(
    queue: Queue, start: Start, gates: Gates
) -> None:
    job = await diamond(queue, gates, max_attempts=1).enqueue({})
    worker = await start(queue, drain="10ms")
    gates.let_go("fetch", "tag")
    await gates.run("embed")
    worker.stop()
    await worker.done
    assert (await job.refresh()).status is Status.PENDING
    assert states(job) == {"fetch": "completed", "embed": "pending", "tag": "completed", "publish": "pending"}
    gates.let_go("embed", "publish")
    await start(queue)
    assert await job.result("30s") == "publish"
    assert Counter(gates.begun) == {"fetch": 1, "embed": 2, "tag": 1, "publish": 1}


async def test_the_time_of_branches_that_run_together_counts_once(queue: Queue, start: Start) -> None:
    flow: Flow[Payload] = queue.flow("work", timeout="500s", max_attempts=1)
    took: list[float] = []

    for number in range(8):

        @flow.step(name=f"s{number}", after=[])
        async def step(ctx: Context, payload: Payload) -> None:
            began = time.monotonic()
            await asyncio.sleep(0.3)  # so that they overlap
            took.append(time.monotonic() - began)

    @flow.step(after=[f"s{number}" for number in range(8)])
    async def left(ctx: Context, payload: Payload) -> float:
        return ctx._call.left_s  # type: ignore[attr-defined]

    job = await flow.enqueue({})
    await start(queue)
    counted = 500 - await job.result("30s")
    assert min(took) / 2 < counted < sum(took) / 2, "they ran at the same time, so it is near an eighth of the sum"


async def test_a_step_over_its_limit_fails_alone(queue: Queue, start: Start, gates: Gates) -> None:
    flow: Flow[Payload] = queue.flow("work", max_attempts=1)
    gates.step(flow, "slow", after=[], timeout="50ms")
    gates.step(flow, "other", after=[])
    job = await flow.enqueue({})
    await start(queue)
    await until(lambda: _are(job, {"slow": "failed", "other": "processing"}))
    gates.let_go("other")
    with pytest.raises(JobFailed, match="step slow ran longer"):
        await job.result("30s")
    assert states(await job.refresh())["other"] == "completed"


# -- again -------------------------------------------------------------------------------------------


async def test_requeue_from_a_step_runs_all_that_depends_on_it(queue: Queue, start: Start, gates: Gates) -> None:
    job = await diamond(queue, gates).enqueue({})
    await start(queue)
    gates.let_go("fetch", "embed", "tag", "publish")
    await job.result("30s")
    gates.begun.clear()
    plan = await queue.requeue_plan(job.id, mode="from", step="tag", force=True)
    assert plan.steps == ["tag", "publish"]
    await queue.requeue(job.id, mode="from", step="tag", force=True)
    assert await job.result("30s") == "publish"
    assert gates.begun == ["tag", "publish"]


# -- what is refused ---------------------------------------------------------------------------------


async def test_what_is_no_graph_is_refused_when_it_is_declared(queue: Queue) -> None:
    flow: Flow[Payload] = queue.flow("work")
    other: Flow[Payload] = queue.flow("other")

    async def step(ctx: Context, payload: Payload) -> None: ...

    here = flow.step(name="here")(step)
    elsewhere = other.step(name="elsewhere")(step)
    bad: list[tuple[Any, str]] = [
        (["self"], "cycle"),
        (["later"], "no step 'later' is declared before it"),
        ([here, "here"], "named twice"),
        ([elsewhere], "not a step of work"),
        ("here", r"use \['here'\]"),
        (here, "use a list"),
        ([7], "not a step of work"),
    ]
    for after, message in bad:
        with pytest.raises(InvalidInput, match=message):
            flow.step(name="self", after=after)(step)
        with pytest.raises(InvalidInput, match=message):
            flow.external("self", after=after)
    with pytest.raises(InvalidInput, match="declared already"):
        flow.step(name="here", after=[])(step)
    for parallel in (0, -1, 201, True, "8"):
        with pytest.raises(InvalidInput, match="parallel"):
            queue.flow("wide", parallel=parallel)  # type: ignore[arg-type]
    assert [one.name for one in flow.handler.steps] == ["here"]


async def test_the_template_says_what_comes_after_what(queue: Queue) -> None:
    flow = diamond(queue, Gates())
    steps = flow.handler.template.as_json()["steps"]
    assert [step["after"] for step in steps] == [None, None, ["fetch"], ["embed", "tag"]]
    await queue.save_templates()
    saved = await queue.templates.get("diamond")
    assert [step.after for step in saved.template.steps] == [None, None, ("fetch",), ("embed", "tag")]
