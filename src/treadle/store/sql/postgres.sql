-- PostgreSQL's own statements: the hot ones, each a single round trip, and those whose syntax differs.

-- name: reserve_numbers
-- Numbers for new jobs. The transaction gets its id before: who sees a number missing must know who may still use it.
WITH me AS MATERIALIZED (SELECT pg_current_xact_id() AS id)
SELECT nextval(pg_get_serial_sequence('treadle.jobs', 'n'))
FROM me, generate_series(1, (SELECT t.count FROM {rows: count integer})) WHERE me.id IS NOT NULL

-- name: next_token
SELECT nextval('treadle.token')

-- name: peek_lane
-- The first jobs of a lane, locked; what somebody else is claiming is skipped.
SELECT r.n, r.attempt, r.max_attempts, r.flags, j.id::text, j.topic, j.payload, j.created_by, j.scope, j.scope_id,
    greatest(r.run_at, j.created_at), j.trace, j.expires_at
FROM {ready} r JOIN {jobs} j ON j.n = r.n WHERE r.lane = (SELECT t.lane FROM {rows: lane integer})
ORDER BY r.run_at, r.n LIMIT (SELECT t.top FROM {rows: top bigint}) FOR UPDATE OF r SKIP LOCKED

-- name: members
-- Live jobs under these gates, oldest first. OFFSET keeps the planner from walking through the members of all gates
-- when the statistics say that most belong to one.
SELECT t.gate, m.n, m.id FROM {rows: gate text} CROSS JOIN LATERAL (
    SELECT x.n, j.id::text FROM {members} x JOIN {jobs} j ON j.n = x.n WHERE x.gate = t.gate OFFSET 0) m
ORDER BY t.gate, m.n

-- name: next_held
-- Who waits at these gates, most urgent first, as many as there is room for; not all who wait, they may be many.
SELECT t.gate, h.n FROM {rows: gate text, room integer} CROSS JOIN LATERAL (
    SELECT x.n, x.priority FROM {held} x WHERE x.gate = t.gate ORDER BY x.priority DESC, x.n LIMIT t.room) h
ORDER BY t.gate, h.priority DESC, h.n

-- name: insert_alike
-- Many jobs that differ only in id and payload: the bulk path. $1 ids, $2 payloads, $3 lane, $4 topic, $5 delay,
-- $6 run_at or null, $7 max_attempts, $8 template_version, $9 scope, $10 scope_id, $11 created_by, $12 capability,
-- $13 priority, $14 traces or null. Nothing happens (0 rows) if the lane is not what the caller remembers.
-- The transaction has its id before it takes numbers, as in reserve_numbers.
WITH at AS MATERIALIZED (
    SELECT {now} AS now, greatest(coalesce($6::bigint, {now} + $5::bigint), 0) AS run_at, pg_current_xact_id() AS id
    FROM {lanes} l WHERE l.lane = $3 AND l.topic = $4 AND l.capability = $12 AND l.priority = $13
), j AS (
    INSERT INTO {jobs} (id, lane, topic, run_at, created_at, max_attempts, flags, template_version, scope, scope_id,
        created_by, payload, trace)
    SELECT t.id, $3, $4, at.run_at, at.now, $7, 0, $8, $9, $10, $11, t.payload, t.trace
    FROM at, unnest($1::uuid[], $2::json[], $14::text[]) AS t(id, payload, trace)
    RETURNING n, run_at, created_at
), placed AS (
    INSERT INTO {ready} (lane, run_at, n, attempt, max_attempts, flags)
    SELECT $3, j.run_at, j.n, 0, $7, 0 FROM j WHERE j.run_at <= j.created_at
), later AS (
    INSERT INTO {later} (n, lane, run_at, attempt) SELECT j.n, $3, j.run_at, 0 FROM j WHERE j.run_at > j.created_at
)
SELECT now FROM at

-- name: claim
-- The whole claim. $1 lease, $2 topics, $3 capabilities, $4 limit, $5 free slots, $6 $7 $8 marks (lane, run_at, n).
--
-- Lanes are walked lazily: highest priority first, then the one whose head is oldest, and from each the first rows by
-- time with SKIP LOCKED until the limit is reached, so the cost does not grow with the backlog, with other topics or
-- with the future. A mark says where the last claim of a lane ended: what lies before it is dead and would have to be
-- stepped over while an old snapshot keeps it from being vacuumed. Jobs on their last attempt are only taken into a
-- free slot. Rows are deleted by ctid: they are locked, so they cannot have moved.
WITH me AS MATERIALIZED (
    SELECT l.id AS lease, nextval('treadle.token') AS token, {now} AS now
    FROM {leases} l WHERE l.id = $1 AND l.until > {now} FOR KEY SHARE
), lane AS MATERIALIZED (
    SELECT l.lane, coalesce(m.run_at, -1) AS mark_at, coalesce(m.n, -1) AS mark_n
    FROM {lanes} l
    LEFT JOIN {topics} p ON p.topic = l.topic
    LEFT JOIN LATERAL (SELECT u.run_at, u.n FROM unnest($6::int[], $7::bigint[], $8::bigint[]) AS u(lane, run_at, n)
        WHERE u.lane = l.lane) m ON true
    CROSS JOIN LATERAL (SELECT r.run_at FROM {ready} r
        WHERE r.lane = l.lane AND (r.run_at, r.n) > (coalesce(m.run_at, -1), coalesce(m.n, -1))
        ORDER BY r.run_at, r.n LIMIT 1) head
    WHERE l.topic = ANY($2::text[]) AND (l.capability = '' OR l.capability = ANY($3::text[]))
      AND (p.paused_until IS NULL OR p.paused_until <= {now}) AND p.rate_limit IS NULL
    ORDER BY l.priority DESC, head.run_at
), picked AS MATERIALIZED (
    SELECT r.*, row_number() OVER () AS place FROM (
        SELECT q.* FROM me, lane CROSS JOIN LATERAL (
            SELECT r.ctid AS tid, r.lane, r.run_at, r.n, r.attempt, r.max_attempts, r.flags FROM {ready} r
            WHERE r.lane = lane.lane AND (r.run_at, r.n) > (lane.mark_at, lane.mark_n)
            ORDER BY r.run_at, r.n LIMIT $4 FOR UPDATE SKIP LOCKED) q
        LIMIT $4) r
), chosen AS MATERIALIZED (
    SELECT p.*, j.id, j.topic, j.payload, j.created_by, j.scope, j.scope_id, j.trace,
        greatest(p.run_at, j.created_at) AS due,
        (p.flags & 4) <> 0 AND coalesce(j.expires_at <= me.now, false) AS overdue
    FROM me, picked p JOIN {jobs} j ON j.n = p.n
    WHERE p.attempt + 1 < p.max_attempts OR p.place <= $5
), gone AS (
    DELETE FROM {ready} WHERE ctid = ANY(ARRAY(SELECT tid FROM chosen WHERE NOT overdue))
), started AS (
    INSERT INTO {running} (n, token, lease, attempt, claimed_at)
    SELECT c.n, me.token, me.lease, c.attempt + 1, me.now FROM chosen c, me WHERE NOT c.overdue
)
SELECT c.n, c.id, c.topic, c.payload, c.attempt + 1, c.max_attempts, c.flags, c.created_by, c.scope, c.scope_id,
    me.token, c.lane, c.run_at, c.overdue, c.due, c.trace, me.now
FROM me LEFT JOIN chosen c ON true

-- name: settle_completed
-- The everyday ending of any number of jobs under one lease: completed, nothing hangs on them.
-- $1 lease, $2 numbers, $3 tokens, $4 ms that they ran (null: never started), $5 topics, $6 results.
WITH live AS MATERIALIZED (
    SELECT l.id, {now} AS now FROM {leases} l WHERE l.id = $1 AND l.until > {now} FOR KEY SHARE
), gone AS (
    DELETE FROM {running} r
    USING live, unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::json[]) AS t(n, token, ran, topic, result)
    WHERE r.n = t.n AND r.token = t.token AND r.lease = live.id
    RETURNING r.n, r.token, r.attempt, r.claimed_at, r.cancel_at, r.cancel_reason, r.message, live.now, t.ran, t.topic,
        t.result
), ended AS (
    INSERT INTO {outcomes} (n, token, topic, status, attempt, ended_at, claimed_at, started_at, cancel_at, cancel_reason,
        message, result)
    SELECT n, token, topic, 'completed', attempt, now, claimed_at, now - ran, cancel_at, cancel_reason, message, result
    FROM gone
), counted AS (
    INSERT INTO {tally} AS y (minute, writer, topic, status, count, run_ms)
    SELECT now / 60000, $1, topic, 'completed', count(*), coalesce(sum(ran), 0) FROM gone GROUP BY now, topic
    ON CONFLICT (minute, writer, topic, status) DO UPDATE
        SET count = y.count + excluded.count, run_ms = y.run_ms + excluded.run_ms
), told AS (
    INSERT INTO {events} (n, type, from_status, to_status, message, metadata, created_at)
    SELECT 0, 'job:completed', 'processing', 'completed', '', json_agg(n), now FROM gone GROUP BY now
)
SELECT coalesce(array_agg(n), '{}') FROM gone

-- name: snapshot
-- The clock, the oldest transaction that is still open, and the number that the next one gets.
SELECT {now}, CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint),
    CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)

-- name: late_jobs
-- Jobs in these gaps. OFFSET keeps the planner from walking through all jobs in their order.
SELECT x.n, x.created_at FROM {rows: first bigint, last bigint} CROSS JOIN LATERAL (
    SELECT j.n, j.created_at FROM {jobs} j WHERE j.n BETWEEN t.first AND t.last ORDER BY j.n OFFSET 0) x
ORDER BY x.n LIMIT (SELECT max(t.top) FROM {rows: top bigint})

-- name: late_events
-- Lines of history in these gaps.
SELECT x.id, x.n, x.type, x.to_status, x.metadata, x.created_at FROM {rows: first bigint, last bigint} CROSS JOIN LATERAL (
    SELECT e.id, e.n, e.type, e.to_status, e.metadata::text, e.created_at FROM {events} e
    WHERE e.id BETWEEN t.first AND t.last ORDER BY e.id OFFSET 0) x
ORDER BY x.id LIMIT (SELECT max(t.top) FROM {rows: top bigint})
