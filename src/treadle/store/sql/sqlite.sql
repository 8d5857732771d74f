-- SQLite's own statements. Those that answer with many rows answer with one JSON text instead ("packed"): stepping
-- through rows gives up Python's global lock at each of them, and a busy event loop takes 5 ms to hand it back.

-- name: reserve_numbers
-- Numbers for new jobs; nobody else can write until this transaction ends.
WITH RECURSIVE series(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM series WHERE i < (SELECT t.count FROM {rows: count integer}))
SELECT i + coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'treadle_jobs'), 0) FROM series

-- name: next_token
UPDATE {token} SET value = value + 1 RETURNING value

-- name: peek_lane
-- packed: The first jobs of a lane.
SELECT json_group_array(json_array(n, attempt, max_attempts, flags, id, topic, payload, created_by, scope, scope_id, expires_at))
FROM (SELECT r.n, r.attempt, r.max_attempts, r.flags, j.id, j.topic, j.payload, j.created_by, j.scope, j.scope_id, j.expires_at
    FROM {ready} r CROSS JOIN {jobs} j ON j.n = r.n WHERE r.lane = (SELECT t.lane FROM {rows: lane integer})
    ORDER BY r.run_at, r.n LIMIT (SELECT t.top FROM {rows: top bigint}))

-- name: insert_alike
-- Many jobs that differ only in id and payload (executemany).
INSERT INTO {jobs} (id, lane, topic, run_at, created_at, max_attempts, flags, template_version, scope, scope_id, created_by, payload)
VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)

-- name: place_alike_ready
-- The last jobs that were inserted, by their first number.
INSERT INTO {ready} (lane, run_at, n, attempt, max_attempts, flags)
SELECT lane, run_at, n, 0, max_attempts, flags FROM {jobs} WHERE n > ?

-- name: place_alike_later
INSERT INTO {later} (n, lane, run_at, attempt) SELECT n, lane, run_at, 0 FROM {jobs} WHERE n > ?

-- name: settle_completed
-- The everyday ending: append (guarded by token and lease; the caller holds the only write lock and has seen the lease live).
INSERT INTO {outcomes} (n, token, topic, status, attempt, ended_at, claimed_at, started_at, cancel_at, cancel_reason, result)
SELECT r.n, r.token, t.topic, 'completed', r.attempt, t.now, r.claimed_at, t.now - t.ran, r.cancel_at, r.cancel_reason, t.result
FROM {rows: n bigint, token bigint, lease bigint, ran bigint, topic text, result text, now bigint}
CROSS JOIN {running} r WHERE r.n = t.n AND r.token = t.token AND r.lease = t.lease

-- name: drop_running
-- The other half of settling: what has just been appended leaves `running`.
DELETE FROM {running} WHERE n IN (SELECT t.n FROM {rows: n bigint})
