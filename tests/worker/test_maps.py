"""One step for each item of a list: kept by key, in order, at most `limit` at once, some may fail."""

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import ended, in_status, until
from tests.worker import map_handlers as handlers
from tests.worker.conftest import Start
from tests.worker.map_handlers import Doc
from treadle import CancelPolicy, Context, Flow, Job, Queue, Retry, Status
from treadle.model import steps as limits
from treadle.model.errors import InvalidInput, JobFailed
from treadle.model.lazy_list import LazyList

AGAIN = Retry(3, backoff="fixed", delay="1ms")
Payload = dict[str, Any]
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "coroutine": (handlers.maps_in_coroutine, {}),
    "thread": (handlers.maps_in_thread, {}),
    "process": (handlers.maps_in_thread, {"process": True}),
    "async process": (handlers.maps_in_coroutine, {"process": True}),
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "noted")


def entry(job: Job, name: str) -> dict[str, Any]:
    return next(step for step in job.steps if step["id"] == name)


def counts(job: Job, name: str) -> tuple[str, dict[str, int]]:
    found = entry(job, name)
    return found["status"], found["items"]


# -- ctx.map -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_maps_over_a_list_and_finished_items_never_run_again(
    queue: Queue, start: Start, path: str, kind: str
) -> None:
    function, options = KINDS[kind]
    queue.register("maps", function, retry=AGAIN, **options)
    job = await queue.enqueue("maps", {"path": path, "items": list(range(10)), "fails": True})
    await start(queue)
    assert await job.result("30s") == [81, *[number * number for number in range(10)]]
    assert sorted(handlers.noted(path)) == [str(number) for number in range(10)]
    assert counts(await job.refresh(), "square") == ("completed", {"total": 10, "done": 10, "failed": 0})
    page = await queue.steps(job.id, "square", offset=8, limit=5)
    assert (page.total, [(one["key"], one["result"]) for one in page.items]) == (10, [("8", 64), ("9", 81)])


async def test_an_empty_list(queue: Queue, start: Start) -> None:
    @queue.job
    async def empty(ctx: Context) -> list[int]:
        return list(await ctx.map("square", handlers.squared, []))

    job = await queue.enqueue("empty")
    await start(queue)
    assert await job.result("30s") == []
    assert counts(await job.refresh(), "square") == ("completed", {"total": 0, "done": 0, "failed": 0})
    assert (await queue.steps(job.id, "square")).items == []


async def test_results_are_in_order_and_can_be_added_to_a_list(queue: Queue, start: Start) -> None:
    @queue.job
    async def adds(ctx: Context) -> Any:
        async def slowest_first(number: int) -> int:
            await asyncio.sleep((5 - number) / 100)  # the first takes longest
            return number

        talk = [-1]
        found = await ctx.map("one", slowest_first, range(5))
        talk += found
        assert isinstance(found, LazyList)
        assert (found[1:3], found[-1], len(found), found == [0, 1, 2, 3, 4]) == ([1, 2], 4, 5, True)
        return [talk, found.__add__([7]), found.__radd__([7])]

    job = await queue.enqueue("adds")
    await start(queue)
    assert await job.result("30s") == [[-1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 7], [7, 0, 1, 2, 3, 4]]


async def test_a_handler_can_return_what_it_mapped(queue: Queue, start: Start) -> None:
    @queue.job
    async def returns(ctx: Context) -> list[int]:
        found: list[int] = await ctx.map("square", handlers.squared, [1, 2, 3])
        return found

    job = await queue.enqueue("returns")
    await start(queue)
    assert await job.result("30s") == [1, 4, 9]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_at_most_limit_items_run_at_once(queue: Queue, start: Start, kind: str) -> None:
    running: Counter[str] = Counter()
    most = 0

    async def item(number: int) -> None:
        nonlocal most
        running["now"] += 1
        most = max(most, running["now"])
        await asyncio.sleep(0.001)  # so that items overlap
        running["now"] -= 1

    async def in_coroutine(ctx: Context) -> int:
        return len(await ctx.map("one", item, range(200), limit=7))

    def in_thread(ctx: Context) -> int:
        return len(ctx.map("one", item, range(200), limit=7))

    queue.register("limited", {"coroutine": in_coroutine, "thread": in_thread}[kind])
    job = await queue.enqueue("limited")
    await start(queue)
    assert await job.result("60s") == 200
    assert 2 <= most <= 7


@pytest.mark.parametrize(
    ("most", "fails", "works"),
    [(0, 1, False), (2, 2, True), (2, 3, False), ("20%", 2, True), ("20%", 3, False), ("0%", 1, False)],
)
async def test_some_items_may_fail(queue: Queue, start: Start, most: Any, fails: int, works: bool) -> None:
    async def item(number: int) -> int:
        if number < fails:
            raise ValueError(f"no {number}")
        return number

    @queue.job(max_attempts=1)
    async def tolerant(ctx: Context) -> list[Any]:
        return list(await ctx.map("one", item, range(10), max_failed=most, limit=1))

    job = await queue.enqueue("tolerant")
    await start(queue)
    job = await ended(queue, job)
    assert job.status is (Status.COMPLETED if works else Status.FAILED)
    shown = entry(job, "one")
    assert "ValueError: no " in shown["error"]
    if works:
        assert job.result_value == [None] * fails + list(range(fails, 10))
        assert counts(job, "one") == ("completed", {"total": 10, "done": 10 - fails, "failed": fails})
    else:
        assert "ValueError: no 0" in (job.last_error or "")
        assert "ValueError: no 0" in shown["error"], "the first one"
        assert counts(job, "one")[0] == "failed"


async def test_each_item_is_tried_by_the_maps_policy(queue: Queue, start: Start) -> None:
    tries: Counter[int] = Counter()

    async def item(number: int) -> int:
        tries[number] += 1
        if tries[number] < 3:
            raise RuntimeError("as told")
        return number

    @queue.job(max_attempts=1)
    async def retries(ctx: Context) -> list[int]:
        return list(await ctx.map("one", item, range(3), retry=AGAIN))

    job = await queue.enqueue("retries")
    await start(queue)
    assert await job.result("30s") == [0, 1, 2]
    assert set(tries.values()) == {3}


async def test_items_may_wait_and_make_steps(queue: Queue, start: Start) -> None:
    """What they make is told apart by the item's key."""

    @queue.job(max_attempts=1)
    async def waits(ctx: Context) -> list[Any]:
        async def item(name: str) -> list[Any]:
            return [await ctx.step("inner", handlers.squared, 3), await ctx.wait_external("answer")]

        return list(await ctx.map("ask", item, ["a", "b"], key=str))

    job = await queue.enqueue("waits")
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    for name in ("b", "a"):
        await queue.signal(job.id, "ask/answer", name, key=name)
    assert await job.result("30s") == [[9, "a"], [9, "b"]]
    assert [one["key"] for one in (await queue.steps(job.id, "ask/inner")).items] == ["a", "b"]


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ("text", {}, "not a list"),
    ({"a": 1}, {}, "not a list"),
    (7, {}, "not a list"),
    (None, {}, "not a list"),
    ([{"id": 1}, {"id": 2}, {"id": 1}], {"key": "id"}, "items 0 and 2 have the same key, '1'"),
    ([{"id": 1}], {"key": "name"}, "no field 'name'"),
    ([1], {"key": lambda item: ""}, "an empty key"),
    ([1], {"key": lambda item: 1.5}, "not a step's key"),
    ([1], {"key": 7}, "not the name of a field"),
    ([1], {"limit": 0}, "limit"),
    ([1], {"limit": True}, "limit"),
    ([1], {"max_failed": "many"}, "max_failed"),
    ([1], {"max_failed": -1}, "max_failed"),
    ([1], {"max_failed": "101%"}, "max_failed"),
]


@pytest.mark.parametrize(("items", "options", "message"), BAD)
async def test_bad_maps(queue: Queue, start: Start, items: Any, options: dict[str, Any], message: str) -> None:
    @queue.job(max_attempts=1)
    async def bad(ctx: Context) -> None:
        await ctx.map("one", handlers.squared, items, **options)

    job = await queue.enqueue("bad")
    await start(queue)
    with pytest.raises(JobFailed, match=message):
        await job.result("30s")
    assert (await job.refresh()).steps == []


@pytest.mark.parametrize("endless", [False, True])
async def test_too_many_items_are_refused(queue: Queue, start: Start, endless: bool) -> None:
    @queue.job(max_attempts=1)
    async def many(ctx: Context) -> None:
        numbers = iter(int, 1) if endless else range(limits.MAX_ROWS + 1)
        await ctx.map("one", handlers.squared, numbers)

    job = await queue.enqueue("many")
    await start(queue)
    with pytest.raises(JobFailed, match="100,001 items are more than the 100,000"):
        await job.result("30s")


async def test_an_item_can_not_map_in_turn(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def nested(ctx: Context) -> None:
        async def item(number: int) -> None:
            await ctx.map("inner", handlers.squared, [number])

        await ctx.map("outer", item, [1])

    job = await queue.enqueue("nested")
    await start(queue)
    with pytest.raises(JobFailed, match="can't map in turn"):
        await job.result("30s")


async def test_a_cancel_stops_a_map(queue: Queue, start: Start) -> None:
    begun: list[int] = []

    async def item(number: int) -> None:
        begun.append(number)
        await asyncio.Event().wait()

    @queue.job
    async def stops(ctx: Context) -> None:
        await ctx.map("one", item, range(100), limit=4)

    job = await queue.enqueue("stops")
    await start(queue)
    await until(lambda: len(begun) == 4)
    await queue.cancel(job.id)
    assert (await ended(queue, job)).status is Status.CANCELLED
    assert len(begun) == 4
    assert entry(await job.refresh(), "one")["status"] == "cancelled"


async def test_a_worker_that_stops_keeps_the_items_that_are_done(queue: Queue, start: Start) -> None:
    ran: Counter[int] = Counter()
    stuck = asyncio.Event()

    async def item(number: int) -> int:
        ran[number] += 1
        if number == 50:
            await stuck.wait()
        return number

    @queue.job(max_attempts=1)
    async def stops(ctx: Context) -> int:
        return sum(await ctx.map("one", item, range(100), limit=4))

    job = await queue.enqueue("stops")
    worker = await start(queue, drain="10ms")
    await until(lambda: len(ran) == 100)
    await until(lambda: _done(job, 99))
    worker.stop()
    await worker.done
    assert (await job.refresh()).status is Status.PENDING
    stuck.set()
    await start(queue)
    assert await job.result("30s") == sum(range(100))
    assert {number: times for number, times in ran.items() if times > 1} == {50: 2}


async def _done(job: Job, items: int) -> bool:
    found = [step for step in (await job.refresh()).steps if step["items"]]
    return bool(found) and found[0]["items"]["done"] == items


# -- mapped steps ------------------------------------------------------------------------------------


def docs(number: int) -> list[Doc]:
    return [Doc(id=f"d{place}", words=place) for place in range(number)]


@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
async def test_a_flow_maps_over_the_list_of_a_step(queue: Queue, start: Start, path: str, kind: str) -> None:
    flow: Flow[Payload] = queue.flow("index", retry=AGAIN)

    @flow.step
    async def fetch(ctx: Context, payload: Payload) -> list[Doc]:
        return docs(12)

    async def in_coroutine(ctx: Context, payload: Payload, doc: Doc) -> tuple[str, int, bool]:
        return handlers.measure(ctx, payload | {"pid": 0}, doc)

    function = {"coroutine": in_coroutine}.get(kind, handlers.measure)
    mapped = flow.step(name="embed", map=fetch, key="id", limit=3, process=kind == "process")(function)

    @flow.step
    async def total(ctx: Context, payload: Payload) -> list[Any]:
        found = ctx.results[mapped.name]
        if not ctx.is_retry:
            raise RuntimeError("as told")
        return [len(found), sum(words for _, words, _ in found), found[3], all(elsewhere for *_, elsewhere in found)]

    pid = os.getpid() if kind == "process" else 0
    job = await flow.enqueue({"path": path, "pid": pid})
    await start(queue)
    assert await job.result("60s") == [12, sum(range(12)), ["d3", 3, True], True]
    assert sorted(handlers.noted(path)) == sorted(doc.id for doc in docs(12))
    job = await job.refresh()
    assert counts(job, "embed") == ("completed", {"total": 12, "done": 12, "failed": 0})
    assert [step["progress"] for step in job.steps] == [100, 100, 100]
    page = await queue.steps(job.id, "embed", limit=2)
    assert [(one["key"], one["status"]) for one in page.items] == [("d0", "completed"), ("d1", "completed")]
    events = [event.message for event in await queue.events(job.id) if event.type == "job:step:completed"]
    assert events == ["fetch", "embed", "total"], "an event for each step, none for each item"


async def test_the_results_of_a_map_at_the_end_are_the_flows(queue: Queue, start: Start) -> None:
    flow: Flow[Payload] = queue.flow("ends")

    @flow.step
    async def fetch(ctx: Context, payload: Payload) -> list[int]:
        return list(range(1000))

    @flow.step(map=fetch, max_failed=1, limit=50)
    async def double(ctx: Context, payload: Payload, number: int) -> int:
        if number == 1:
            raise ValueError("no")
        return number * 2

    job = await flow.enqueue({})
    await start(queue)
    result = await job.result("60s")
    assert result[:4] == [0, None, 4, 6]
    assert len(result) == 1000
    assert (await job.refresh()).progress == 100


async def test_a_list_that_is_too_large_for_a_result_fails_clearly(queue: Queue, start: Start) -> None:
    flow: Flow[Payload] = queue.flow("large", max_attempts=1)

    @flow.step
    async def fetch(ctx: Context, payload: Payload) -> list[int]:
        return list(range(20))

    @flow.step(map=fetch)
    async def large(ctx: Context, payload: Payload, number: int) -> str:
        return "x" * 100_000

    job = await flow.enqueue({})
    await start(queue)
    with pytest.raises(JobFailed, match="end it with a step that returns less"):
        await job.result("60s")


@pytest.mark.parametrize(
    ("value", "message"),
    [("text", "not a list"), (None, "not a list"), ({"a": 1}, "not a list"), ([1, 2, 1], "the same key")],
)
async def test_what_is_no_list_of_different_items_fails_without_another_attempt(
    queue: Queue, start: Start, value: Any, message: str
) -> None:
    flow: Flow[Payload] = queue.flow("wrong", retry=AGAIN)

    @flow.step
    async def fetch(ctx: Context, payload: Payload) -> Any:
        return value

    @flow.step(map=fetch, key=lambda item: item)
    async def one(ctx: Context, payload: Payload, item: Any) -> None: ...

    job = await flow.enqueue({})
    await start(queue)
    with pytest.raises(JobFailed, match=message):
        await job.result("30s")
    job = await job.refresh()
    assert (job.attempt, job.steps[1]["status"], message in job.steps[1]["error"]) == (1, "failed", True)


async def test_a_map_over_a_skipped_step_has_nothing_to_do(queue: Queue, start: Start) -> None:
    flow: Flow[Payload] = queue.flow("skips")

    @flow.step(when=lambda ctx, payload: False)
    async def fetch(ctx: Context, payload: Payload) -> list[int]:
        return [1]

    @flow.step(map=fetch)
    async def one(ctx: Context, payload: Payload, item: int) -> int:
        return item

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("30s") == []


async def test_branches_run_beside_a_map(queue: Queue, start: Start) -> None:
    flow: Flow[Payload] = queue.flow("beside")
    go_on = asyncio.Event()

    @flow.step
    async def fetch(ctx: Context, payload: Payload) -> list[int]:
        return [1, 2, 3]

    @flow.step(after=[fetch], map=fetch)
    async def each(ctx: Context, payload: Payload, item: int) -> int:
        await go_on.wait()
        return item

    @flow.step(after=[fetch])
    async def beside(ctx: Context, payload: Payload) -> str:
        go_on.set()
        return "beside"

    @flow.step(after=[each, beside])
    async def join(ctx: Context, payload: Payload) -> list[Any]:
        return [*ctx.results["each"], ctx.results["beside"]]

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("30s") == [1, 2, 3, "beside"]


async def test_a_failed_map_runs_only_what_has_not_completed_again(queue: Queue, start: Start) -> None:
    flow: Flow[Payload] = queue.flow("again", max_attempts=1)
    ran: Counter[int] = Counter()
    mended: list[bool] = []

    @flow.step
    async def fetch(ctx: Context, payload: Payload) -> list[int]:
        return list(range(6))

    @flow.step(map=fetch, limit=1)
    async def one(ctx: Context, payload: Payload, item: int) -> int:
        ran[item] += 1
        if item == 3 and not mended:
            raise ValueError("no")
        return item

    job = await flow.enqueue({})
    await start(queue)
    job = await ended(queue, job)
    assert counts(job, "one") == ("failed", {"total": 6, "done": 3, "failed": 1})
    mended.append(True)
    await queue.requeue(job.id)
    assert await job.result("30s") == list(range(6))
    assert ran == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1, 5: 1}
    await queue.requeue(job.id, mode="from", step="one", force=True)
    assert await job.result("30s") == list(range(6))
    assert ran == {0: 2, 1: 2, 2: 2, 3: 3, 4: 2, 5: 2}


async def test_bad_mapped_steps_are_refused_when_declared(queue: Queue) -> None:
    flow: Flow[Payload] = queue.flow("bad")

    @flow.step
    async def fetch(ctx: Context, payload: Payload) -> list[int]:
        return []

    async def one(ctx: Context, payload: Payload, item: int) -> None: ...

    async def alone() -> None: ...

    declare: Any = flow.step
    for options, message in (
        ({"map": "later"}, "no step 'later'"),
        ({"map": one}, "not a step of bad"),
        ({"map": fetch, "limit": 0}, "limit"),
        ({"map": fetch, "key": 7}, "key"),
        ({"map": fetch, "max_failed": "2"}, "max_failed"),
    ):
        with pytest.raises(InvalidInput, match=message):
            declare(name="one", **options)(one)
    with pytest.raises(InvalidInput, match="the last parameter"):
        flow.step(name="one", map=fetch)(alone)
    flow.step(name="other", after=[])(alone)
    mapped = flow.step(name="one", map=fetch, limit=3)(one)
    assert (mapped.spec.after, mapped.spec.map, mapped.spec.limit) == (("other", "fetch"), "fetch", 3)


# -- hostile items -----------------------------------------------------------------------------------


async def test_10_000_items_leave_nothing_behind_in_memory(queue: Queue, start: Start) -> None:
    """At most `limit` run at once, also over 10,000, and the worker forgets each one that has ended."""
    flow: Flow[Payload] = queue.flow("many")
    running = most = 0
    known: list[int] = []

    @flow.step
    async def numbers(ctx: Context, payload: Payload) -> list[int]:
        return list(range(10_000))

    @flow.step(map=numbers, limit=20)
    async def one(ctx: Context, payload: Payload, number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if number % 100 == 0:
            await asyncio.sleep(0)  # a turn of the loop
        running -= 1
        return number

    @flow.step
    async def total(ctx: Context, payload: Payload) -> int:
        call: Any = ctx._call
        steps = call.attempt.steps
        known.extend(map(len, (steps._known, steps._seen, steps._begun, steps._places, steps._items, steps._reports)))
        return sum(ctx.results["one"])

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("120s") == sum(range(10_000))
    assert most <= 20
    assert max(known) < 10
    assert counts(await job.refresh(), "one") == ("completed", {"total": 10_000, "done": 10_000, "failed": 0})


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_an_item_over_its_limit_fails_alone(queue: Queue, start: Start, path: str, kind: str) -> None:
    flow: Flow[Payload] = queue.flow("slow", max_attempts=1)

    @flow.step
    async def numbers(ctx: Context, payload: Payload) -> list[int]:
        return [0, 1, 2]

    flow.step(map=numbers, timeout="200ms", max_failed=1, process=kind == "process")(handlers.sleeps)
    job = await flow.enqueue({"path": path})
    await start(queue)
    assert await job.result("60s") == [None, 1, 2]
    page = await queue.steps(job.id, "sleeps")
    assert [one["status"] for one in page.items] == ["failed", "completed", "completed"]
    assert "longer than its limit" in page.items[0]["error"]


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_a_cancel_reaches_items_of_each_kind(queue: Queue, start: Start, path: str, kind: str) -> None:
    flow: Flow[Payload] = queue.flow("slow", cancel=CancelPolicy(grace="20s"))

    @flow.step
    async def numbers(ctx: Context, payload: Payload) -> list[int]:
        return [0] if kind == "process" else [0, 1]

    flow.step(map=numbers, process=kind == "process")(handlers.sleeps)
    job = await flow.enqueue({"path": path})
    await start(queue)
    await until(lambda: "begun-0" in handlers.noted(path))
    await queue.cancel(job.id)
    assert (await ended(queue, job)).status is Status.CANCELLED
    assert entry(await job.refresh(), "sleeps")["status"] == "cancelled"


async def test_items_that_must_finish_do_before_a_cancel(queue: Queue, start: Start) -> None:
    flow: Flow[Payload] = queue.flow("careful", cancel=CancelPolicy(grace="20s"))
    go_on, begun = asyncio.Event(), asyncio.Event()

    @flow.step
    async def numbers(ctx: Context, payload: Payload) -> list[int]:
        return [0, 1]

    @flow.step(map=numbers, cancelable=False, limit=1)
    async def one(ctx: Context, payload: Payload, number: int) -> int:
        begun.set()
        await go_on.wait()
        return number

    @flow.step
    async def never(ctx: Context, payload: Payload) -> None: ...

    job = await flow.enqueue({})
    await start(queue)
    await begun.wait()
    await queue.cancel(job.id)
    assert (await job.refresh()).status is Status.CANCELLING
    go_on.set()
    assert (await ended(queue, job)).status is Status.CANCELLED
    states = [step["status"] for step in (await job.refresh()).steps]
    assert states == ["completed", "completed", "cancelled"]


async def test_items_in_threads_have_a_context_that_blocks(queue: Queue, start: Start) -> None:
    flow: Flow[Payload] = queue.flow("threads")

    @flow.step
    async def numbers(ctx: Context, payload: Payload) -> list[int]:
        return [2, 3]

    @flow.step(map=numbers)
    def one(ctx: Context, payload: Payload, number: int) -> int:
        ctx.heartbeat()
        return int(ctx.step("inner", handlers.squared, number)) + int(ctx.wait_external("answer"))

    job = await flow.enqueue({})
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    for key in ("0", "1"):
        await queue.signal(job.id, "one/answer", 100, key=key)
    assert await job.result("30s") == [104, 109]


@pytest.mark.parametrize("error", [SystemExit("out"), asyncio.CancelledError(), KeyboardInterrupt(), StopIteration()])
async def test_whatever_an_item_raises_the_worker_goes_on(queue: Queue, start: Start, error: BaseException) -> None:
    flow: Flow[Payload] = queue.flow("hostile", max_attempts=1)

    @flow.step
    async def numbers(ctx: Context, payload: Payload) -> list[int]:
        return [0, 1]

    @flow.step(map=numbers)
    async def one(ctx: Context, payload: Payload, number: int) -> int:
        raise error

    @queue.job
    async def after(ctx: Context) -> int:
        return 1

    job = await flow.enqueue({})
    await start(queue, slots=1)
    assert (await ended(queue, job)).status is Status.FAILED
    assert await (await queue.enqueue("after")).result("30s") == 1


async def test_an_item_with_a_large_result_fails_with_its_key(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def large(ctx: Context) -> list[int]:
        async def item(number: int) -> str:
            return "x" * (2_000_000 if number else 100_000)

        return [len(one or "") for one in await ctx.map("one", item, range(2), max_failed=1)]

    job = await queue.enqueue("large")
    await start(queue)
    assert await job.result("30s") == [100_000, 0]
    [fine, failed] = (await queue.steps(job.id, "one")).items
    assert (fine["resultSize"], failed["key"], "the limit is" in failed["error"]) == (100_002, "1", True)
