"""A handler waits for children: set aside, woken once, with their results or with ChildFailed."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import in_status, until
from tests.worker import child_handlers as handlers
from tests.worker.child_handlers import CHILD
from tests.worker.conftest import Start
from treadle import (
    ChildFailed,
    Concurrency,
    Context,
    DoubledStep,
    InvalidInput,
    Job,
    JobFailed,
    Queue,
    Retry,
    Status,
)
from treadle.policy import rules
from treadle.store.views import Listing

Kinds = dict[str, tuple[Any, dict[str, Any]]]
SOON = Retry(3, backoff="fixed", delay="1ms")
ONCE = Retry(1)


def of_all_kinds(coroutine: Any, function: Any) -> Kinds:
    return {
        "coroutine": (coroutine, {}),
        "thread": (function, {}),
        "process": (function, {"process": True}),
        "async process": (coroutine, {"process": True}),
    }


RUNS = of_all_kinds(handlers.runs, handlers.runs_in_thread)
RUNS_MANY = of_all_kinds(handlers.runs_many, handlers.runs_many_in_thread)
IN_A_STEP = of_all_kinds(handlers.runs_in_a_step, handlers.runs_in_a_step_in_thread)
CATCHES = of_all_kinds(handlers.catches, handlers.catches_in_thread)
ENQUEUES = of_all_kinds(handlers.enqueues, handlers.enqueues_in_thread)


async def children_of(queue: Queue, job: Job) -> Sequence[Job]:
    """The oldest first."""
    found = await queue.store.list(Listing(condition=rules.parse_filter(f"parentId = '{job.id}'"), limit=1000))
    return found[::-1]


@pytest.fixture
def double(queue: Queue) -> list[int]:
    """What the children were given."""
    seen: list[int] = []

    @queue.job(topic=CHILD)
    async def double(n: int) -> int:
        seen.append(n)
        return n * 2

    return seen


# -- one ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RUNS)
async def test_a_handler_gets_its_childs_result(queue: Queue, start: Start, double: list[int], kind: str) -> None:
    function, options = RUNS[kind]
    queue.register("parent", function, **options)
    job = await queue.enqueue("parent", {"n": 21}, scope="user", scope_id="u1", created_by="ann", priority="high")
    await start(queue)
    assert await job.result("30s") == 42
    [child] = await children_of(queue, job)
    assert (child.scope, child.scope_id, child.created_by, child.priority) == ("user", "u1", "ann", 75)
    assert double == [21]


@pytest.mark.parametrize("kind", IN_A_STEP)
async def test_a_step_waits_for_a_child(queue: Queue, start: Start, double: list[int], kind: str) -> None:
    function, options = IN_A_STEP[kind]
    queue.register("parent", function, **options)
    job = await queue.enqueue("parent", {"n": 4})
    await start(queue)
    assert await job.result("30s") == 8
    assert [step["id"] for step in (await job.refresh()).steps] == ["inner", f"inner/{CHILD}"]
    assert double == [4]


@pytest.mark.parametrize("kind", CATCHES)
async def test_a_handler_hears_that_its_child_failed(queue: Queue, start: Start, kind: str) -> None:
    @queue.job(retry=ONCE)
    async def fails() -> None:
        raise ValueError("no luck")

    function, options = CATCHES[kind]
    queue.register("parent", function, **options)
    job = await queue.enqueue("parent", {})
    await start(queue)
    text, id = await job.result("30s")
    [child] = await children_of(queue, job)
    assert id == child.id
    assert text == f"fails {child.id} failed: ValueError: no luck"


async def test_a_parent_holds_nothing_while_its_child_runs(queue: Queue, start: Start) -> None:
    go = asyncio.Event()

    @queue.job
    async def child() -> str:
        await go.wait()
        return "done"

    @queue.job
    async def parent(ctx: Context) -> Any:
        return await ctx.run(child)

    job = await parent.enqueue()
    await start(queue, slots=1)
    found = await in_status(queue, job, Status.WAITING)
    assert (found.attempt, found.locked_by) == (0, None)
    [made] = await children_of(queue, job)
    assert await queue.why(job.id) == [f"it waits for its child {made.id} of child (processing)"]
    go.set()
    assert await job.result("30s") == "done"


async def test_parent_and_child_under_one_key_finish(queue: Queue, start: Start) -> None:
    one = Concurrency("queue_same_scope", keys=["payload.key"], limit=1)

    @queue.job(concurrency=one)
    async def tree(ctx: Context, key: str, depth: int) -> int:
        return 1 + await ctx.run(tree, {"key": key, "depth": depth - 1}) if depth else 0

    jobs = [await tree.enqueue(key="a", depth=3) for _ in range(3)]
    await start(queue, slots=4)
    assert [await job.result("60s") for job in jobs] == [3, 3, 3]


async def test_results_come_in_the_childs_type(queue: Queue, start: Start) -> None:
    from pydantic import BaseModel

    class Size(BaseModel):
        wide: int

    @queue.job
    async def child(path: str) -> Size:
        return Size(wide=len(path))

    @queue.job
    async def parent(ctx: Context) -> list[int]:
        one = await ctx.run(child, {"path": "abc"})
        assert isinstance(one, Size)
        many = await ctx.map("sizes", child, ["a", "bb"])
        return [one.wide, *(size.wide for size in many)]

    job = await parent.enqueue()
    await start(queue)
    assert await job.result("30s") == [3, 1, 2]


async def test_an_uncaught_failure_fails_the_attempt_and_the_next_one_makes_another_child(
    queue: Queue, start: Start
) -> None:
    luck = iter([False, True])

    @queue.job(retry=ONCE)
    async def child() -> str:
        if not next(luck):
            raise ValueError("no luck")
        return "lucky"

    @queue.job(retry=SOON)
    async def parent(ctx: Context) -> Any:
        return await ctx.run(child)

    job = await parent.enqueue()
    await start(queue)
    assert await job.result("30s") == "lucky"
    assert [one.status for one in await children_of(queue, job)] == [Status.FAILED, Status.COMPLETED]
    assert (await job.refresh()).attempt == 2


async def test_a_caught_failure_stays(queue: Queue, start: Start, double: list[int]) -> None:
    @queue.job(retry=ONCE)
    async def fails() -> None:
        raise ValueError("no luck")

    @queue.job
    async def parent(ctx: Context) -> Any:
        try:
            await ctx.run(fails)
        except ChildFailed:
            return await ctx.run(CHILD, {"n": 1})

    job = await parent.enqueue()
    await start(queue)
    assert await job.result("30s") == 2
    assert len(await children_of(queue, job)) == 2


async def test_a_child_of_a_disabled_template_is_refused(queue: Queue, start: Start) -> None:
    @queue.job(enabled=False)
    async def off() -> None: ...

    @queue.job(retry=ONCE)
    async def parent(ctx: Context) -> Any:
        return await ctx.run(off)

    job = await parent.enqueue()
    await start(queue)
    with pytest.raises(JobFailed, match="off was refused: the template of off is disabled"):
        await job.result("30s")


async def test_gathered_children_run_beside_each_other(queue: Queue, start: Start) -> None:
    together = asyncio.Barrier(3)

    @queue.job
    async def child(n: int) -> int:
        await together.wait()
        return n

    @queue.job
    async def parent(ctx: Context) -> list[int]:
        return await asyncio.gather(*(ctx.run(child, {"n": n}, key=n) for n in range(3)))

    job = await parent.enqueue()
    await start(queue, slots=4)
    assert await job.result("30s") == [0, 1, 2]


async def test_the_same_child_twice_is_an_error(queue: Queue, start: Start, double: list[int]) -> None:
    @queue.job(retry=ONCE)
    async def parent(ctx: Context) -> None:
        await ctx.run(CHILD, {"n": 1})
        await ctx.run(CHILD, {"n": 2})

    job = await parent.enqueue()
    await start(queue)
    with pytest.raises(JobFailed, match="DoubledStep"):
        await job.result("30s")


@pytest.mark.parametrize("lost", [False, True])
async def test_a_child_that_the_store_could_not_make_is_made_when_it_is_back(
    queue: FaultyQueue, start: Start, double: list[int], lost: bool
) -> None:
    queue.register("parent", handlers.runs)
    job = await queue.enqueue("parent", {"n": 1})
    queue.faults.fail("make_children", 3, lose_answer=lost)
    await start(queue)
    assert await job.result("30s") == 2
    assert len(await children_of(queue, job)) == 1


@pytest.mark.parametrize(
    "options", [{"idempotency_key": "k"}, {"key_owner": "o"}, {"connection": None}, {"colour": 1}, {"parent_id": "x"}]
)
async def test_options_that_a_child_cannot_have(queue: Queue, start: Start, options: dict[str, Any]) -> None:
    @queue.job(retry=ONCE)
    async def parent(ctx: Context) -> str:
        with pytest.raises(InvalidInput) as refusal:
            await ctx.run(CHILD, {"n": 1}, **options)
        return str(refusal.value)

    job = await parent.enqueue()
    await start(queue)
    assert next(iter(options)) in await job.result("30s")


@pytest.mark.parametrize("kind", ENQUEUES)
async def test_an_enqueue_in_a_job_makes_a_child_that_nobody_waits_for(
    queue: Queue, start: Start, double: list[int], kind: str
) -> None:
    function, options = ENQUEUES[kind]
    queue.register("parent", function, **options)
    job = await queue.enqueue("parent", {})
    await start(queue)
    id = await job.result("30s")
    assert (await queue.get(id)).parent_id == job.id
    await queue.delete(job.id, force=True)


async def test_a_follow_up_with_the_outcome_is_a_child_too(queue: Queue, start: Start, double: list[int]) -> None:
    @queue.job
    async def parent(ctx: Context) -> str:
        return (await ctx.enqueue(CHILD, {"n": 1}, with_outcome=True)).id

    job = await parent.enqueue()
    await start(queue)
    assert (await queue.get(await job.result("30s"))).parent_id == job.id


async def test_a_flow_waits_for_a_child(queue: Queue, start: Start, double: list[int]) -> None:
    flow = queue.flow("index")

    @flow.step
    async def prepare(ctx: Context, payload: dict[str, Any]) -> int:
        return int(await ctx.run(CHILD, {"n": 5}))

    @flow.step
    async def finish(ctx: Context, payload: dict[str, Any]) -> int:
        return int(ctx.results["prepare"]) + 1

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("30s") == 11
    assert double == [5]


async def test_cancelling_a_parent_stops_the_child_that_runs(queue: Queue, start: Start) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    @queue.job
    async def child() -> None:
        began.set()
        try:
            await asyncio.sleep(60)  # until it is cancelled
        finally:
            stopped.set()

    @queue.job
    async def parent(ctx: Context) -> None:
        await ctx.run(child)

    job = await parent.enqueue()
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    await began.wait()
    await queue.cancel(job.id)
    await stopped.wait()
    [made] = await children_of(queue, job)
    await in_status(queue, made, Status.CANCELLED)


# -- many --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RUNS_MANY)
async def test_results_of_many_come_in_order(queue: Queue, start: Start, double: list[int], kind: str) -> None:
    function, options = RUNS_MANY[kind]
    queue.register("parent", function, **options)
    job = await queue.enqueue("parent", {"n": 7})
    await start(queue)
    assert await job.result("30s") == [0, 2, 4, 6, 8, 10, 12]
    assert sorted(double) == list(range(7))


async def test_a_map_runs_at_most_so_many_at_a_time_and_wakes_once_for_each_window(queue: Queue, start: Start) -> None:
    running, most, calls = 0, 0, 0

    @queue.job
    async def child(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)  # long enough for others to begin
        running -= 1
        return n * n

    @queue.job
    async def parent(ctx: Context) -> list[int]:
        nonlocal calls
        calls += 1
        return list(await ctx.map("squares", child, range(20), limit=4))

    job = await parent.enqueue()
    await start(queue, slots=10)
    assert await job.result("60s") == [n * n for n in range(20)]
    assert most == 4
    assert calls == 6, "once for each of five windows, and once with the results"
    [step] = (await job.refresh()).steps
    assert (step["id"], step["status"]) == ("squares", "completed")
    assert step["items"] == {"total": 20, "done": 20, "failed": 0}


async def test_some_may_fail(queue: Queue, start: Start) -> None:
    @queue.job(retry=ONCE)
    async def child(n: int) -> int:
        if n % 3 == 0:
            raise ValueError(f"not {n}")
        return n

    @queue.job(retry=ONCE)
    async def parent(ctx: Context, max_failed: int | str) -> Any:
        return await ctx.map("some", child, range(6), max_failed=max_failed)

    job = await parent.enqueue(max_failed=2)
    share = await parent.enqueue(max_failed="40%")
    few = await parent.enqueue(max_failed=1)
    await start(queue)
    assert await job.result("30s") == [None, 1, 2, None, 4, 5]
    assert await share.result("30s") == [None, 1, 2, None, 4, 5]
    with pytest.raises(JobFailed, match="2 of 6 children did not complete, first 0: child .*: ValueError: not 0"):
        await few.result("30s")


async def test_another_attempt_makes_only_what_has_not_completed(queue: Queue, start: Start) -> None:
    tried: list[int] = []

    @queue.job(retry=ONCE)
    async def child(n: int) -> int:
        tried.append(n)
        if tried.count(n) == 1 and n == 2:
            raise ValueError("once")
        return n

    @queue.job(retry=SOON)
    async def parent(ctx: Context) -> Any:
        return await ctx.map("all", child, range(5), limit=2)

    job = await parent.enqueue()
    await start(queue)
    assert await job.result("30s") == [0, 1, 2, 3, 4]
    assert sorted(tried) == [0, 1, 2, 2, 3, 4]


async def test_an_empty_list_has_no_children(queue: Queue, start: Start, double: list[int]) -> None:
    @queue.job
    async def parent(ctx: Context) -> Any:
        return [await ctx.map("none", queue_task, []), await ctx.run_many(CHILD, [])]

    @queue.job
    async def queue_task(n: int) -> int:
        return n

    job = await parent.enqueue()
    await start(queue)
    assert await job.result("30s") == [[], []]


async def test_items_are_told_apart_by_a_key(queue: Queue, start: Start) -> None:
    @queue.job
    async def child(item: dict[str, Any]) -> Any:
        return item["id"]

    @queue.job
    async def parent(ctx: Context) -> Any:
        items = [{"id": "b"}, {"id": "a"}]
        by_field = await ctx.map("field", child, items, key="id")
        return [by_field, await ctx.map("function", child, items, key=lambda item: item["id"])]

    job = await parent.enqueue()
    await start(queue)
    assert await job.result("30s") == [["b", "a"], ["b", "a"]]
    page = await queue.steps(job.id, "field")
    assert [(run["key"], run["result"]) for run in page.items] == [("b", "b"), ("a", "a")]
    assert {run["childId"] for run in page.items} <= {one.id for one in await children_of(queue, job)}


async def test_a_list_that_changes_between_two_windows_is_finished(queue: Queue, start: Start) -> None:
    """Items that are new or were passed over are made; those that are gone are ignored."""
    calls = 0

    @queue.job
    async def child(item: dict[str, Any]) -> Any:
        return item["id"]

    @queue.job
    async def parent(ctx: Context) -> Any:
        nonlocal calls
        calls += 1
        ids = ["a", "b", "c"] if calls == 1 else ["x", "c", "b", "a"]
        return await ctx.map("all", child, [{"id": one} for one in ids], key="id", limit=2)

    job = await parent.enqueue()
    await start(queue)
    assert await job.result("30s") == ["x", "c", "b", "a"]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("m", "other", []), {}, InvalidInput),
        (("m", None, []), {}, InvalidInput),
        (("m", CHILD, [{"id": 1}, {"id": 1}]), {"key": "id"}, DoubledStep),
        (("m", CHILD, [{"id": 1}]), {"key": "name"}, InvalidInput),
        (("m", CHILD, [1]), {"limit": 0}, InvalidInput),
        (("m", CHILD, [1]), {"limit": True}, InvalidInput),
        (("m", CHILD, [1]), {"max_failed": -1}, InvalidInput),
        (("m", CHILD, [1]), {"max_failed": "x%"}, InvalidInput),
        (("m", CHILD, [1]), {"max_failed": "200%"}, InvalidInput),
        (("m", CHILD, range(100_001)), {}, InvalidInput),
        (("m", CHILD, [1]), {"colour": 1}, InvalidInput),
        (("", CHILD, [1]), {}, InvalidInput),
    ],
)
async def test_bad_maps(queue: Queue, start: Start, arguments: Any, options: Any, error: type[Exception]) -> None:
    @queue.job(topic=CHILD)
    async def child(n: Any = None) -> Any:
        return n

    @queue.job(retry=ONCE)
    async def parent(ctx: Context) -> str:
        name, task, items = arguments
        with pytest.raises(error):
            await ctx.map(name, child if task == CHILD else task, items, **options)
        return "refused"

    job = await parent.enqueue()
    await start(queue)
    assert await job.result("30s") == "refused"
    assert await children_of(queue, job) == []


async def test_a_wrong_payload_is_an_error_of_the_parent(queue: Queue, start: Start, double: list[int]) -> None:
    @queue.job(retry=ONCE)
    async def parent(ctx: Context) -> Any:
        return await ctx.run(CHILD, {"n": "many"})

    job = await parent.enqueue()
    await start(queue)
    with pytest.raises(JobFailed, match="InvalidPayload"):
        await job.result("30s")
    assert await until(lambda: _none(queue, job))


async def _none(queue: Queue, job: Job) -> bool:
    return await children_of(queue, job) == []
