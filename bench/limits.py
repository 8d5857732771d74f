"""What the database itself allows: a minimal jobs table, bare statements, no handlers, no bookkeeping."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import time
from pathlib import Path
from typing import Any

PAYLOAD = json.dumps({"t": 1e9, "kind": "noop", "user": 123456, "pad": "x" * 40})

PG_SCHEMA = """
DROP TABLE IF EXISTS bare;
CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL DEFAULT 0,
    worker int, claimed_at timestamptz, done_at timestamptz, payload jsonb NOT NULL);
CREATE INDEX bare_ready ON bare (id) WHERE state = 0"""
PG_INSERT = "INSERT INTO bare (payload) SELECT p::jsonb FROM unnest($1::text[]) AS p"
PG_CLAIM = """UPDATE bare SET state = 1, worker = 1, claimed_at = now()
    FROM (SELECT id FROM bare WHERE state = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) AS pick
    WHERE bare.id = pick.id RETURNING bare.id, bare.payload"""
PG_DONE = "UPDATE bare SET state = 2, done_at = now() WHERE id = ANY($1::bigint[])"


async def postgres_insert(url: str, batch: int, seconds: float) -> float:
    """Rows per second, `batch` rows a commit."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(PG_SCHEMA)
        statement = await connection.prepare(PG_INSERT)
        rows, done, started = [PAYLOAD] * batch, 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            await statement.fetch(rows)
            done += batch
        return done / (time.perf_counter() - started)
    finally:
        await connection.close()


async def postgres_two_commits(url: str, times: int) -> float:
    """ms for two commits in a row after a rest of 50 ms: less no pick-up can take, which stores a job and claims it."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(PG_SCHEMA)
        statement = await connection.prepare(PG_INSERT)
        took = []
        for _ in range(times):
            await asyncio.sleep(0.05)
            started = time.perf_counter()
            for _ in range(2):
                await statement.fetch([PAYLOAD])
            took.append(time.perf_counter() - started)
        return statistics.median(took) * 1e3
    finally:
        await connection.close()


async def postgres_drain(url: str, batch: int, seconds: float) -> float:
    """Jobs per second: claim `batch`, complete `batch`, a commit each, on one connection."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(PG_SCHEMA)
        rows = int(batch * 1000 * seconds)
        await connection.execute(
            "INSERT INTO bare (payload) SELECT $1::jsonb FROM generate_series(1, $2::int)", PAYLOAD, rows
        )
        await connection.execute("VACUUM ANALYZE bare")
        await connection.execute("CHECKPOINT")
        claim, finish = await connection.prepare(PG_CLAIM), await connection.prepare(PG_DONE)
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            claimed = await claim.fetch(batch)
            if not claimed:
                break
            await finish.fetch([row[0] for row in claimed])
            done += len(claimed)
        return done / (time.perf_counter() - started)
    finally:
        await connection.execute("DROP TABLE bare")
        await connection.close()


SQLITE_CLAIM = """UPDATE bare SET state = 1, claimed_at = unixepoch() WHERE id IN
    (SELECT id FROM bare WHERE state = 0 ORDER BY id LIMIT ?) RETURNING id, payload"""


def _sqlite(file: Path) -> sqlite3.Connection:
    for path in file.parent.glob(file.name + "*"):
        path.unlink()
    db = sqlite3.connect(file, timeout=30, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(
        "CREATE TABLE bare (id INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 0,"
        " claimed_at INTEGER, done_at INTEGER, payload TEXT NOT NULL)"
    )
    db.execute("CREATE INDEX bare_ready ON bare (id) WHERE state = 0")
    return db


def sqlite_insert(file: Path, batch: int, seconds: float) -> float:
    db = _sqlite(file)
    rows: list[Any] = [(PAYLOAD,)] * batch
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO bare (payload) VALUES (?)", rows)
        db.execute("COMMIT")
        done += batch
    rate = done / (time.perf_counter() - started)
    db.close()
    return rate


def sqlite_two_commits(file: Path, times: int) -> float:
    """The same."""
    db = _sqlite(file)
    took = []
    for _ in range(times):
        time.sleep(0.05)
        started = time.perf_counter()
        for _ in range(2):
            db.execute("INSERT INTO bare (payload) VALUES (?)", (PAYLOAD,))
        took.append(time.perf_counter() - started)
    db.close()
    return statistics.median(took) * 1e3


def sqlite_drain(file: Path, batch: int, seconds: float) -> float:
    db = _sqlite(file)
    db.execute("BEGIN")
    db.executemany("INSERT INTO bare (payload) VALUES (?)", ((PAYLOAD,) for _ in range(int(batch * 2500 * seconds))))
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        db.execute("BEGIN IMMEDIATE")
        claimed = db.execute(SQLITE_CLAIM, (batch,)).fetchall()
        db.execute("COMMIT")
        if not claimed:
            break
        db.execute("BEGIN IMMEDIATE")
        db.executemany("UPDATE bare SET state = 2, done_at = unixepoch() WHERE id = ?", [row[:1] for row in claimed])
        db.execute("COMMIT")
        done += len(claimed)
    rate = done / (time.perf_counter() - started)
    db.close()
    return rate
