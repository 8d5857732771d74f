"""Enqueue from SQL: `treadle.enqueue(…)` on PostgreSQL, an INSERT into `treadle_enqueue` on SQLite."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest

from tests.servers import ServerMissing, needed
from treadle import Concurrency, Context, Queue, Retry, Worker
from treadle.model.job import is_job_id

Refused = (sqlite3.IntegrityError, psycopg.Error)


def sql_enqueue(url: str, topic: Any, payload: Any = None, options: Any = None) -> None:
    """As another program would, with nothing of Treadle's. Texts are sent as they are."""
    texts = [one if isinstance(one, str | None) else json.dumps(one) for one in (payload, options)]
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
        with connection:
            statement = "INSERT INTO treadle_enqueue (topic, payload, options) VALUES (?, ?, ?)"
            connection.execute(statement, (topic, *texts))
        connection.close()
    else:
        with psycopg.connect(url) as connected:
            connected.execute("SELECT treadle.enqueue(%s, %s::jsonb, %s::jsonb)", (topic, *texts))


def rows(url: str, table: str) -> list[dict[str, Any]]:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute(f"SELECT * FROM treadle_{table} ORDER BY n")]
        connection.close()
        return found
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connected:
        return connected.execute(f"SELECT * FROM treadle.{table} ORDER BY n").fetchall()


async def test_a_job_from_sql_runs_like_any_other(url: str) -> None:
    async with Queue(url) as queue:

        @queue.job
        def greet(ctx: Context, name: str) -> str:
            return f"Hello, {name}!"

        await queue.save_templates()
        sql_enqueue(url, "greet", {"name": "Zoë"})
        (job,) = await queue.run_until_empty()
        assert (job.status, job.result_value, job.payload) == ("completed", "Hello, Zoë!", {"name": "Zoë"})
        assert is_job_id(job.id)
        assert [event.type for event in await queue.events(job.id)] == ["job:enqueued", "job:started", "job:completed"]


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"delay": "15m"}, {"delay": "15m"}),
    ({"delay": 90}, {"delay": 90}),
    ({"runAt": "2031-01-02T03:04:05+01:00"}, {"run_at": datetime(2031, 1, 2, 2, 4, 5, tzinfo=UTC)}),
    ({"priority": "high"}, {"priority": "high"}),
    ({"priority": -7}, {"priority": -7}),
    ({"maxAttempts": 9}, {"max_attempts": 9}),
    ({"maxRetries": 1}, {"max_retries": 1}),
    ({"capability": "gpu"}, {"capability": "gpu"}),
    ({"expiresAt": "2031-01-01T00:00:00Z"}, {"expires_at": datetime(2031, 1, 1, tzinfo=UTC)}),
    ({"expires": "2h"}, {"expires": "2h"}),
    ({"scope": "user", "scopeId": "7", "createdBy": "ann"}, {"scope": "user", "scope_id": "7", "created_by": "ann"}),
]


@pytest.mark.parametrize("saved", [False, True])
async def test_its_rows_are_those_of_the_python_api(url: str, saved: bool) -> None:
    """Whatever is added to a job: here it is noticed that SQL does not know it."""
    async with Queue(url) as queue:
        if saved:
            options: dict[str, Any] = {"priority": "low", "capability": "media", "expires": "1h"}
            queue.register("mail", _nothing, retry=Retry(5), **options)
            await queue.save_templates()
        for in_sql, in_python in OPTIONS:
            await queue.enqueue("mail", {"to": ["ada", 1, None, 1.5]}, **in_python)
            sql_enqueue(url, "mail", {"to": ["ada", 1, None, 1.5]}, in_sql)
        for table in ("jobs", "ready", "later", "deadlines"):
            found = rows(url, table)
            assert len(found) % 2 == 0, table
            for first, second in zip(found[::2], found[1::2], strict=True):
                assert _comparable(first) == _comparable(second), table


def _nothing(payload: dict[str, Any]) -> None: ...


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Times as whole minutes from the making of the row, or of the first one."""
    base = row.get("created_at") or datetime.now(UTC).timestamp() * 1000
    found = {key: value for key, value in row.items() if key not in ("n", "id", "created_at")}
    for key in ("run_at", "expires_at"):
        if found.get(key) is not None:
            found[key] = round((found[key] - base) / 60_000)
    if isinstance(found.get("payload"), str):
        found["payload"] = json.loads(found["payload"])
    return found


BAD: list[tuple[Any, Any, Any, str]] = [
    (None, {}, {}, "topic"),
    ("", {}, {}, "topic"),
    ("Mail", {}, {}, "topic"),
    ("a..b", {}, {}, "topic"),
    ("../x", {}, {}, "topic"),
    ("a\n", {}, {}, "topic"),
    ("x" * 101, {}, {}, "topic"),
    ("django:" + "x" * 250, {}, {}, "topic"),
    ("mail", [1], {}, "payload"),
    ("mail", '"text"', {}, "payload"),
    ("mail", {"x": 10**30}, {}, "64 bits"),
    ("mail", '{"x": 1e400}', {}, "64 bits"),
    ("mail", {"x": "y" * 1_048_569}, {}, "1,048,576"),
    ("mail", '{"a":' * 102 + "1" + "}" * 102, {}, "nested"),
    ("mail", {}, [1], "options"),
    ("mail", {}, {"retries": 3}, "maxRetries"),
    ("mail", {}, {"idempotencyKey": "k"}, "from Python or over HTTP"),
    ("mail", {}, {"webhookUrl": "http://x"}, "from Python or over HTTP"),
    ("mail", {}, {"delay": "soon"}, "delay"),
    ("mail", {}, {"delay": -1}, "delay"),
    ("mail", {}, {"delay": True}, "delay|a text or a number"),
    ("mail", {}, {"priority": [1]}, "priority|a text or a number"),
    ("mail", {}, {"delay": "1.2.3m"}, "delay"),
    ("mail", {}, {"delay": "1m", "runAt": "2031-01-01T00:00:00Z"}, "not both"),
    ("mail", {}, {"runAt": "2031-01-01"}, "zone"),
    ("mail", {}, {"runAt": "2031-01-01T00:00:00"}, "zone"),
    ("mail", {}, {"runAt": "9999-01-01T00:00:00Z"}, "zone"),
    ("mail", {}, {"priority": "urgent"}, "priority"),
    ("mail", {}, {"priority": 1.5}, "priority"),
    ("mail", {}, {"priority": 10**12}, "priority"),
    ("mail", {}, {"maxAttempts": 0}, "maxAttempts"),
    ("mail", {}, {"maxAttempts": 10**9}, "maxAttempts"),
    ("mail", {}, {"scope": ""}, "scope"),
    ("mail", {}, {"scope": 3}, "scope"),
    ("mail", {}, {"scopeId": "a\nb"}, "scopeId"),
    ("mail", {}, {"createdBy": "x" * 256}, "createdBy"),
    ("mail", {}, {"capability": " x "}, "capability"),
]


async def test_bad_input_is_refused_and_nothing_is_stored(url: str) -> None:
    async with Queue(url) as queue:
        for topic, payload, options, named in BAD:
            with pytest.raises(Refused, match=named):
                sql_enqueue(url, topic, payload, options)
        assert await queue.count() == 0
        sql_enqueue(url, "mail", {"x": "y" * 1_048_568}, {})
        sql_enqueue(url, "mail", '{ "x" : [ 1 ,   2 ] }', {})
        assert await queue.count() == 2


async def test_what_needs_the_rules_of_admission_is_refused(url: str) -> None:
    queue = Queue(url)
    options: dict[str, dict[str, Any]] = {
        "limited": {"concurrency": Concurrency(keys=["input.x"])},
        "keyed": {"idempotency_key": "input.x"},
        "deduped": {"dedupe_keys": ["input.x"]},
        "once": {"dedupe_keys": ["input.x"], "repeatable": False},
        "private": {"secret": ["password"]},
    }
    for topic, chosen in options.items():
        queue.register(topic, _nothing, **chosen)
    async with queue:
        await queue.save_templates()
        for topic in options:
            with pytest.raises(Refused, match="from Python or over HTTP"):
                sql_enqueue(url, topic, {"x": 1, "password": "p"})
        assert await queue.count() == 0


async def test_a_topic_that_is_switched_off_takes_none(url: str) -> None:
    queue = Queue(url)
    queue.register("mail", _nothing)
    async with queue:
        await queue.save_templates()
        await queue.templates.disable("mail")
        with pytest.raises(Refused, match="disabled"):
            sql_enqueue(url, "mail", {})
        await queue.templates.enable("mail")
        sql_enqueue(url, "mail", {})
        assert await queue.count() == 1


async def test_a_flow_from_sql_runs_its_steps(url: str) -> None:
    queue = Queue(url)
    flow: Any = queue.flow("order")

    @flow.step
    async def pay(ctx: Context, payload: dict[str, Any]) -> int:
        return 3

    @flow.step
    async def ship(ctx: Context, payload: dict[str, Any]) -> int:
        return int(ctx.results["pay"]) + 1

    async with queue:
        await queue.save_templates()
        sql_enqueue(url, "order", {})
        (job,) = await queue.run_until_empty()
        assert (job.status, job.result_value) == ("completed", 4)
        assert [step["status"] for step in job.steps] == ["completed", "completed"]


async def test_it_wakes_an_idle_worker(url: str) -> None:
    queue = Queue(url, poll_interval="1h")

    @queue.job
    async def greet(name: str) -> str:
        return name

    async with queue:
        worker = Worker(queue)
        running = asyncio.create_task(worker.run())
        first = await greet.enqueue("first")
        await first.result(timeout="60s")  # the worker is up, and idle from here on
        sql_enqueue(url, "greet", {"name": "second"})
        (second,) = [job for job in await queue.list() if job.id != first.id]
        assert await second.result(timeout="60s") == "second"
        worker.stop()
        await running


async def test_a_rollback_takes_the_job_along(url: str) -> None:
    async with Queue(url) as queue:
        if url.startswith("sqlite"):
            async with aiosqlite.connect(url.removeprefix("sqlite:///"), timeout=30) as connection:
                await connection.execute("INSERT INTO treadle_enqueue (topic) VALUES ('mail')")
                await connection.rollback()
        else:
            asynchronous = await asyncpg.connect(url)
            transaction = asynchronous.transaction()
            await transaction.start()
            assert is_job_id(str(await asynchronous.fetchval("SELECT treadle.enqueue('mail')")))
            await transaction.rollback()
            await asynchronous.close()
        assert await queue.count() == 0


TRIGGERS = {
    "sqlite": """
        CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT);
        CREATE TRIGGER order_placed AFTER INSERT ON orders BEGIN
            INSERT INTO treadle_enqueue (topic, payload)
            VALUES ('mail', json_object('order', NEW.id, 'to', NEW.customer));
        END;
    """,
    "postgres": """
        CREATE TABLE orders (id integer PRIMARY KEY, customer text);
        CREATE FUNCTION order_placed() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM treadle.enqueue('mail', jsonb_build_object('order', NEW.id, 'to', NEW.customer));
            RETURN NEW;
        END $$;
        CREATE TRIGGER order_placed AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION order_placed();
    """,
}


async def test_from_a_trigger(url: str) -> None:
    insert = "INSERT INTO orders VALUES (1, 'ada'), (2, 'bob')"
    async with Queue(url) as queue:
        if url.startswith("sqlite"):
            connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
            connection.executescript(TRIGGERS["sqlite"])
            with connection:
                connection.execute(insert)
                assert connection.execute("SELECT last_insert_rowid()").fetchone() == (2,), "the caller's own"
            connection.close()
        else:
            with psycopg.connect(url) as connected:
                connected.execute(TRIGGERS["postgres"])
                connected.execute(insert)
        payloads = [job.payload for job in await queue.list()]
        assert payloads == [{"order": 2, "to": "bob"}, {"order": 1, "to": "ada"}]


async def test_from_psql(postgres_url: str) -> None:
    psql = needed(find_psql)
    async with Queue(postgres_url) as queue:
        statement = """SELECT treadle.enqueue('mail', '{"to": "ada"}', '{"delay": "15m"}')"""
        done = _run([str(psql), "-X", "-At", "-c", statement, postgres_url])
        job = await queue.get(done.stdout.strip())
        assert (job.payload, job.run_at - job.created_at) == ({"to": "ada"}, timedelta(minutes=15))
        refused = _run([str(psql), "-X", "-c", "SELECT treadle.enqueue('Mail')", postgres_url])
        assert "is not a topic" in refused.stderr


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)


def find_psql() -> Path:
    if found := shutil.which("psql"):
        return Path(found)
    raise ServerMissing("psql: install the system's package `postgresql-client`")


async def test_many_sessions_enqueue_a_new_topic_at_the_same_time(postgres_url: str) -> None:
    async with Queue(postgres_url) as queue:
        pool = await asyncpg.create_pool(postgres_url, min_size=8, max_size=8)
        async with pool:
            await asyncio.gather(*(pool.fetchval("SELECT treadle.enqueue('new')") for _ in range(100)))
        assert await queue.count(topic="new") == 100
        assert len({row["lane"] for row in rows(postgres_url, "jobs")}) == 1
