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
SELECT json_group_array(json_array(n, attempt, max_attempts, flags, id, topic, payload, created_by, scope, scope_id, due, trace, expires_at))
FROM (SELECT r.n, r.attempt, r.max_attempts, r.flags, j.id, j.topic, j.payload, j.created_by, j.scope, j.scope_id,
        max(r.run_at, j.created_at) AS due, j.trace, j.expires_at
    FROM {ready} r CROSS JOIN {jobs} j ON j.n = r.n WHERE r.lane = (SELECT t.lane FROM {rows: lane integer})
    ORDER BY r.run_at, r.n LIMIT (SELECT t.top FROM {rows: top bigint}))

-- name: members
-- Live jobs under these gates, oldest first.
SELECT m.gate, m.n, j.id FROM {rows: gate text} CROSS JOIN {members} m CROSS JOIN {jobs} j
WHERE m.gate = t.gate AND j.n = m.n ORDER BY m.gate, m.n

-- name: next_held
-- Who waits at these gates, most urgent first, at each as many as the roomiest has room for.
SELECT t.gate, h.n FROM {rows: gate text} CROSS JOIN {held} h
WHERE h.n IN (SELECT x.n FROM {held} x WHERE x.gate = t.gate ORDER BY x.priority DESC, x.n
    LIMIT (SELECT max(t.room) FROM {rows: room integer}))
ORDER BY h.gate, h.priority DESC, h.n

-- name: insert_alike
-- Many jobs that differ only in id and payload (executemany).
INSERT INTO {jobs} (id, lane, topic, run_at, created_at, max_attempts, flags, template_version, scope, scope_id, created_by, payload, trace)
VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?)

-- name: clock_and_last_number
SELECT {now}, coalesce(max(n), 0) FROM {jobs}

-- name: insert_one
-- One job, with the clock in the same statement.
INSERT INTO {jobs} (id, lane, topic, run_at, created_at, max_attempts, flags, template_version, scope, scope_id, created_by, payload, trace)
VALUES (?1, ?2, ?3, coalesce(?4, {now} + ?5), {now}, ?6, 0, ?7, ?8, ?9, ?10, ?11, ?12)
RETURNING n, run_at, created_at

-- name: place_one_ready
INSERT INTO {ready} (lane, run_at, n, attempt, max_attempts, flags) VALUES (?1, ?2, ?3, 0, ?4, 0)

-- name: place_one_later
INSERT INTO {later} (n, lane, run_at, attempt) VALUES (?1, ?2, ?3, 0)

-- name: place_alike_ready
-- The jobs that were inserted after this number.
INSERT INTO {ready} (lane, run_at, n, attempt, max_attempts, flags)
SELECT lane, run_at, n, 0, max_attempts, flags FROM {jobs} WHERE n > ?

-- name: place_alike_later
INSERT INTO {later} (n, lane, run_at, attempt) SELECT n, lane, run_at, 0 FROM {jobs} WHERE n > ?

-- name: peek_heads
-- The first jobs of a lane as one JSON text, whether any has a deadline or is on its last attempt, and the last one's time.
SELECT json_group_array(json_array(n, id, topic, payload, attempt + 1, max_attempts, flags, created_by, scope, scope_id, ?3, ?4, due, trace)),
    max(flags & 4), max(attempt + 1 >= max_attempts), max(run_at)
FROM (SELECT r.n, r.run_at, r.attempt, r.max_attempts, r.flags, j.id, j.topic, j.payload, j.created_by, j.scope, j.scope_id,
        max(r.run_at, j.created_at) AS due, j.trace
    FROM {ready} r CROSS JOIN {jobs} j ON j.n = r.n WHERE r.lane = ?1 ORDER BY r.run_at, r.n LIMIT ?2)

-- name: start_heads
-- Leased: everything of a lane up to (run_at, n).
INSERT INTO {running} (n, token, lease, attempt, claimed_at)
SELECT n, ?1, ?2, attempt + 1, ?3 FROM {ready} WHERE lane = ?4 AND (run_at, n) <= (?5, ?6)

-- name: drop_heads
DELETE FROM {ready} WHERE lane = ?1 AND (run_at, n) <= (?2, ?3)

-- name: settle_completed
-- The everyday ending: append, guarded by token and lease (the caller has the only write lock and has seen the lease live).
INSERT INTO {outcomes} (n, token, topic, status, attempt, ended_at, claimed_at, started_at, cancel_at, cancel_reason,
    message, result)
SELECT r.n, r.token, ?2, 'completed', r.attempt, ?3, r.claimed_at, ?3 - json_extract(value, '$[2]'), r.cancel_at,
    r.cancel_reason, r.message, json_extract(value, '$[3]')
FROM json_each(?1) CROSS JOIN {running} r
WHERE r.n = json_extract(value, '$[0]') AND r.token = json_extract(value, '$[1]') AND r.lease = ?4

-- name: drop_running
-- The other half of settling: what has just been appended leaves `running`.
DELETE FROM {running} WHERE n IN (SELECT json_extract(value, '$[0]') FROM json_each(?1))

-- name: snapshot
-- The clock; nobody else's transaction is ever open when a number is taken.
SELECT {now}, 0, 0

-- name: late_jobs
-- Jobs in these gaps, of which there are none here.
SELECT j.n, j.created_at FROM {rows: first bigint, last bigint} CROSS JOIN {jobs} j WHERE j.n BETWEEN t.first AND t.last
ORDER BY j.n LIMIT (SELECT max(t.top) FROM {rows: top bigint})

-- name: late_events
-- Lines of history in these gaps.
SELECT e.id, e.n, e.type, e.to_status, e.metadata, e.created_at FROM {rows: first bigint, last bigint}
CROSS JOIN {events} e WHERE e.id BETWEEN t.first AND t.last
ORDER BY e.id LIMIT (SELECT max(t.top) FROM {rows: top bigint})
