"""Secret payload fields: only handlers see them."""

import asyncio
import logging
from typing import Any

import pytest

from treadle import Context, InvalidInput, InvalidPayload, Job, Queue, Worker
from treadle.insights.search import JobSearch

TOKEN = "s3cr3t-t0k3n"
SHOWN = {"user": "ann", "token": "***", "card": {"number": "***", "name": "ann"}}
GIVEN = {"user": "ann", "token": TOKEN, "card": {"number": TOKEN, "name": "ann"}}


def register(queue: Queue) -> list[Any]:
    seen: list[Any] = []

    @queue.job(secret=["token", "card.number"], max_attempts=1)
    async def pay(ctx: Context, payload: dict[str, Any]) -> str:
        seen.append((payload, ctx.payload))
        if payload.get("fail"):
            raise ValueError("no")
        return "paid"

    return seen


async def stored(queue: Queue, job: Job) -> str:
    """The payload as stored in the database."""
    lease = await queue.store.open_lease("reader", 60_000)
    from treadle.store.values import Wants

    claim = await queue.store.claim(lease, Wants(["pay"], (), 1, 1))
    assert [one.id for one in claim.jobs] == [job.id]
    return claim.jobs[0].payload


async def test_the_handler_sees_the_value_and_every_read_asterisks(queue: Queue, url: str) -> None:
    seen = register(queue)
    job = await queue.enqueue("pay", GIVEN)
    many = await queue.enqueue_many("pay", [GIVEN, GIVEN])
    assert [one.payload for one in (job, *many)] == [SHOWN] * 3
    async with Queue(url) as other:  # has no handler, and only the saved template
        assert (await other.get(job.id)).payload == SHOWN
        assert {str(one.payload) for one in await other.list()} == {str(SHOWN)}
        again = await other.enqueue("pay", GIVEN)
        assert again.payload == SHOWN
        assert (await other.cancel(again.id)).payload == SHOWN
        assert TOKEN not in str(again.as_json())
    await queue.run_until_empty()
    assert seen == [(GIVEN, GIVEN)] * 3
    assert TOKEN not in str([(await queue.get(job.id)).as_json(), [str(one) for one in await queue.events(job.id)]])


async def test_the_store_keeps_the_value(queue: Queue) -> None:
    register(queue)
    assert TOKEN in await stored(queue, await queue.enqueue("pay", GIVEN))


async def test_a_template_that_is_new_to_a_reader_is_read_first(queue: Queue, url: str) -> None:
    async with Queue(url) as reader:
        await queue.enqueue("other", {"token": "open"})
        assert [one.payload for one in await reader.list()] == [{"token": "open"}]
        register(queue)
        await queue.save_templates()
        job = await queue.enqueue("pay", GIVEN)
        assert (await reader.get(job.id)).payload == SHOWN


async def test_a_handler_that_is_registered_late_has_secrets_too(sqlite_url: str) -> None:
    import sqlite3

    queue = Queue(sqlite_url)
    queue.sync.enqueue("other")
    register(queue)
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    with pytest.raises(InvalidInput, match=r"await queue\.save_templates\(\) before the transaction"):
        queue.sync.enqueue("pay", GIVEN, connection=connection)
    jobs = [queue.sync.enqueue("pay", GIVEN), queue.sync.enqueue("pay", GIVEN, connection=connection)]
    connection.commit()
    connection.close()
    assert [job.refresh().payload for job in jobs] == [SHOWN] * 2
    queue.sync.close()


async def test_a_new_definition_makes_older_secrets_no_less_secret(queue: Queue, url: str) -> None:
    register(queue)
    job = await queue.enqueue("pay", GIVEN)
    async with Queue(url) as later:
        later.register("pay", lambda payload: None, secret=["user"])
        await later.save_templates()
        assert (await later.enqueue("pay", GIVEN)).payload == {**GIVEN, "user": "***"}
        assert (await later.get(job.id)).payload == {**SHOWN, "user": "***"}
        listing = JobSearch(filter='payload.token = "x"').listing(10, 0)
        with pytest.raises(InvalidInput, match=r"payload\.token is secret"):
            await later.store.list(listing)


async def test_events_and_snapshots_have_none(queue: Queue) -> None:
    register(queue)
    first = await queue.enqueue("pay", GIVEN)
    events = queue.stream(snapshot=True)
    snapshot = await anext(events)
    assert [one["id"] for one in snapshot["jobs"]] == [first.id]
    await queue.enqueue("pay", GIVEN)
    told = await anext(events)
    assert told["job"]["payload"] == SHOWN
    assert TOKEN not in str((snapshot, told))
    await events.aclose()
    async for state in first.watch():
        assert state.payload == SHOWN
        break


@pytest.mark.parametrize(
    "filter",
    ['payload.token = "x"', 'payload.token ~ "s"', 'payload.card.number != ""', 'user = 1 || payload.card ~ "s"'],
)
async def test_a_secret_cannot_be_searched(queue: Queue, filter: str) -> None:
    register(queue)
    await queue.enqueue("pay", GIVEN)
    filter = filter.replace("user = 1", 'payload.user = "ann"')
    listing = JobSearch(filter=filter).listing(10, 0)
    for look in (queue.store.list, queue.store.count, queue.store.select):
        with pytest.raises(InvalidInput, match="is secret and can't be searched"):
            await look(listing)
    with pytest.raises(InvalidInput, match="is secret and can't be searched"):
        await queue.store.stats(among=listing)
    with pytest.raises(InvalidInput, match="is secret and can't be searched"):
        await queue.store.changes(None, 10, listing)
    found = await queue.store.list(JobSearch(filter='payload.user = "ann" && payload.card.name = "ann"').listing(10, 0))
    assert [one.payload for one in found] == [SHOWN]


async def test_asterisks_are_no_value(queue: Queue, url: str) -> None:
    register(queue)
    job = await queue.enqueue("pay", GIVEN)
    async with Queue(url) as other:
        for one in (queue, other):
            with pytest.raises(InvalidPayload, match=r"payload\.token: \*\*\* stands for a secret; give its value"):
                await one.enqueue("pay", (await one.get(job.id)).payload)


async def test_a_refusal_does_not_quote_it(queue: Queue, url: str) -> None:
    @queue.job(secret=["token"])
    def pay(token: int) -> None: ...

    await queue.save_templates()
    async with Queue(url) as other:
        for one in (queue, other):
            with pytest.raises(InvalidPayload) as refused:
                await one.enqueue("pay", {"token": TOKEN})
            assert TOKEN not in str(refused.value)
            assert "payload.token" in str(refused.value)


async def test_a_failure_logs_none(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    register(queue)
    job = await queue.enqueue("pay", {**GIVEN, "fail": True})
    with caplog.at_level(logging.DEBUG):
        worker = Worker(queue, burst=True)
        async with asyncio.timeout(60):
            await worker.run()
    failed = await queue.get(job.id)
    assert failed.status == "failed"
    assert TOKEN not in caplog.text + str(failed.as_json())


async def test_the_history_hides_the_secrets_of_a_payload_that_was_replaced(queue: Queue, url: str) -> None:
    register(queue)
    await queue.save_templates()
    job = await queue.enqueue("pay", {**GIVEN, "fail": True})
    await queue.run_until_empty()
    again = await queue.requeue(job.id, payload=GIVEN)
    assert again.payload == SHOWN
    async with Queue(url) as other:
        [event] = [event for event in await other.events(job.id) if event.type == "job:requeued"]
        assert event.metadata["payload"] == {**SHOWN, "fail": True}
        assert TOKEN not in str(await other.store.events(job.id))
        assert TOKEN not in str([await job.events(), await again.events()])
