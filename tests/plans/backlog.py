"""A database with a backlog of any size, made by SQL in a few seconds.

Of every hundred jobs, 30 of the topic "mail" and 10 of "other" are ready, 20 of "mail" are dated in
the future, 30 of "mail" and 8 of "other" have ended, 2 wait at one gate. The first ones belong to
"rare": few, old, and the last that a list of the newest comes to. For every size, there are
also 50 running jobs under five leases, and a lease that has run out with three.
"""

from dataclasses import dataclass

RARE = 30
RUNNING = 50
ORPHANS = 3
EXTRA = RUNNING + ORPHANS
LIVE_LEASE, LOST_LEASE = 1, 6
TOKEN = 10_000_000
DAY = 86_400_000


def job_id(n: int) -> str:
    return f"01890000-0000-7000-8000-{n:012x}"


@dataclass(frozen=True)
class Backlog:
    """How many jobs there are, and where some of them are."""

    size: int
    now: int

    @property
    def first_running(self) -> int:
        return self.size + 1

    @property
    def last(self) -> int:
        return self.size + EXTRA


def statements(dialect: str, size: int, now: int) -> list[str]:
    """What makes the backlog; {jobs} and the like stand for tables."""
    last = size + EXTRA
    series = (
        f"SELECT i FROM generate_series(1, {last}) AS s(i)"
        if dialect == "postgres"
        else f"WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {last}) SELECT i FROM s"
    )
    id_ = (
        "CAST('01890000-0000-7000-8000-' || lpad(to_hex(i), 12, '0') AS uuid)"
        if dialect == "postgres"
        else "printf('01890000-0000-7000-8000-%012x', i)"
    )
    rare = f"i <= {RARE} AND i <= {size}"
    other = "(i % 100 BETWEEN 30 AND 39 OR i % 100 BETWEEN 90 AND 97)"
    held = f"i % 100 >= 98 AND i <= {size}"
    sequences = (
        [
            f"SELECT setval(pg_get_serial_sequence('treadle.{table}', '{column}'), {value})"
            for table, column, value in [("jobs", "n", last), ("lanes", "lane", 100), ("leases", "id", 100)]
        ]
        if dialect == "postgres"
        else []
    )
    return [
        *sequences,
        "INSERT INTO {topics} (topic) VALUES ('mail'), ('other'), ('rare')",
        "INSERT INTO {lanes} (lane, topic, capability) VALUES "
        "(1, 'mail', ''), (2, 'other', ''), (3, 'rare', ''), (4, 'mail', 'media'), (5, 'idle', '')",
        "INSERT INTO {jobs} "
        "(n, id, lane, topic, run_at, created_at, max_attempts, flags, scope, scope_id, limit_key, limit_policy, limit_most, payload) "
        f"SELECT i, {id_}, CASE WHEN {rare} THEN 3 WHEN {other} THEN 2 ELSE 1 END, "
        f"CASE WHEN {rare} THEN 'rare' WHEN {other} THEN 'other' ELSE 'mail' END, "
        f"CASE WHEN i % 100 BETWEEN 40 AND 59 THEN {now} + {DAY} + i ELSE {now} - {last} + i END, "
        f"{now} - {last} + i, 3, CASE WHEN {held} THEN 2 ELSE 0 END, "
        f"'user', CASE WHEN {rare} THEN 'rare' ELSE 'u' || (i % 1000) END, "
        f"CASE WHEN {held} THEN 'g' END, CASE WHEN {held} THEN 'queue_same_scope' END, CASE WHEN {held} THEN 1 END, "
        f"'{{{{}}}}' FROM ({series}) x",
        "INSERT INTO {ready} (lane, rank, run_at, n, attempt, max_attempts, flags) "
        f"SELECT lane, ~priority, run_at, n, 0, 3, 0 FROM {{jobs}} WHERE n % 100 < 40 AND n <= {size} ORDER BY 1, 2, 3, 4",
        "INSERT INTO {later} (n, lane, run_at, attempt) "
        f"SELECT n, lane, run_at, 0 FROM {{jobs}} WHERE n % 100 BETWEEN 40 AND 59 AND n <= {size}",
        "INSERT INTO {outcomes} (n, token, topic, status, attempt, ended_at, claimed_at, started_at) "
        "SELECT n, n, topic, "
        "CASE WHEN n % 10 = 5 THEN 'failed' WHEN n % 1000 = 66 THEN 'expired' ELSE 'completed' END, "
        f"1, CASE WHEN n <= 1000 THEN {now} - {8 * DAY} + n ELSE {now} - {last} + n END, run_at, run_at "
        f"FROM {{jobs}} WHERE n % 100 BETWEEN 60 AND 97 AND n <= {size}",
        "INSERT INTO {held} (n, lane, key, rank, run_at, most, attempt) "
        f"SELECT n, lane, 'g', ~priority, run_at, 1, 0 FROM {{jobs}} WHERE n % 100 >= 98 AND n <= {size}",
        "INSERT INTO {members} (key, n) SELECT key, n FROM {held}",
        "INSERT INTO {limits} (key, running) VALUES ('g', 0)",
        f"INSERT INTO {{limits}} (key, running) SELECT 'g' || n, 0 FROM {{jobs}} WHERE n % 50 = 0 AND n <= {size}",
        "INSERT INTO {deadlines} (n, expires_at) SELECT n, run_at FROM {later} WHERE n % 50 = 0",
        "INSERT INTO {keys} (kind, key, n) SELECT 'idempotency', 'k' || n, n FROM {jobs} WHERE n % 50 = 0",
        "INSERT INTO {events} (n, type, message, metadata, created_at) "
        f"SELECT n, 'job:failed', 'x', '{{{{}}}}', {now} FROM {{outcomes}} WHERE status = 'failed'",
        "INSERT INTO {leases} (id, worker, until, renewed_at, serves) VALUES "
        + ", ".join(
            f"({i}, 'w{i}', {now + DAY if i < LOST_LEASE else now - DAY}, {now}, '{{{{}}}}')" for i in range(1, 7)
        ),
        "INSERT INTO {running} (n, token, lease, attempt, claimed_at, cancel_at) "
        f"SELECT n, {TOKEN}, CASE WHEN n > {size + RUNNING} THEN {LOST_LEASE} ELSE 1 + n % 5 END, 1, {now}, "
        f"CASE WHEN n % 25 = 1 THEN {now} END FROM {{jobs}} WHERE n > {size}",
    ]
