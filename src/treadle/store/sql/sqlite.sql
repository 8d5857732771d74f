-- SQLite's own statements. Statements with many rows return one JSON text instead ("packed"): stepping through rows
-- releases Python's global lock at each of them, and a busy event loop takes 5 ms to hand it back.

-- name: reserve_numbers
-- Numbers for new jobs; no other process can write until this transaction ends.
WITH RECURSIVE series(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM series WHERE i < (SELECT t.count FROM {rows: count integer}))
SELECT i + coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'treadle_jobs'), 0) FROM series

-- name: next_token
UPDATE {token} SET value = value + 1 RETURNING value

-- name: lane_heads
-- The lanes that a worker serves and that have a ready job, with the place of the first one.
SELECT x.lane, x.topic, r.rank, r.run_at, r.n FROM (
    SELECT l.lane, l.topic, (SELECT r.n FROM {ready} r WHERE r.lane = l.lane ORDER BY r.rank, r.run_at, r.n LIMIT 1) AS n
    FROM {rows: topic text, capability text, worker_type text}
    CROSS JOIN {lanes} l LEFT JOIN {topics} p ON p.topic = l.topic
    WHERE l.topic = t.topic AND l.capability = t.capability AND l.worker_type = t.worker_type
      AND (p.paused_until IS NULL OR p.paused_until <= {now})) x
CROSS JOIN {ready} r ON r.n = x.n ORDER BY r.rank, r.run_at, r.n

-- name: peek_lane
-- packed: The first jobs of a lane, with the fields that a claim needs.
SELECT json_group_array(json_array(n, rank, run_at, attempt, max_attempts, flags, topic, limit_key, limit_policy, limit_most, expires_at, size))
FROM (SELECT r.n, r.rank, r.run_at, r.attempt, r.max_attempts, r.flags, j.topic, j.limit_key, j.limit_policy, j.limit_most,
        j.expires_at, length(CAST(j.payload AS BLOB)) AS size
    FROM {ready} r CROSS JOIN {jobs} j ON j.n = r.n WHERE r.lane = (SELECT t.lane FROM {rows: lane integer})
    ORDER BY r.rank, r.run_at, r.n LIMIT (SELECT t.top FROM {rows: top bigint}))

-- name: claimed_jobs
-- packed: The fields of claimed jobs.
SELECT json_group_array(json_array(j.n, j.id, j.topic, j.payload, j.max_attempts, j.flags, j.created_by, j.scope, j.scope_id,
    max(j.run_at, j.created_at), j.trace))
FROM {rows: n bigint} CROSS JOIN {jobs} j WHERE j.n = t.n

-- name: members
-- Live jobs under these keys, oldest first.
SELECT m.key, j.id, EXISTS (SELECT 1 FROM {running} r WHERE r.n = m.n), j.flags
FROM {rows: key text} CROSS JOIN {members} m CROSS JOIN {jobs} j
WHERE m.key = t.key AND j.n = m.n ORDER BY m.key, m.n

-- name: next_held
-- Jobs held under these keys, most urgent first, in each lane as many as the roomiest has room for.
SELECT t.key, t.lane, h.n FROM {rows: key text, lane integer, running integer} CROSS JOIN {held} h
WHERE h.n IN (SELECT x.n FROM {held} x WHERE x.key = t.key AND x.lane = t.lane AND x.most > t.running
    ORDER BY x.rank, x.run_at, x.n LIMIT (SELECT max(t.room) FROM {rows: room integer}))
ORDER BY h.key, h.lane, h.rank, h.run_at, h.n

-- name: insert_alike
-- Many jobs that differ only in id, payload and trace (executemany), with what they were given. A NULL is left out:
-- Python takes as long to bind one as to bind six numbers.
INSERT INTO {jobs} (id, payload, lane, topic, run_at, created_at, max_attempts, priority, flags /*names*/)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0 /*values*/)

-- name: clock_and_last_number
SELECT {now}, coalesce(max(n), 0) FROM {jobs}

-- name: place_alike_ready
-- The jobs that were inserted after this number.
INSERT INTO {ready} (lane, rank, run_at, n, attempt, max_attempts, flags)
SELECT lane, ~priority, run_at, n, 0, max_attempts, flags FROM {jobs} WHERE n > ?

-- name: place_alike_later
INSERT INTO {later} (n, lane, run_at, attempt) SELECT n, lane, run_at, 0 FROM {jobs} WHERE n > ?

-- name: peek_places
-- The places of the first jobs of a lane, as one JSON text.
SELECT json_group_array(json_array(rank, run_at, n))
FROM (SELECT rank, run_at, n FROM {ready} WHERE lane = ?1 ORDER BY rank, run_at, n LIMIT ?2)

-- name: peek_sizes
-- How large the payloads of the first jobs of a lane are. Row by row: SQLite reads a payload to measure it, so a claim
-- measures no more of them than it takes.
SELECT length(CAST(j.payload AS BLOB)) FROM {ready} r CROSS JOIN {jobs} j ON j.n = r.n
WHERE r.lane = ?1 ORDER BY r.rank, r.run_at, r.n LIMIT ?2

-- name: peek_heads
-- The first jobs of a lane as one JSON text, and whether any has a limit or a deadline or is on its last attempt.
SELECT json_group_array(json_array(n, id, topic, payload, attempt + 1, max_attempts, flags, created_by, scope, scope_id, ?3, ?4, due, trace, null, null)),
    max(flags & 2), max(flags & 4), max(attempt + 1 >= max_attempts)
FROM (SELECT r.n, r.attempt, r.max_attempts, r.flags, j.id, j.topic, j.payload, j.created_by, j.scope, j.scope_id,
        max(r.run_at, j.created_at) AS due, j.trace
    FROM {ready} r CROSS JOIN {jobs} j ON j.n = r.n WHERE r.lane = ?1 ORDER BY r.rank, r.run_at, r.n LIMIT ?2)

-- name: place_of
-- Where a ready job stands in its lane.
SELECT rank, run_at, n FROM {ready} WHERE n = ?1

-- name: start_heads
-- Leased: everything of a lane up to (rank, run_at, n).
INSERT INTO {running} (n, token, lease, attempt, claimed_at)
SELECT n, ?1, ?2, attempt + 1, ?3 FROM {ready} WHERE lane = ?4 AND (rank, run_at, n) <= (?5, ?6, ?7)

-- name: drop_heads
DELETE FROM {ready} WHERE lane = ?1 AND (rank, run_at, n) <= (?2, ?3, ?4)

-- name: settle_completed
-- Complete plain jobs: append, guarded by token and lease (the caller has the only write lock and has checked the
-- lease).
INSERT INTO {outcomes} (n, token, topic, status, attempt, ended_at, claimed_at, started_at, cancel_at, cancel_reason,
    message, result, worker)
SELECT r.n, r.token, ?2, 'completed', r.attempt, ?3, r.claimed_at, ?3 - json_extract(value, '$[2]'), r.cancel_at,
    r.cancel_reason, r.message, json_extract(value, '$[3]'), ?5
FROM json_each(?1) CROSS JOIN {running} r
WHERE r.n = json_extract(value, '$[0]') AND r.token = json_extract(value, '$[1]') AND r.lease = ?4

-- name: drop_running
-- The other half of settling: the completed jobs leave `running`.
DELETE FROM {running} WHERE n IN (SELECT json_extract(value, '$[0]') FROM json_each(?1))

-- name: snapshot
-- The clock. No other transaction is ever open when a number is taken, so there is none to wait for.
SELECT {now}, 0

-- name: next_transaction
-- Transactions have no ids here.
SELECT 0

-- name: late_jobs
-- Jobs in these gaps, of which there are none here.
SELECT j.n, j.created_at FROM {rows: first bigint, last bigint} CROSS JOIN {jobs} j WHERE j.n BETWEEN t.first AND t.last
ORDER BY j.n LIMIT (SELECT max(t.top) FROM {rows: top bigint})

-- name: late_events
-- Lines of history in these gaps.
SELECT e.id, e.n, e.type, e.to_status, e.metadata, e.created_at FROM {rows: first bigint, last bigint}
CROSS JOIN {events} e WHERE e.id BETWEEN t.first AND t.last
ORDER BY e.id LIMIT (SELECT max(t.top) FROM {rows: top bigint})

-- name: take_running
-- End attempts: only with the right token under the right lease.
DELETE FROM {running} WHERE (n, token, lease) IN (SELECT t.n, t.token, t.lease FROM {rows: n bigint, token bigint, lease bigint})
RETURNING n, token, attempt, claimed_at, started_at, cancel_at, cancel_reason, progress, message, lease

-- name: set_run_at
-- A new time for jobs that are in no place at the moment.
UPDATE {jobs} SET run_at = t.run_at FROM {rows: n bigint, run_at bigint} WHERE {jobs}.n = t.n

-- name: renew_lease
-- Renew a lease, late or not, and read the cancel requests for its jobs; no row means that it was taken back or given
-- up.
UPDATE {leases} SET until = {now} + coalesce((SELECT t.ms FROM {rows: ms bigint}), until - renewed_at),
    renewed_at = {now}
WHERE id = (SELECT t.lease FROM {rows: lease bigint}) AND until > 0
RETURNING until, (SELECT json_group_array(json_array(r.n, r.token, coalesce(r.cancel_reason, '')))
    FROM {running} r WHERE r.cancel_at IS NOT NULL AND r.lease = {leases}.id), json_extract(serves, '$.draining')

-- name: failed_groups
-- The newest failures by error group, with the newest job of each and the times of all.
SELECT g.error_group, j.id, g.ended FROM (
    SELECT f.error_group, max(f.n) AS n, json_group_array(f.ended_at) AS ended
    FROM (SELECT o.n, o.ended_at, coalesce(o.error_group, '') AS error_group FROM {outcomes} o
        WHERE o.status = 'failed' AND o.status <> 'completed'
        ORDER BY o.n DESC LIMIT (SELECT t.top FROM {rows: top bigint})) f GROUP BY 1
) g CROSS JOIN {jobs} j ON j.n = g.n

-- name: applied_migrations
-- Newest first.
SELECT name, CAST(strftime('%s', applied_at) AS INTEGER) * 1000 FROM {migrations} ORDER BY number DESC

-- name: drain_worker
-- The worker is told with the next renewal of its lease.
UPDATE {leases} SET serves = json_set(serves, '$.draining',
    json(CASE (SELECT t.draining FROM {rows: draining boolean}) WHEN 1 THEN 'true' ELSE 'false' END))
WHERE worker = (SELECT t.worker FROM {rows: worker text}) AND until > {now} AND json_extract(serves, '$.slots') > 0
RETURNING id

-- name: touch_running
-- Start and progress of running jobs, each job once, under a lease that was not taken back.
UPDATE {running} SET started_at = coalesce({running}.started_at, {now} - t.ran_ms),
    progress = coalesce(t.progress, {running}.progress), message = coalesce(t.message, {running}.message),
    grace_from = coalesce({now} + t.grace_ms, {running}.grace_from)
FROM {rows: n bigint, token bigint, lease bigint, ran_ms bigint, progress integer, message text, grace_ms bigint}
WHERE {running}.n = t.n AND {running}.token = t.token AND {running}.lease = t.lease
    AND EXISTS (SELECT 1 FROM {leases} l WHERE l.id = t.lease)
RETURNING n, token, started_at, {now}

-- name: touch_checkpoints
-- The same without an answer; the caller has the only write lock and has checked the lease.
UPDATE {running} SET started_at = coalesce({running}.started_at, ? - t.ran_ms),
    progress = coalesce(t.progress, {running}.progress), message = coalesce(t.message, {running}.message),
    grace_from = coalesce(? + t.grace_ms, {running}.grace_from)
FROM (SELECT column1 AS n, column2 AS token, column3 AS ran_ms, column4 AS progress, column5 AS message, column6 AS grace_ms
    FROM (VALUES /*each*/ (?, ?, ?, ?, ?, ?) /*end*/)) AS t
WHERE {running}.n = t.n AND {running}.token = t.token AND {running}.lease = ?

-- name: write_steps
-- As put_steps, with a parameter for each value: SQLite takes three times as long to find them in a JSON text. A step
-- never begins before its job.
INSERT INTO {steps} AS x (n, name, key, place, state, attempt, progress, message, started_at, ended_at, ran_ms, until, error,
    error_type, result, result_size, input_hash, title, schema, item)
VALUES /*each*/ (?, ?, ?, ?, ?, ?, ?, ?, max(?, (SELECT r.started_at FROM {running} r WHERE r.n = ?)),
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) /*end*/
{on_step_conflict}

-- name: tell_steps
-- Steps that have completed, as lines of history.
INSERT INTO {events} (n, type, message, metadata, created_at) VALUES /*each*/ (?, 'job:step:completed', ?, ?, ?) /*end*/

-- name: count_running
-- Count jobs in (positive) and out (negative); the rows are locked.
UPDATE {limits} SET running = running + t.change FROM {rows: key text, change integer} WHERE {limits}.key = t.key
RETURNING {limits}.key, running

-- name: patch_jobs
-- Change the named fields of pending jobs that are in no place at the moment.
UPDATE {jobs} SET priority = coalesce(t.priority, {jobs}.priority), run_at = coalesce(t.run_at, {jobs}.run_at),
    max_attempts = coalesce(t.max_attempts, {jobs}.max_attempts), changed_at = t.now
FROM {rows: n bigint, priority integer, run_at bigint, max_attempts integer, now bigint} WHERE {jobs}.n = t.n
RETURNING n, run_at

-- name: move_to_leases
-- Running jobs from the lease under which they were claimed to one of their own.
UPDATE {running} SET lease = t.lease FROM {rows: n bigint, token bigint, old bigint, lease bigint}
WHERE {running}.n = t.n AND {running}.token = t.token AND {running}.lease = t.old

-- name: change_records
-- Change records; missing from the answer: the ones with a different version or a taken key.
UPDATE {records} SET key = t.key, body = t.body, due = t.due, version = t.version + 1, updated_at = {now}
FROM {rows: kind text, id text, key text, body text, due bigint, version bigint}
WHERE {records}.kind = t.kind AND {records}.id = t.id AND {records}.version = t.version
    AND NOT EXISTS (SELECT 1 FROM {records} o WHERE o.kind = t.kind AND o.key = t.key AND o.id <> t.id)
RETURNING {records}.kind, {records}.id, {records}.key, {records}.body, {records}.version, {records}.created_at,
    {records}.updated_at, {records}.due

-- name: drop_records
-- Delete records of any kinds.
DELETE FROM {records} WHERE (kind, id) IN (SELECT t.kind, t.id FROM {rows: kind text, id text}) RETURNING id

-- name: set_job_keys
-- What comes with new payloads. 27: the traits that belong to keys.
UPDATE {jobs} SET idempotency_key = t.idempotency_key, dedupe_key = t.dedupe_key, flags = ({jobs}.flags & ~27) | t.traits,
    limit_key = t.limit_key, limit_policy = t.limit_policy, limit_most = t.limit_most
FROM {rows: n bigint, idempotency_key text, dedupe_key text, traits integer, limit_key text, limit_policy text,
    limit_most integer} WHERE {jobs}.n = t.n

-- name: set_payloads
-- New payloads of jobs that are requeued.
UPDATE {jobs} SET payload = t.payload FROM {rows: n bigint, payload text} WHERE {jobs}.n = t.n

-- name: delivery_counts
-- What the newest deliveries of endpoints have come to since a time, and when the last of each kind did.
SELECT t.endpoint, d.status, count(*), max(d.finished_at) FROM {rows: endpoint text, age bigint}
CROSS JOIN {deliveries} d ON d.id IN (SELECT c.id FROM {deliveries} c WHERE c.endpoint = t.endpoint
    AND c.created_at >= {now} - t.age AND c.n <> 0 ORDER BY c.id DESC LIMIT 1000)
GROUP BY 1, 2

-- name: awaited_depth
-- How many jobs wait for this one, from its parent up.
WITH RECURSIVE up (id, depth) AS (
    SELECT j.parent_id, 1 FROM {jobs} j WHERE j.n = (SELECT t.n FROM {rows: n bigint}) AND j.parent_step IS NOT NULL
    UNION ALL SELECT p.parent_id, up.depth + 1 FROM up JOIN {jobs} p ON p.id = up.id WHERE p.parent_step IS NOT NULL)
SELECT coalesce(max(u.depth), 0) FROM up u

-- name: try_again
-- They are tried again. A second condition, as on PostgreSQL, would make SQLite compare each row with each.
UPDATE {outbox} SET holder = NULL, tried = {outbox}.tried + 1, due_at = t.due_at FROM {rows: id bigint, due_at bigint}
WHERE {outbox}.id = t.id

-- name: write_deliveries
-- What came of tries.
UPDATE {deliveries} SET status = t.status, tries = t.tries, finished_at = t.finished_at, url = coalesce(t.url, {deliveries}.url)
FROM {rows: id bigint, status text, tries text, finished_at bigint, url text}
WHERE {deliveries}.id = t.id

-- name: number_events
-- Their numbers, in the outbox.
UPDATE {outbox} SET number = t.number FROM {rows: id bigint, number bigint}
WHERE {outbox}.id = t.id

-- name: number_deliveries
-- The same in the log.
UPDATE {deliveries} SET number = t.number FROM {rows: id bigint, number bigint}
WHERE {deliveries}.id = t.id
