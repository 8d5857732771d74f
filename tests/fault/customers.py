"""What a user's program does in the fault tests: its own transactions with jobs in them, batches that grow."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.fault import handlers
from tests.fault.journal import Pen
from tests.waiting import until
from treadle import Queue
from treadle.model.errors import Refused

ORDERS = "orders"
"""The user's table: the id of each job, written in the transaction that made it."""


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        return sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    return psycopg.connect(url, autocommit=True)


def make_orders(url: str) -> None:
    with contextlib.closing(connect(url)) as connection:
        connection.execute(f"CREATE TABLE {ORDERS} (job text PRIMARY KEY)")


def read_orders(url: str) -> set[str]:
    with contextlib.closing(connect(url)) as connection:
        return {row[0] for row in connection.execute(f"SELECT job FROM {ORDERS}")}


def _write_order(connection: Any, id: str) -> None:
    connection.execute(f"INSERT INTO {ORDERS} (job) VALUES ('{id}') ON CONFLICT DO NOTHING")


@contextlib.contextmanager
def _transaction(connection: Any) -> Iterator[None]:
    """On SQLite a write transaction from its start, or it could not go on after another one's write."""
    connection.execute("BEGIN IMMEDIATE" if isinstance(connection, sqlite3.Connection) else "BEGIN")
    yield


async def transactions(arguments: argparse.Namespace) -> None:
    """Without end: one to three jobs in a transaction, each with an order, that commits or rolls back."""
    pen, chance = Pen(arguments.journal, arguments.name), random.Random(arguments.seed)
    async with handlers.make_queue(arguments.url, pen) as queue:
        with contextlib.closing(connect(arguments.url)) as connection:
            for number in itertools.count():
                with _transaction(connection):
                    for _ in range(chance.randint(1, 3)):
                        await _order_one(queue, connection, chance)
                    connection.execute("COMMIT" if chance.random() < 0.7 else "ROLLBACK")
                pen.note("transaction", str(number))
                await asyncio.sleep(chance.uniform(0, 0.01))  # its other work, while others get SQLite's write lock


async def _order_one(queue: Queue, connection: Any, chance: random.Random) -> None:
    key = f"order-{chance.randint(1, 1000)}" if chance.random() < 0.3 else None
    topic = chance.choice(["quick", "quick", "gated"])
    payload = {"key": chance.choice("abc")} if topic == "gated" else {}
    with contextlib.suppress(Refused):
        job = await queue.enqueue(topic, payload, idempotency_key=key, connection=connection)
        _write_order(connection, job.id)


async def stay_open(arguments: argparse.Namespace) -> None:
    """One job with a key in a transaction that commits when the file appears that `--key` names."""
    pen, go_on = Pen(arguments.journal, arguments.name), Path(arguments.key)
    async with handlers.make_queue(arguments.url, pen) as queue:
        with contextlib.closing(connect(arguments.url)) as connection, _transaction(connection):
            job = await queue.enqueue("quick", {}, idempotency_key=go_on.name, connection=connection)
            pen.note("open", job.id)
            await until(go_on.exists, 600)
            connection.execute("COMMIT")


async def growing(arguments: argparse.Namespace) -> None:
    """Batches of 1, 2, 4, … jobs with payloads that grow too; each acknowledged one is written down with its size."""
    pen = Pen(arguments.journal, arguments.name)
    async with Queue(arguments.url) as queue:
        size = 1
        while size <= arguments.limit:
            mark = f"{arguments.name}-{size}"
            await queue.enqueue_many("quick", [{"batch": mark, "text": "x" * (i % size)} for i in range(size)])
            pen.note("batch", mark)
            size *= 2
