"""What steps return and what they are given: typed, kept apart if it is large, with a hash of the input."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.fault.audit import query
from tests.waiting import ended
from tests.worker import wait_handlers as handlers
from tests.worker.conftest import Start
from tests.worker.step_handlers import noted
from tests.worker.test_waits import of_all_kinds
from treadle import Context, Queue, Retry, Status

KEEPS = of_all_kinds(handlers.keeps_pages, handlers.keeps_pages_in_thread)
DOUBLES = of_all_kinds(handlers.doubles, handlers.doubles_in_thread)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "noted")


async def test_a_large_result_reaches_later_steps_in_its_type(queue: Queue, start: Start, path: str) -> None:
    """In a coroutine, a thread, a process and a `when`; the job's document and lists don't carry it."""
    flow = queue.flow("pages", max_attempts=1)
    flow.step(handlers.makes_pages)
    flow.step(name="thread", when=lambda ctx, payload: len(ctx.results["makes_pages"]) == 50)(handlers.reads_pages)
    flow.step(name="process", process=True)(handlers.reads_pages)
    flow.step(name="coroutine")(handlers.reads_pages_async)
    job = await flow.enqueue({"path": path})
    await start(queue)
    assert await job.result("30s") == 50
    seen = await job.refresh()
    assert [step["result"] for step in seen.steps] == [None, 50, 50, 50]
    size = len(json.dumps([page.model_dump() for page in handlers.many_pages()], separators=(",", ":")))
    assert (seen.steps[0]["resultSize"], size > 65_536) == (size, True)
    assert len(json.dumps([one.as_json() for one in await queue.list()])) < 10_000
    [run] = (await queue.steps(job.id, "makes_pages")).items
    assert len(run["result"]) == 50


async def test_a_process_gets_results_of_local_functions_in_their_types(queue: Queue, start: Start) -> None:
    """A child can't import the function, but it can import the classes that its annotation names."""
    flow = queue.flow("local", max_attempts=1)

    @flow.step
    async def pages(ctx: Context, payload: dict[str, Any]) -> list[handlers.Page]:
        return handlers.many_pages(2)

    flow.external("more", answer=tuple[handlers.Page, ...])
    flow.step(process=True)(handlers.reads_types)
    job = await flow.enqueue({})
    await queue.signal(job.id, "more", [{"number": 1, "text": "one"}])
    await start(queue)
    assert sorted(await job.result("30s")) == ["list/Page", "tuple/Page"]


async def test_a_process_says_which_type_it_cannot_find(queue: Queue, start: Start) -> None:
    flow = queue.flow("local", max_attempts=1)

    class Hidden(BaseModel):
        number: int

    @flow.step
    async def hidden(ctx: Context, payload: dict[str, Any]) -> Hidden:
        return Hidden(number=1)

    flow.step(process=True)(handlers.reads_types)
    job = await flow.enqueue({})
    await start(queue)
    seen = await ended(queue, job)
    assert (seen.status, seen.error_type) == (Status.FAILED, "InvalidInput")
    assert "step hidden: a process can't find the type of its result; move the class" in (seen.last_error or "")


@pytest.mark.parametrize("kind", KEEPS)
async def test_a_large_result_of_a_handlers_step_is_read_again(
    queue: Queue, start: Start, path: str, kind: str
) -> None:
    function, options = KEEPS[kind]
    queue.register("keeps", function, retry=Retry(2, backoff="fixed", delay="1ms"), **options)
    job = await queue.enqueue("keeps", {"path": path})
    await start(queue)
    assert await job.result("30s") == 50
    assert noted(path) == ["read", "read"]


@pytest.mark.parametrize("kind", DOUBLES)
async def test_a_doubled_step_is_an_error_before_it_runs(queue: Queue, start: Start, path: str, kind: str) -> None:
    function, options = DOUBLES[kind]
    queue.register("doubles", function, max_attempts=1, **options)
    job = await queue.enqueue("doubles", {"path": path})
    await start(queue)
    seen = await ended(queue, job)
    assert (seen.status, seen.error_type) == (Status.FAILED, "DoubledStep")
    assert "step one (1) runs twice in one attempt; give each run its own key=" in (seen.last_error or "")
    assert noted(path) == ["first", "second"]
    assert seen.steps[0]["items"] == {"total": 2, "done": 2, "failed": 0}


async def test_nested_names_have_the_limit_of_names(queue: Queue, start: Start, path: str) -> None:
    queue.register("nests", handlers.nests, max_attempts=1)
    job = await queue.enqueue("nests", {"path": path})
    await start(queue)
    seen = await ended(queue, job)
    assert (seen.error_type, noted(path)) == ("InvalidInput", [])
    assert [step["id"] for step in seen.steps] == ["o" * 255]


async def test_a_step_keeps_a_hash_of_its_input(queue: Queue, start: Start) -> None:
    flow = queue.flow("hashed", max_attempts=1)

    @flow.step
    async def one(ctx: Context, payload: dict[str, Any]) -> None: ...

    @queue.job(max_attempts=1)
    async def plain(ctx: Context, payload: dict[str, Any]) -> None:
        await ctx.step("one", _nothing, payload)

    async def hash_of(topic: str, payload: dict[str, Any]) -> str:
        job = await queue.enqueue(topic, payload)
        await job.result("30s")
        rows = await query(
            queue, f"SELECT s.input_hash FROM {{steps}} s JOIN {{jobs}} j ON j.n = s.n WHERE j.id = '{job.id}'"
        )
        [[found]] = rows
        assert len(found) == 32
        return str(found)

    await start(queue)
    for topic in ("hashed", "plain"):
        assert await hash_of(topic, {"a": 1}) == await hash_of(topic, {"a": 1}) != await hash_of(topic, {"a": 2})


def _nothing(payload: dict[str, Any]) -> None: ...


async def test_a_function_of_a_c_module_can_be_a_step(queue: Queue, start: Start) -> None:
    """It has no signature, so its result is plain JSON."""

    @queue.job(max_attempts=1)
    async def waits(ctx: Context) -> Any:
        return [await ctx.step("nap", time.sleep, 0), await ctx.step("most", max, [1, 3])]

    @queue.job(max_attempts=1)
    def waits_in_thread(ctx: Context) -> Any:
        return [ctx.step("nap", time.sleep, 0), ctx.step("most", max, [1, 3])]

    await start(queue)
    for topic in ("waits", "waits_in_thread"):
        assert await (await queue.enqueue(topic)).result("30s") == [None, 3]
