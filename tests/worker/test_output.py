"""What handlers emit: in order, once, from any kind of handler, and kept over retries."""

import asyncio
import threading
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import ended, in_status, until
from tests.worker import output_handlers
from tests.worker.conftest import Start
from treadle import Context, Queue, Retry
from treadle.events.output import END, RESET, VALUE
from treadle.model import output as limits
from treadle.worker import output as writing

WORDS = [f"word {i}" for i in range(50)]


async def values(queue: Queue, id: str, channel: str = "tokens", **options: Any) -> list[Any]:
    async with asyncio.timeout(60):
        return [value async for value in queue.output(id, channel, **options)]


async def told(queue: Queue, id: str, channel: str = "tokens", after: int = 0) -> list[tuple[str, Any]]:
    """Every event, with what it is about."""
    async with asyncio.timeout(60):
        found = [event async for event in queue.output(id, channel, after=after, events=True)]
    about = {VALUE: lambda event: event.value, RESET: lambda event: event.attempt, END: lambda event: event.status}
    return [(event.kind, about[event.kind](event)) for event in found]


async def test_a_coroutine_emits_and_a_reader_gets_every_value_in_order(queue: Queue, start: Start) -> None:
    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> None:
        for word in WORDS:
            await ctx.emit(word, channel="tokens")
            await asyncio.sleep(0)  # as a handler that waits for its model

    await start(queue)
    job = await talk.enqueue()
    assert await values(queue, job.id) == WORDS
    assert await values(queue, job.id) == WORDS, "also after the end"
    assert [value async for value in job.output("tokens", after=48)] == WORDS[48:]


async def test_a_thread_emits(queue: Queue, start: Start) -> None:
    @queue.job
    def talk(ctx: Context, payload: dict[str, Any]) -> None:
        for word in WORDS:
            ctx.emit(word, channel="tokens")

    await start(queue)
    assert await values(queue, (await talk.enqueue()).id) == WORDS


@pytest.mark.parametrize("function", [output_handlers.talk, output_handlers.talk_in_a_coroutine])
async def test_a_process_emits(queue: Queue, start: Start, function: Any) -> None:
    queue.register("talk", function, process=True)
    await start(queue)
    job = await queue.enqueue("talk", {"words": WORDS})
    assert await values(queue, job.id) == WORDS
    assert await job.result("60s") == len(WORDS)


async def test_a_step_emits(queue: Queue, start: Start) -> None:
    flow = queue.flow("story")

    @flow.step
    async def write(ctx: Context, payload: dict[str, Any]) -> str:
        for word in WORDS:
            await ctx.emit(word, channel="tokens")
        return "done"

    @flow.step
    def count(ctx: Context, payload: dict[str, Any]) -> int:
        ctx.emit("counted", channel="tokens")
        return 1

    await start(queue)
    assert await values(queue, (await flow.enqueue({})).id) == [*WORDS, "counted"]


async def test_values_are_any_json(queue: Queue, start: Start) -> None:
    some: list[Any] = [1, 1.5, None, True, "ü\n", {"a": [1, {"b": None}]}, [], 2**62]

    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> None:
        for one in some:
            await ctx.emit(one)

    await start(queue)
    assert await values(queue, (await talk.enqueue()).id, "output") == some


async def test_a_reader_gets_values_while_the_handler_goes_on(queue: Queue, start: Start) -> None:
    go_on = asyncio.Event()

    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> None:
        await ctx.emit("first", channel="tokens")
        await go_on.wait()
        await ctx.emit("second", channel="tokens")

    await start(queue)
    job = await talk.enqueue()
    following = queue.output(job.id, "tokens")
    assert await anext(following) == "first"
    go_on.set()
    assert [value async for value in following] == ["second"]


async def test_latest_gives_only_what_comes_next(queue: Queue, start: Start) -> None:
    go_on = asyncio.Event()

    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> None:
        await ctx.emit("old", channel="tokens")
        await go_on.wait()
        await ctx.emit("new", channel="tokens")

    await start(queue)
    job = await talk.enqueue()
    assert await anext(queue.output(job.id, "tokens")) == "old"
    following = asyncio.ensure_future(values(queue, job.id, latest=True))
    watch = queue.output_watch
    await until(lambda: len(watch._readers) == 1 and not following.done())
    go_on.set()
    assert await following == ["new"]


async def test_a_retry_that_writes_again_resets_the_channel_for_its_readers(queue: Queue, start: Start) -> None:
    @queue.job(retry=Retry(3, backoff=[0, 0]))
    async def talk(ctx: Context, payload: dict[str, Any]) -> None:
        await ctx.emit(f"{ctx.attempt}a", channel="tokens")
        await ctx.emit(f"{ctx.attempt}b", channel="tokens")
        if ctx.attempt < 3:
            raise RuntimeError("again")

    await start(queue)
    job = await talk.enqueue()
    await ended(queue, job)
    assert await told(queue, job.id) == [
        (VALUE, "1a"),
        (VALUE, "1b"),
        (RESET, 2),
        (VALUE, "2a"),
        (VALUE, "2b"),
        (RESET, 3),
        (VALUE, "3a"),
        (VALUE, "3b"),
        (END, "completed"),
    ]
    assert (await told(queue, job.id, after=2))[0] == (RESET, 2), "also for a reader that was away meanwhile"


async def test_a_requeued_job_resets_the_channel_too(queue: Queue, start: Start) -> None:
    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> None:
        await ctx.emit("once", channel="tokens")

    await start(queue)
    job = await talk.enqueue()
    await ended(queue, job)
    await ended(queue, await job.requeue(force=True))
    assert await told(queue, job.id) == [(VALUE, "once"), (RESET, 1), (VALUE, "once"), (END, "completed")]


async def test_a_job_that_waited_goes_on_in_its_channel(queue: Queue, start: Start) -> None:
    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> None:
        async def ask() -> None:
            await ctx.emit("question", channel="tokens")

        await ctx.step("ask", ask)
        answer = await ctx.wait_external("answer")
        await ctx.emit(answer, channel="tokens")

    await start(queue)
    job = await talk.enqueue()
    await in_status(queue, job, "waiting")
    await job.signal("answer", "yes")
    assert await told(queue, job.id) == [(VALUE, "question"), (VALUE, "yes"), (END, "completed")]


async def test_what_is_no_json_is_an_error_in_the_handler_and_the_job_goes_on(queue: Queue, start: Start) -> None:
    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> list[str]:
        errors = []
        for bad in (float("nan"), object(), "x" * 20_000_000, "\x00"):
            try:
                await ctx.emit(bad, channel="tokens")
            except Exception as error:
                errors.append(type(error).__name__)
        await ctx.emit("fine", channel="tokens")
        return errors

    await start(queue)
    job = await talk.enqueue()
    assert await job.result("60s") == ["InvalidPayload", "InvalidPayload", "PayloadTooLarge", "InvalidPayload"]
    assert await values(queue, job.id) == ["fine"]


async def test_a_process_hears_why_a_value_is_refused(queue: Queue, start: Start) -> None:
    queue.register("too_much", output_handlers.too_much, process=True)
    await start(queue)
    assert "which JSON can't express" in await (await queue.enqueue("too_much", {})).result("60s")


async def test_a_channel_has_a_name(queue: Queue, start: Start) -> None:
    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> str:
        try:
            await ctx.emit(1, channel="../x")
        except Exception as error:
            return str(error)
        return ""

    await start(queue)
    assert "is not a channel" in await (await talk.enqueue()).result("60s")


async def test_a_channel_and_a_job_have_limits(queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CHANNEL_BYTES", 45)
    monkeypatch.setattr(limits, "MAX_CHANNELS", 2)

    @queue.job(retry=Retry(2, backoff=[0]))
    async def talk(ctx: Context, payload: dict[str, Any]) -> list[str]:
        errors = []
        for channel in ("tokens", "second", "third", "tokens", "tokens"):
            try:
                await ctx.emit("0123456789", channel=channel)
            except Exception as error:
                errors.append(str(error))
            else:
                await until(lambda: not ctx._call.attempt.output.waiting_bytes)  # type: ignore[attr-defined]
        if ctx.attempt == 1:
            assert errors == ["channel third: a job has at most 2 channels"]
            raise RuntimeError("again")
        return errors

    await start(queue)
    refused = await (await talk.enqueue()).result("60s")
    assert len(refused) == 3, "what the first attempt wrote counts for the second"
    assert "channel tokens is full" in refused[-1]
    assert "limit of 45" in refused[-1]


async def test_a_handler_that_emits_faster_than_the_store_writes_waits(
    queue: FaultyQueue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MOST_WAITING_BYTES", 1000)
    most = 0

    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> None:
        nonlocal most
        for i in range(2000):
            await ctx.emit(i, channel="tokens")
            output = ctx._call.attempt.output  # type: ignore[attr-defined]
            most = max(most, output.waiting_bytes)

    await start(queue)
    assert await values(queue, (await talk.enqueue()).id) == list(range(2000))
    assert most < 2000


async def test_threads_of_one_handler_emit_side_by_side(queue: Queue, start: Start) -> None:
    @queue.job
    def talk(ctx: Context, payload: dict[str, Any]) -> None:
        def speak(name: str) -> None:
            for i in range(200):
                ctx.emit([name, i], channel="tokens")

        threads = [threading.Thread(target=speak, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    await start(queue)
    found = await values(queue, (await talk.enqueue()).id)
    for name in "abc":
        assert [i for who, i in found if who == name] == list(range(200))


async def test_output_is_stored_though_the_store_was_away_for_a_while(queue: FaultyQueue, start: Start) -> None:
    begun = asyncio.Event()
    go_on = asyncio.Event()

    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> None:
        await ctx.emit("before", channel="tokens")
        begun.set()
        await go_on.wait()
        for word in WORDS:
            await ctx.emit(word, channel="tokens")
            await asyncio.sleep(0.001)  # so that several writes are needed

    await start(queue)
    job = await talk.enqueue()
    await begun.wait()
    assert await anext(queue.output(job.id, "tokens")) == "before"
    queue.faults.fail("write_output", times=3)
    go_on.set()
    assert await values(queue, job.id) == ["before", *WORDS]


async def test_a_write_whose_answer_was_lost_stores_nothing_twice(queue: FaultyQueue, start: Start) -> None:
    @queue.job
    async def talk(ctx: Context, payload: dict[str, Any]) -> None:
        for word in WORDS:
            await ctx.emit(word, channel="tokens")
            await asyncio.sleep(0.01)  # so that several writes are needed

    queue.faults.fail("write_output", times=3, lose_answer=True)
    await start(queue)
    assert await values(queue, (await talk.enqueue()).id) == WORDS
