"""Seed 000, user story 1: enqueue a job, so that slow work does not hold up a request."""

import contextlib
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.acceptance.conftest import Start, Travel
from tests.waiting import in_status
from treadle import PayloadTooLarge, Queue, Status


async def test_1_enqueue_stores_the_job_and_returns_its_id(queue: Queue) -> None:
    job = await queue.enqueue("mail_digest", {"userId": "123"})
    assert UUID(job.id).version == 7
    assert (await queue.get(job.id)).payload == {"userId": "123"}


async def test_2_the_status_of_an_enqueued_job_is_pending(queue: Queue) -> None:
    job = await queue.enqueue("mail_digest", {"userId": "123"})
    assert (await queue.get(job.id)).status is Status.PENDING


async def test_3_with_run_at_in_the_future_the_job_runs_only_after_it(
    queue: Queue, start: Start, travel: Travel
) -> None:
    ran: list[str] = []
    queue.register("mail_digest", lambda payload: ran.append(payload["name"]))
    later = await queue.enqueue("mail_digest", {"name": "later"}, run_at=datetime.now(UTC) + timedelta(hours=1))
    await start(queue, lease="10h")
    now = await queue.enqueue("mail_digest", {"name": "now"})
    await in_status(queue, now, "completed")
    assert ran == ["now"]
    await travel(3600)
    await in_status(queue, later, "completed")
    assert ran == ["now", "later"]


async def test_4_a_payload_of_more_than_one_mebibyte_is_payload_too_large(queue: Queue) -> None:
    with pytest.raises(PayloadTooLarge):
        await queue.enqueue("mail_digest", {"text": "x" * 1_048_576})
    assert await queue.count() == 0


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_5_business_data_and_job_are_written_together_or_not_at_all(
    url: str, queue: Queue, start: Start, ending: str
) -> None:
    """With a worker at work all the time: it never sees what was not committed."""
    ran: list[Any] = []
    queue.register("check_payment", lambda payload: ran.append(payload["orderId"]))
    await start(queue)
    connection: Any
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    else:
        connection = psycopg.connect(url)
    with contextlib.closing(connection):
        connection.execute("CREATE TABLE orders (id integer)")
        connection.commit()
        connection.execute("INSERT INTO orders VALUES (456)")
        job = await queue.enqueue("check_payment", {"orderId": 456}, connection=connection)
        getattr(connection, ending)()
        stored = connection.execute("SELECT id FROM orders").fetchall()
        connection.rollback()
    if ending == "commit":
        await in_status(queue, job, "completed")
        assert (stored, ran) == ([(456,)], [456])
    else:
        sentinel = await queue.enqueue("check_payment", {"orderId": "another"})
        await in_status(queue, sentinel, "completed")
        assert (stored, ran) == ([], ["another"])
        assert await queue.count() == 1
