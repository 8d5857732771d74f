"""`ctx.db` and `ctx.http`: the queue's database and one HTTP client, in every kind of handler."""

import asyncio
import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.waiting import ended, give_way
from tests.worker import resource_handlers as handlers
from tests.worker.conftest import Start
from treadle import Context, Queue
from treadle.store.connect import user_connection

Handler = Callable[..., Any]
KINDS: list[tuple[str, bool]] = [("async", False), ("thread", False), ("thread", True), ("async", True)]
NAMES = ["coroutine", "thread", "process", "coroutine in a process"]


async def statement(queue: Queue, text: str) -> list[Any]:
    """Run a statement next to the handlers."""
    connection = user_connection(queue.store.user_database(), 1)
    if isinstance(connection, sqlite3.Connection):
        try:
            with connection:
                return connection.execute(text).fetchall()
        finally:
            connection.close()
    async with connection:
        return [tuple(row) for row in await connection.fetch(text)]


@pytest.fixture
async def notes(queue: Queue) -> Queue:
    await statement(queue, "CREATE TABLE notes (text text)")
    return queue


@pytest.mark.parametrize(("kind", "process"), KINDS, ids=NAMES)
async def test_a_handler_writes_and_reads_the_queues_database(
    notes: Queue, start: Start, kind: str, process: bool
) -> None:
    notes.register("note", handlers.note_async if kind == "async" else handlers.note, process=process)
    await start(notes, slots=3)
    jobs = await notes.enqueue_many("note", [{"text": f"{n}"} for n in range(5)])
    results = [await job.result("30s") for job in jobs]
    assert [one["found"] for one in results] == ["0", "1", "2", "3", "4"]
    assert all((one["pid"] == os.getpid()) is not process for one in results)
    assert sorted(await statement(notes, "SELECT text FROM notes")) == [(str(n),) for n in range(5)]


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
async def test_a_transaction_that_raises_is_rolled_back(notes: Queue, start: Start, process: bool) -> None:
    notes.register("note", handlers.note_and_fail, process=process, max_attempts=1)
    await start(notes)
    job = await ended(notes, await notes.enqueue("note"), 30)
    assert (job.status, job.error_type) == ("failed", "ValueError")
    assert await statement(notes, "SELECT text FROM notes") == []


@pytest.mark.parametrize("handler", [handlers.note_and_enqueue, handlers.note_and_enqueue_async])
async def test_a_row_and_a_job_are_stored_together_or_not_at_all(notes: Queue, start: Start, handler: Handler) -> None:
    notes.register("note", handler, max_attempts=1)
    await start(notes)
    followed = await (await notes.enqueue("note", {"fail": False})).result("60s")
    await ended(notes, await notes.enqueue("note", {"fail": True}))
    assert await statement(notes, "SELECT text FROM notes") == [("ours",)]
    assert [job.id for job in await notes.list(topic="follow")] == [followed]


async def test_a_process_cannot_enqueue_in_its_own_transaction(notes: Queue, start: Start) -> None:
    notes.register("note", handlers.note_and_enqueue, process=True, max_attempts=1)
    await start(notes)
    job = await ended(notes, await notes.enqueue("note", {"fail": False}), 30)
    assert "connection: a handler in a process enqueues through its worker" in str(job.last_error)
    assert await statement(notes, "SELECT text FROM notes") == []


async def test_handlers_that_run_together_have_separate_transactions(notes: Queue, start: Start) -> None:
    inside, looked = asyncio.Event(), asyncio.Event()

    @notes.job(max_attempts=1)
    async def first(ctx: Context) -> None:
        if isinstance(ctx.db, sqlite3.Connection):
            ctx.db.execute("INSERT INTO notes (text) VALUES ('first')")
            inside.set()
            await looked.wait()
            ctx.db.rollback()
        else:
            async with ctx.db.acquire() as connection:
                transaction = connection.transaction()
                await transaction.start()
                await connection.execute("INSERT INTO notes (text) VALUES ('first')")
                inside.set()
                await looked.wait()
                await transaction.rollback()

    @notes.job(max_attempts=1)
    async def second(ctx: Context) -> int:
        await inside.wait()
        if isinstance(ctx.db, sqlite3.Connection):
            seen = len(ctx.db.execute("SELECT * FROM notes").fetchall())
        else:
            seen = int(await ctx.db.fetchval("SELECT count(*) FROM notes"))
        looked.set()
        return seen

    await start(notes, slots=2)
    one, two = await first.enqueue(), await second.enqueue()
    await one.result("60s")
    assert await two.result("60s") == 0
    assert await statement(notes, "SELECT text FROM notes") == []


async def test_a_hook_has_it_too(notes: Queue, start: Start) -> None:
    notes.register("note", lambda: "done")
    told = asyncio.Event()

    @notes.on_success
    async def noted(ctx: Context, result: str) -> None:
        await handlers.note_async(ctx, {"text": result})
        told.set()

    await start(notes)
    await notes.enqueue("note")
    async with asyncio.timeout(60):
        await told.wait()
    assert await statement(notes, "SELECT text FROM notes") == [("done",)]


# -- SQLite: a connection for each call ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_transaction_left_open_is_rolled_back_with_a_warning(
    sqlite_url: str, start: Start, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    kept: list[sqlite3.Connection] = []

    def forget(ctx: Context) -> None:
        ctx.db.execute("INSERT INTO notes (text) VALUES ('lost')")
        kept.append(ctx.db)

    async def forget_async(ctx: Context) -> None:
        await give_way()
        forget(ctx)

    async with Queue(sqlite_url) as queue:
        await statement(queue, "CREATE TABLE notes (text text)")
        queue.register("forget", forget_async if kind == "async" else forget)
        await start(queue)
        with caplog.at_level(logging.WARNING):
            await (await queue.enqueue("forget")).result("60s")
        assert await statement(queue, "SELECT text FROM notes") == []
    assert "the handler left a transaction open in ctx.db; it is rolled back" in caplog.text
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        kept[0].execute("SELECT 1")


async def test_it_is_as_durable_as_the_queue(sqlite_url: str, start: Start) -> None:
    def setting(ctx: Context) -> int:
        found: int = ctx.db.execute("PRAGMA synchronous").fetchone()[0]
        return found

    for option, number in (("", 2), ("?synchronous=normal", 1)):
        async with Queue(sqlite_url + option) as queue:
            queue.register("setting", setting)
            await start(queue)
            assert await (await queue.enqueue("setting")).result("60s") == number


# -- the HTTP client -----------------------------------------------------------------------------------------------


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        missing = self.path.endswith("/missing")
        self._answer(404 if missing else 200, {"path": self.path})

    def do_POST(self) -> None:
        self._answer(200, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Kind", "test")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("kind", "process"), KINDS, ids=NAMES)
async def test_a_handler_calls_a_server(queue: Queue, start: Start, server: str, kind: str, process: bool) -> None:
    queue.register("call", handlers.call_async if kind == "async" else handlers.call, process=process)
    await start(queue)
    for _ in range(2):
        answers = await (await queue.enqueue("call", {"url": server})).result("30s")
        assert answers[:3] == [200, {"path": "/?q=1"}, {"a": 1}]
        assert answers[3:] == [False, '{"path": "/missing"}', "ClientResponseError", "test"]


async def test_all_handlers_share_one_client_and_pool_which_end_with_the_worker(queue: Queue, start: Start) -> None:
    seen: list[Any] = []

    @queue.job
    async def look(ctx: Context) -> None:
        seen.append((ctx.http, ctx.db))

    @queue.job
    def look_blocking(ctx: Context) -> None:
        seen.append((ctx.http.source, getattr(ctx.db, "source", None)))

    worker = await start(queue)
    for task in (look, look, look_blocking):
        await (await task.enqueue()).result("60s")
    assert len({id(client) for client, _ in seen}) == 1
    pools = [pool for _, pool in seen if pool is not None and not isinstance(pool, sqlite3.Connection)]
    assert len({id(pool) for pool in pools}) == (0 if queue.url.startswith("sqlite") else 1)
    assert not seen[0][0].closed
    worker.stop()
    await worker.done
    assert seen[0][0].closed
    assert all(pool.is_closing() for pool in pools)


def test_a_program_that_does_not_use_the_client_does_not_load_it() -> None:
    program = "import sys, treadle, treadle.worker, treadle.cli.app; print('aiohttp' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"
