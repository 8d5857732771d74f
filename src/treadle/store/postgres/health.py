"""PostgreSQL's part of `doctor`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from treadle.store.sql import check
from treadle.store.views import Finding

if TYPE_CHECKING:
    from treadle.store.postgres.store import PostgresStore

MIN_VERSION = 140000
OLD_TRANSACTION_SECONDS = 60
HOT_TABLES = ("ready", "later", "running")
MANY_DEAD = 1_000_000


async def examine(store: PostgresStore) -> list[Finding]:
    return [
        Finding("connection", "ok", "connected"),
        await _version(store),
        _pooler(store),
        await _clock(store),
        await _oldest_transaction(store),
        await _bloat(store),
        await _durability(store),
        await _wal(store),
        *await check.examine(store),
    ]


async def _version(store: PostgresStore) -> Finding:
    number, text = (
        await store.read("SELECT current_setting('server_version_num')::int, current_setting('server_version')", [])
    )[0]
    if number >= MIN_VERSION:
        return Finding("server version", "ok", f"PostgreSQL {text}")
    return Finding("server version", "fail", f"PostgreSQL {text}", "treadle needs PostgreSQL 14 or newer")


def _pooler(store: PostgresStore) -> Finding:
    if store.pools.pooled:
        return Finding(
            "listen",
            "warn",
            "behind a pooler: LISTEN does not work, workers find jobs by polling",
            "for faster pick-up, give the workers a direct connection",
        )
    return Finding("listen", "ok", "direct connection, LISTEN/NOTIFY works")


async def _clock(store: PostgresStore) -> Finding:
    before = time.time() * 1000
    server = await store.now()
    skew = server - (before + time.time() * 1000) / 2
    if abs(skew) < 1000:
        return Finding("clock", "ok", f"{skew:+.0f} ms from the server's")
    return Finding(
        "clock",
        "warn",
        f"this machine is {-skew / 1000:+.1f} s from the server",
        "leases and due times follow the server; times in logs and of run_at=now() + … will look odd",
    )


async def _oldest_transaction(store: PostgresStore) -> Finding:
    rows = await store.read(
        "SELECT pid, usename, state, coalesce(application_name, ''), extract(epoch FROM now() - xact_start)::bigint "
        "FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend' ORDER BY xact_start LIMIT 1",
        [],
    )
    if not rows or rows[0][4] < OLD_TRANSACTION_SECONDS:
        return Finding("oldest transaction", "ok", f"{rows[0][4] if rows else 0} s")
    pid, user, state, application, seconds = rows[0]
    return Finding(
        "oldest transaction",
        "warn",
        f"pid {pid} ({user}, {application or 'no name'}) has been {state} for {seconds} s",
        f"it keeps vacuum from cleaning the queue; end it: SELECT pg_terminate_backend({pid})",
    )


async def _bloat(store: PostgresStore) -> Finding:
    rows = await store.read(
        "SELECT relname, n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'treadle' "
        "AND relname = ANY($1::text[]) ORDER BY n_dead_tup DESC",
        [list(HOT_TABLES)],
    )
    worst = rows[0] if rows else ("ready", 0, 0)
    text = f"{worst[0]}: {worst[2]:,} dead rows, {worst[1]:,} live"
    if worst[2] < MANY_DEAD:
        return Finding("bloat", "ok", text)
    return Finding("bloat", "warn", text, f"VACUUM treadle.{worst[0]}; look for old transactions and autovacuum")


async def _durability(store: PostgresStore) -> Finding:
    sync, fsync = (await store.read("SELECT current_setting('synchronous_commit'), current_setting('fsync')", []))[0]
    if fsync == "off":
        return Finding(
            "durability", "fail", "fsync is off", "a crash of the machine may destroy the database; switch fsync on"
        )
    if sync == "off":
        return Finding("durability", "warn", "synchronous_commit is off: the last moments may be lost in a crash")
    return Finding("durability", "ok", f"synchronous_commit = {sync}")


async def _wal(store: PostgresStore) -> Finding:
    allowed = await store.read("SELECT has_function_privilege('pg_ls_waldir()', 'execute')", [])
    if not allowed[0][0]:
        return Finding("wal size", "ok", "not readable for this user")
    rows = await store.read("SELECT count(*), coalesce(sum(size), 0)::bigint FROM pg_ls_waldir()", [])
    return Finding("wal size", "ok", f"{rows[0][1] / 1e6:.0f} MB in {rows[0][0]} files")
