-- PostgreSQL's own statements: the hot ones, each a single round trip, and others with a different syntax.

-- name: reserve_numbers
-- Numbers for new jobs. The transaction takes its id first: a reader that sees a gap must know which transactions can
-- still fill it.
WITH me AS MATERIALIZED (SELECT pg_current_xact_id() AS id)
SELECT nextval(pg_get_serial_sequence('treadle.jobs', 'n'))
FROM me, generate_series(1, (SELECT t.count FROM {rows: count integer})) WHERE me.id IS NOT NULL

-- name: limit_waits
-- Limit lock waits until the end of this transaction.
SELECT set_config('lock_timeout', t.ms, true) FROM {rows: ms text}

-- name: next_token
SELECT nextval('treadle.token')

-- name: lane_heads
-- The lanes that a worker serves and that have a ready job, with the place of the first one.
SELECT l.lane, l.topic, r.rank, r.run_at, r.n FROM {rows: topic text, capability text, worker_type text}
{seek: lanes l ON l.topic = t.topic AND l.capability = t.capability AND l.worker_type = t.worker_type}
LEFT JOIN {topics} p ON p.topic = l.topic
CROSS JOIN LATERAL (SELECT x.rank, x.run_at, x.n FROM {ready} x WHERE x.lane = l.lane
    ORDER BY x.rank, x.run_at, x.n LIMIT 1) r
WHERE p.paused_until IS NULL OR p.paused_until <= {now} ORDER BY r.rank, r.run_at, r.n

-- name: peek_lane
-- The first jobs of a lane, locked, with the fields that a claim needs; rows locked by other claims are skipped.
SELECT r.n, r.rank, r.run_at, r.attempt, r.max_attempts, r.flags, j.topic, j.limit_key, j.limit_policy, j.limit_most,
    j.expires_at,
    CASE WHEN pg_column_compression(j.payload) IS NULL THEN pg_column_size(j.payload) ELSE octet_length(j.payload::text) END
FROM {ready} r {seek: jobs j ON j.n = r.n} WHERE r.lane = (SELECT t.lane FROM {rows: lane integer})
ORDER BY r.rank, r.run_at, r.n LIMIT (SELECT t.top FROM {rows: top bigint}) FOR UPDATE OF r SKIP LOCKED

-- name: claimed_jobs
-- The fields of claimed jobs.
SELECT j.n, j.id::text, j.topic, j.payload, j.max_attempts, j.flags, j.created_by, j.scope, j.scope_id,
    greatest(j.run_at, j.created_at), j.trace
FROM {rows: n bigint} {seek: jobs j ON j.n = t.n}

-- name: members
-- Live jobs under these keys, oldest first. OFFSET keeps the planner from walking through the members of all keys
-- when the statistics say that most belong to one.
SELECT t.key, m.id, m.running, m.flags FROM {rows: key text} CROSS JOIN LATERAL (
    SELECT x.n, j.id::text, j.flags, EXISTS (SELECT 1 FROM {running} r WHERE r.n = x.n) AS running
    FROM {members} x {seek: jobs j ON j.n = x.n} WHERE x.key = t.key OFFSET 0) m
ORDER BY t.key, m.n

-- name: next_held
-- Jobs held under these keys, most urgent first, in each lane as many as there is room for; there may be many more.
-- Locked ones are skipped.
SELECT t.key, t.lane, h.n FROM {rows: key text, lane integer, running integer, room integer} CROSS JOIN LATERAL (
    SELECT x.n FROM {held} x WHERE x.key = t.key AND x.lane = t.lane AND x.most > t.running
    ORDER BY x.rank, x.run_at, x.n LIMIT t.room FOR UPDATE SKIP LOCKED) h

-- name: insert_alike
-- Many jobs that differ only in id and payload: the bulk path. $1 ids, $2 payloads, $3 lane, $4 topic, $5 delay,
-- $6 run_at or null, $7 max_attempts, $8 capability, $9 priority, $10 traces or null, $11 … what the jobs were given.
-- Nothing happens (0 rows) if the lane is not what the caller remembers.
-- The transaction has its id before it takes numbers, as in reserve_numbers.
WITH at AS MATERIALIZED (
    SELECT {now} AS now, {due: $6::bigint, $5::bigint} AS run_at, pg_current_xact_id() AS id
    FROM {lanes} l WHERE l.lane = $3 AND l.topic = $4 AND l.capability = $8 AND l.worker_type = ''
), j AS (
    INSERT INTO {jobs} (id, lane, topic, run_at, created_at, max_attempts, flags, payload, trace, priority, {plain})
    SELECT t.id, $3, $4, at.run_at, at.now, $7, 0, t.payload, t.trace, $9, {plain: $11}
    FROM at, unnest($1::uuid[], $2::json[], $10::text[]) AS t(id, payload, trace)
    RETURNING n, run_at, created_at
), placed AS (
    INSERT INTO {ready} (lane, rank, run_at, n, attempt, max_attempts, flags)
    SELECT $3, ~$9, j.run_at, j.n, 0, $7, 0 FROM j WHERE j.run_at <= j.created_at
), later AS (
    INSERT INTO {later} (n, lane, run_at, attempt) SELECT j.n, $3, j.run_at, 0 FROM j WHERE j.run_at > j.created_at
)
SELECT now FROM at

-- name: claim
-- The whole claim, for a worker that serves one lane; `postgres/claim_statement.py` has `lane` and `picked` for several.
-- $1 lease, $2 topics, $3 capabilities and '', $4 worker types and '', $5 limit, $6 free slots, $7 bytes of payload,
-- $8 $9 $10 $11 marks (lane, rank, run_at, n); null if places are not wanted.
--
-- Highest priority first, then the oldest over all lanes. A worker's lanes are looked up by their key, so the cost does
-- not grow with lanes or priorities ever used, with the backlog, with other topics or with delayed jobs.
--
-- A mark says where the last claim of a lane ended. Rows before it are dead, but would have to be stepped over while an
-- old snapshot keeps them from being vacuumed. Jobs on their last attempt are only taken into a free slot. If one of
-- the jobs has a concurrency or rate limit, or its deadline has passed, or their payloads are too large together,
-- nothing is taken (`hard`): the script decides which may start. Rows are deleted by ctid: they are locked, so they
-- cannot have moved.
--
-- The answer is one row: token, clock, `hard`, whether more lanes have jobs than were looked at, whether other claims
-- had all rows locked, the last place in each lane, and the jobs as arrays, which take a third of the time to read that
-- rows take. The last column has the fields that most jobs leave empty, by number.
WITH me AS MATERIALIZED (
    SELECT l.id AS lease, nextval('treadle.token') AS token, {now} AS now
    FROM {leases} l WHERE l.id = $1 AND l.until > {now} FOR KEY SHARE
), lane AS MATERIALIZED (
    SELECT l.lane, p.rate_limit IS NOT NULL AS rated, 1 AS nth, array_position($8::int[], l.lane) AS mark
    FROM me CROSS JOIN {lanes} l LEFT JOIN {topics} p ON p.topic = l.topic
    WHERE l.topic = ($2::text[])[1] AND l.capability = ($3::text[])[1] AND l.worker_type = ($4::text[])[1]
        AND (p.paused_until IS NULL OR p.paused_until <= me.now)
), picked AS MATERIALIZED (
    SELECT q.*, row_number() OVER () AS place FROM (
        SELECT x.*, l.rated FROM me, lane l CROSS JOIN LATERAL (
            SELECT r.ctid AS tid, r.lane, r.rank, r.run_at, r.n, r.attempt, r.max_attempts, r.flags FROM {ready} r
            WHERE r.lane = l.lane AND (r.rank, r.run_at, r.n) > (coalesce(($9::int[])[l.mark], -2147483648),
                coalesce(($10::bigint[])[l.mark], -1), coalesce(($11::bigint[])[l.mark], -1))
            ORDER BY r.rank, r.run_at, r.n LIMIT $5 FOR UPDATE SKIP LOCKED) x) q
), chosen AS MATERIALIZED (
    SELECT p.tid, p.lane, p.rank, p.run_at, p.n, p.attempt, p.max_attempts, p.flags, p.place, j.id, j.topic, j.payload,
        j.created_by, j.scope, j.scope_id, j.trace, greatest(p.run_at, j.created_at) AS due,
        p.rated OR p.flags & 2 <> 0 OR (p.flags & 4 <> 0 AND p.attempt = 0 AND coalesce(j.expires_at <= me.now, false)) AS hard
    FROM me, picked p JOIN {jobs} j ON j.n = p.n WHERE p.attempt + 1 < p.max_attempts OR p.place <= $6
), seen AS MATERIALIZED (
    SELECT count(*) AS count,
        count(*) > 0 AND (bool_or(c.hard) OR (count(*) > 1 AND sum(CASE WHEN pg_column_compression(c.payload) IS NULL
            THEN pg_column_size(c.payload) ELSE octet_length(c.payload::text) END) > $7)) AS hard
    FROM chosen c
), gone AS (
    DELETE FROM {ready} WHERE ctid = ANY(ARRAY(SELECT c.tid FROM chosen c WHERE NOT (SELECT s.hard FROM seen s)))
), started AS (
    INSERT INTO {running} (n, token, lease, attempt, claimed_at)
    SELECT c.n, me.token, me.lease, c.attempt + 1, me.now FROM chosen c, me WHERE NOT (SELECT s.hard FROM seen s)
)
SELECT me.token, me.now, seen.hard, seen.count < $5 AND EXISTS (SELECT 1 FROM lane WHERE nth > 16) AS again,
    NOT EXISTS (SELECT 1 FROM picked) AND EXISTS (SELECT 1 FROM lane l CROSS JOIN LATERAL (
        SELECT FROM {ready} r WHERE r.lane = l.lane ORDER BY r.rank, r.run_at, r.n LIMIT 1) head) AS elsewhere,
    CASE WHEN $8::int[] IS NOT NULL THEN (SELECT json_agg(json_build_array(x.lane, x.rank, x.run_at, x.n)) FROM (
        SELECT DISTINCT ON (c.lane) c.lane, c.rank, c.run_at, c.n FROM chosen c ORDER BY c.lane, c.place DESC) x) END,
    jobs.*
FROM me CROSS JOIN seen CROSS JOIN LATERAL (
    SELECT array_agg(c.n), array_agg(CAST(c.id AS text)), array_agg(c.topic), array_agg(c.payload),
        array_agg(c.attempt + 1), array_agg(c.max_attempts), array_agg(c.flags), array_agg(c.due),
        json_object_agg(c.n, json_build_array(c.created_by, c.scope, c.scope_id, c.trace))
            FILTER (WHERE coalesce(c.created_by, c.scope, c.scope_id, c.trace) IS NOT NULL)
    FROM (SELECT * FROM chosen WHERE NOT seen.hard ORDER BY place) c) jobs

-- name: completions
-- A part of settle_completed and settle_flows: what is written for the jobs in `done`. $1 is the lease, $5 how long they
-- waited and ran, as rows of `tally_hist`. `now` may be from before a lock that a cancel held, which came first.
ended AS (
    INSERT INTO {outcomes} (n, token, topic, status, attempt, ended_at, claimed_at, started_at, cancel_at, cancel_reason,
        message, result, worker)
    SELECT n, token, topic, 'completed', attempt, greatest(now, cancel_at), claimed_at, now - ran, cancel_at,
        cancel_reason, message, result, worker_id FROM done
), counted AS (
    INSERT INTO {tally} AS y (minute, writer, topic, status, count, run_ms)
    SELECT now / 60000, $1, topic, 'completed', count(*), coalesce(sum(greatest(ran, 0)), 0) FROM done GROUP BY now, topic
    ON CONFLICT (minute, writer, topic, status) DO UPDATE
        SET count = y.count + excluded.count, run_ms = y.run_ms + excluded.run_ms
), timed AS (
    INSERT INTO {tally_hist} AS y (minute, writer, topic, kind, bucket, count)
    SELECT live.now / 60000, $1, t.topic, t.kind, t.bucket, sum(t.count)
    FROM live, json_to_recordset($5) AS t (topic text, kind text, bucket integer, count bigint)
    GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (minute, writer, topic, kind, bucket) DO UPDATE SET count = y.count + excluded.count
)

-- name: settle_completed
-- Complete any number of plain jobs under one lease. $1 lease, $2 numbers, rising, $3 their tokens, $4 ms that they ran
-- (null: never started), $5 see completions, $6 topics, $7 the index of each job's topic (null: all have the first), $8
-- results as texts in a JSON array (null: none). Arrays come as text, which is quicker to encode. The results are jsonb,
-- because finding an element of a json[] takes as long as the array is.
--
-- No join: the numbers are searched in the index, and the values for a number are found by a binary search. A join was
-- once planned while `running` was empty and then scanned it for each row.
WITH live AS MATERIALIZED (
    SELECT l.id, l.worker_id, {now} AS now FROM {leases} l WHERE l.id = $1 FOR KEY SHARE
), gone AS (
    DELETE FROM {running} r USING live
    WHERE r.n = ANY((SELECT $2::text::bigint[])::bigint[]) AND r.lease = live.id
        AND r.token = (SELECT $3::text::bigint[])[width_bucket(r.n, (SELECT $2::text::bigint[]))]
    RETURNING r.n, r.token, r.attempt, r.claimed_at, r.cancel_at, r.cancel_reason, r.message, live.now, live.worker_id,
        width_bucket(r.n, (SELECT $2::text::bigint[])) AS place
), done AS MATERIALIZED (
    SELECT g.*, (SELECT $4::text::bigint[])[g.place] AS ran,
        ($6::text[])[coalesce((SELECT $7::text::int[])[g.place], 1)] AS topic, CAST((SELECT $8::jsonb) ->> (g.place - 1) AS json) AS result
    FROM gone g
), /*completions*/, told AS (
    INSERT INTO {events} (n, type, from_status, to_status, message, metadata, created_at)
    SELECT 0, 'job:completed', 'processing', 'completed', '', json_agg(n), now FROM done GROUP BY now
)
SELECT coalesce(array_agg(n), '{}') FROM done

-- name: take_running
-- End attempts: only with the right token under the right lease. As in settle_completed, no join.
WITH t AS MATERIALIZED (
    SELECT array_agg(t.n ORDER BY t.n) AS ns, array_agg(t.token ORDER BY t.n) AS tokens,
        array_agg(t.lease ORDER BY t.n) AS leases FROM {rows: n bigint, token bigint, lease bigint})
DELETE FROM {running} r WHERE r.n = ANY((SELECT ns FROM t)::bigint[])
    AND r.token = (SELECT tokens FROM t)[width_bucket(r.n, (SELECT ns FROM t))]
    AND r.lease = (SELECT leases FROM t)[width_bucket(r.n, (SELECT ns FROM t))]
RETURNING n, token, attempt, claimed_at, started_at, cancel_at, cancel_reason, progress, message, lease

-- name: set_run_at
-- A new time for jobs that are in no place at the moment.
WITH t AS MATERIALIZED (
    SELECT array_agg(t.n ORDER BY t.n) AS ns, array_agg(t.run_at ORDER BY t.n) AS times FROM {rows: n bigint, run_at bigint})
UPDATE {jobs} j SET run_at = (SELECT times FROM t)[width_bucket(j.n, (SELECT ns FROM t))]
WHERE j.n = ANY((SELECT ns FROM t)::bigint[])

-- name: snapshot
-- The clock, and the id below which every transaction has ended.
SELECT {now}, CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)

-- name: next_transaction
-- An id above that of every transaction that has one already: the caller's own, taken now.
SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)

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

-- name: renew_lease
-- Renew a lease, late or not, and read the cancel requests for its jobs; no row means that it was taken back or given
-- up. One statement: a worker frozen between two would keep the reaper from its lease.
UPDATE {leases} l SET until = {now} + coalesce((SELECT t.ms FROM {rows: ms bigint}), l.until - l.renewed_at),
    renewed_at = {now}
WHERE l.id = (SELECT t.lease FROM {rows: lease bigint}) AND l.until > 0
RETURNING l.until, (SELECT json_agg(json_build_array(r.n, r.token, coalesce(r.cancel_reason, '')))
    FROM {running} r WHERE r.cancel_at IS NOT NULL AND r.lease = l.id), (l.serves ->> 'draining')::boolean

-- name: failed_groups
-- The newest failures by error group, with the newest job of each and the times of all.
SELECT g.error_group, CAST(j.id AS text), CAST(g.ended AS text) FROM (
    SELECT f.error_group, max(f.n) AS n, json_agg(f.ended_at) AS ended
    FROM (SELECT o.n, o.ended_at, coalesce(o.error_group, '') AS error_group FROM {outcomes} o
        WHERE o.status = 'failed' AND o.status <> 'completed'
        ORDER BY o.n DESC LIMIT (SELECT t.top FROM {rows: top bigint})) f GROUP BY 1
) g {seek: jobs j ON j.n = g.n}

-- name: applied_migrations
-- Newest first.
SELECT name, CAST(extract(epoch FROM applied_at) * 1000 AS bigint) FROM {migrations} ORDER BY number DESC

-- name: drain_worker
-- The worker is told with the next renewal of its lease.
UPDATE {leases} l SET serves = (l.serves::jsonb || jsonb_build_object('draining', (SELECT t.draining FROM {rows: draining boolean})))::json
WHERE l.worker = (SELECT t.worker FROM {rows: worker text}) AND l.until > {now} AND (l.serves ->> 'slots')::integer > 0
RETURNING l.id

-- name: touch_running
-- Start and progress of running jobs, each job once, under a lease that was not taken back.
WITH live AS MATERIALIZED (
    SELECT l.id, {now} AS now FROM {leases} l WHERE l.id = (SELECT min(t.lease) FROM {rows: lease bigint}) FOR KEY SHARE
), t AS MATERIALIZED (
    SELECT array_agg(t.n ORDER BY t.n) AS ns, array_agg(t.token ORDER BY t.n) AS tokens,
        array_agg(t.ran_ms ORDER BY t.n) AS rans, array_agg(t.progress ORDER BY t.n) AS progresses,
        array_agg(t.message ORDER BY t.n) AS messages, array_agg(t.grace_ms ORDER BY t.n) AS graces
    FROM {rows: n bigint, token bigint, ran_ms bigint, progress integer, message text, grace_ms bigint}
)
UPDATE {running} r SET
    started_at = coalesce(r.started_at, live.now - (SELECT rans FROM t)[width_bucket(r.n, (SELECT ns FROM t))]),
    progress = coalesce((SELECT progresses FROM t)[width_bucket(r.n, (SELECT ns FROM t))], r.progress),
    message = coalesce((SELECT messages FROM t)[width_bucket(r.n, (SELECT ns FROM t))], r.message),
    grace_from = coalesce(live.now + (SELECT graces FROM t)[width_bucket(r.n, (SELECT ns FROM t))], r.grace_from)
FROM live WHERE r.n = ANY((SELECT ns FROM t)::bigint[]) AND r.lease = live.id
    AND r.token = (SELECT tokens FROM t)[width_bucket(r.n, (SELECT ns FROM t))]
RETURNING r.n, r.token, r.started_at, live.now

-- name: count_running
-- Count jobs in (positive) and out (negative); the rows are locked. No join, as in settle_completed.
WITH t AS MATERIALIZED (SELECT jsonb_object_agg(t.key, t.change) AS changes FROM {rows: key text, change integer})
UPDATE {limits} l SET running = l.running + ((SELECT changes FROM t) ->> l.key)::integer
WHERE l.key {among: key text} RETURNING l.key, l.running

-- name: patch_jobs
-- Change the named fields of pending jobs that are in no place at the moment. No join, as in settle_completed.
WITH t AS MATERIALIZED (
    SELECT array_agg(t.n ORDER BY t.n) AS ns, array_agg(t.priority ORDER BY t.n) AS priorities,
        array_agg(t.run_at ORDER BY t.n) AS times, array_agg(t.max_attempts ORDER BY t.n) AS most, max(t.now) AS now
    FROM {rows: n bigint, priority integer, run_at bigint, max_attempts integer, now bigint})
UPDATE {jobs} j SET changed_at = (SELECT now FROM t),
    priority = coalesce((SELECT priorities FROM t)[width_bucket(j.n, (SELECT ns FROM t))], j.priority),
    run_at = coalesce((SELECT times FROM t)[width_bucket(j.n, (SELECT ns FROM t))], j.run_at),
    max_attempts = coalesce((SELECT most FROM t)[width_bucket(j.n, (SELECT ns FROM t))], j.max_attempts)
WHERE j.n = ANY((SELECT ns FROM t)::bigint[]) RETURNING j.n, j.run_at

-- name: move_to_leases
-- Running jobs from the lease under which they were claimed to one of their own. No join, as in settle_completed.
WITH t AS MATERIALIZED (
    SELECT array_agg(t.n ORDER BY t.n) AS ns, array_agg(t.token ORDER BY t.n) AS tokens,
        array_agg(t.old ORDER BY t.n) AS olds, array_agg(t.lease ORDER BY t.n) AS leases
    FROM {rows: n bigint, token bigint, old bigint, lease bigint})
UPDATE {running} r SET lease = (SELECT leases FROM t)[width_bucket(r.n, (SELECT ns FROM t))]
WHERE r.n = ANY((SELECT ns FROM t)::bigint[])
    AND r.token = (SELECT tokens FROM t)[width_bucket(r.n, (SELECT ns FROM t))]
    AND r.lease = (SELECT olds FROM t)[width_bucket(r.n, (SELECT ns FROM t))]

-- name: change_records
-- Change records; missing from the answer: the ones with a different version or a taken key. No join, as in
-- settle_completed. Several indexes begin with `kind`, and for an empty table all look equally good; the order wanted
-- from a range of one value decides for the right one.
WITH t AS MATERIALIZED (
    SELECT array_agg(r.n) AS ns, jsonb_object_agg(r.n, to_jsonb(t)) AS news
    FROM {rows: kind text, id text, key text, body text, due bigint, version bigint}
    CROSS JOIN LATERAL (SELECT r.n FROM {records} r WHERE r.kind = t.kind AND r.id BETWEEN t.id AND t.id ORDER BY r.id LIMIT 1) r
    LEFT JOIN LATERAL (SELECT o.id FROM {records} o WHERE o.kind = t.kind AND o.key BETWEEN t.key AND t.key
        ORDER BY o.key LIMIT 1) o ON true WHERE o.id IS NULL OR o.id = t.id)
UPDATE {records} r SET key = (SELECT news FROM t) -> r.n::text ->> 'key', body = (SELECT news FROM t) -> r.n::text ->> 'body',
    due = ((SELECT news FROM t) -> r.n::text ->> 'due')::bigint, version = r.version + 1, updated_at = {now}
WHERE r.n = ANY((SELECT ns FROM t)::bigint[]) AND r.version = ((SELECT news FROM t) -> r.n::text ->> 'version')::bigint
RETURNING r.kind, r.id, r.key, r.body, r.version, r.created_at, r.updated_at, r.due

-- name: drop_records
-- Delete records of any kinds; found as in change_records.
DELETE FROM {records} WHERE n = ANY(ARRAY(SELECT r.n FROM {rows: kind text, id text} CROSS JOIN LATERAL (
    SELECT r.n FROM {records} r WHERE r.kind = t.kind AND r.id BETWEEN t.id AND t.id ORDER BY r.id LIMIT 1) r)) RETURNING id

-- name: set_job_keys
-- What comes with new payloads. 27: the traits that belong to keys. No join, as in settle_completed.
WITH t AS MATERIALIZED (SELECT jsonb_object_agg(t.n, to_jsonb(t)) AS keys FROM {rows: n bigint, idempotency_key text,
    dedupe_key text, traits integer, limit_key text, limit_policy text, limit_most integer})
UPDATE {jobs} j SET idempotency_key = (SELECT keys FROM t) -> j.n::text ->> 'idempotency_key',
    dedupe_key = (SELECT keys FROM t) -> j.n::text ->> 'dedupe_key',
    flags = (j.flags & ~27) | ((SELECT keys FROM t) -> j.n::text ->> 'traits')::integer,
    limit_key = (SELECT keys FROM t) -> j.n::text ->> 'limit_key',
    limit_policy = (SELECT keys FROM t) -> j.n::text ->> 'limit_policy',
    limit_most = ((SELECT keys FROM t) -> j.n::text ->> 'limit_most')::integer
WHERE j.n {among: n bigint}

-- name: set_payloads
-- New payloads of jobs that are requeued. No join, as in settle_completed.
WITH t AS MATERIALIZED (SELECT jsonb_object_agg(t.n, t.payload) AS payloads FROM {rows: n bigint, payload text})
UPDATE {jobs} j SET payload = ((SELECT payloads FROM t) ->> j.n::text)::json WHERE j.n {among: n bigint}

-- name: step_writes
-- A part of the next two: $6 are steps as JSON, of jobs in `kept` (their numbers, starts and the time); $7 the numbers of
-- jobs that have steps from now on. A step never begins before its job, though both count back from one clock.
written AS MATERIALIZED (
    SELECT t.*, kept.now, greatest(kept.now - t.ago, kept.starts[width_bucket(t.n, kept.ns)]) AS began
    FROM kept, json_to_recordset($6::json) AS t(n bigint, name text, key text, place integer, state text, attempt integer,
        progress integer, message text, ago bigint, ended boolean, ran_ms bigint, wait_ms bigint, error text, error_type text,
        result text, result_size integer, input_hash text, title text, schema text, item integer, told text, facts json)
    WHERE t.n = kept.ns[width_bucket(t.n, kept.ns)]
), put AS (
    INSERT INTO {steps} AS x (n, name, key, place, state, attempt, progress, message, started_at, ended_at, ran_ms, until,
        error, error_type, result, result_size, input_hash, title, schema, item)
    SELECT n, name, key, place, state, attempt, progress, message, CASE WHEN ago IS NOT NULL THEN began END,
        CASE WHEN ended THEN now END, ran_ms, now + wait_ms, error, error_type, CAST(result AS json), result_size,
        input_hash, title, CAST(schema AS json), item
    FROM written ORDER BY n, name, key
    {on_step_conflict}
), told_steps AS (
    INSERT INTO {events} (n, type, message, metadata, created_at)
    SELECT n, 'job:step:completed', told, facts, now FROM written WHERE told IS NOT NULL
    RETURNING n
), flagged AS (
    UPDATE {jobs} j SET flags = j.flags | 32 FROM kept
    WHERE j.n = ANY((SELECT $7::text::bigint[])::bigint[]) AND j.n = kept.ns[width_bucket(j.n, kept.ns)] AND (j.flags & 32) = 0
)

-- name: write_checkpoints
-- What steps of running jobs have done, in one statement. $1 is the lease; by rising number of the job, as text: $2 their
-- numbers, $3 tokens, $4 how long they have run, $5 progress, $8 how long a cancel has to wait; $9 their messages (null:
-- none). No join, as in settle_completed.
WITH live AS MATERIALIZED (
    SELECT l.id, {now} AS now FROM {leases} l WHERE l.id = $1 FOR KEY SHARE
), mine AS (
    UPDATE {running} r SET
        started_at = coalesce(r.started_at, live.now - (SELECT $4::text::bigint[])[width_bucket(r.n, (SELECT $2::text::bigint[]))]),
        progress = coalesce((SELECT $5::text::int[])[width_bucket(r.n, (SELECT $2::text::bigint[]))], r.progress),
        message = coalesce(($9::text[])[width_bucket(r.n, (SELECT $2::text::bigint[]))], r.message),
        grace_from = coalesce(live.now + (SELECT $8::text::bigint[])[width_bucket(r.n, (SELECT $2::text::bigint[]))], r.grace_from)
    FROM live WHERE r.n = ANY((SELECT $2::text::bigint[])::bigint[]) AND r.lease = live.id
        AND r.token = (SELECT $3::text::bigint[])[width_bucket(r.n, (SELECT $2::text::bigint[]))]
    RETURNING r.n, r.started_at, live.now
), kept AS MATERIALIZED (
    SELECT array_agg(n ORDER BY n) AS ns, array_agg(started_at ORDER BY n) AS starts, max(now) AS now FROM mine
), /*step_writes*/
SELECT coalesce(array_agg(n), '{}') FROM mine

-- name: settle_flows
-- Complete jobs with their last steps. As settle_completed, with $8 topics, $9 which of them, $10 results. `told` looks at
-- `told_steps` so that the last steps are told first: the parts of a statement run in any order.
WITH live AS MATERIALIZED (
    SELECT l.id, l.worker_id, {now} AS now FROM {leases} l WHERE l.id = $1 FOR KEY SHARE
), gone AS (
    DELETE FROM {running} r USING live
    WHERE r.n = ANY((SELECT $2::text::bigint[])::bigint[]) AND r.lease = live.id
        AND r.token = (SELECT $3::text::bigint[])[width_bucket(r.n, (SELECT $2::text::bigint[]))]
    RETURNING r.n, r.token, r.attempt, r.claimed_at, r.started_at, r.cancel_at, r.cancel_reason, r.message, live.now,
        live.worker_id, width_bucket(r.n, (SELECT $2::text::bigint[])) AS place
), done AS MATERIALIZED (
    SELECT g.*, coalesce(g.now - g.started_at, (SELECT $4::text::bigint[])[g.place]) AS ran,
        ($8::text[])[coalesce((SELECT $9::text::int[])[g.place], 1)] AS topic, CAST((SELECT $10::jsonb) ->> (g.place - 1) AS json) AS result
    FROM gone g
), kept AS MATERIALIZED (
    SELECT array_agg(n ORDER BY n) AS ns, array_agg(now - ran ORDER BY n) AS starts, max(now) AS now FROM done
), /*step_writes*/, interrupted AS (
    UPDATE {steps} s SET state = 'pending', error = NULL, error_type = NULL, ended_at = NULL
    WHERE s.n = ANY((SELECT ns FROM kept)::bigint[]) AND s.state = 'processing'
        AND NOT EXISTS (SELECT 1 FROM written w WHERE w.n = s.n AND w.name = s.name AND w.key = s.key)
), /*completions*/, told AS (
    INSERT INTO {events} (n, type, from_status, to_status, message, metadata, created_at)
    SELECT 0, 'job:completed', 'processing', 'completed', '', json_agg(n), now FROM done
    WHERE (SELECT count(*) FROM told_steps) >= 0 GROUP BY now
)
SELECT coalesce(array_agg(n), '{}') FROM done

-- name: delivery_counts
-- What the newest deliveries of endpoints have come to since a time, and when the last of each kind did.
SELECT t.endpoint, d.status, count(*), max(d.finished_at) FROM {rows: endpoint text, age bigint}
CROSS JOIN LATERAL (SELECT c.status, c.finished_at FROM {deliveries} c WHERE c.endpoint = t.endpoint
    AND c.created_at >= {now} - t.age AND c.n <> 0 ORDER BY c.id DESC LIMIT 1000) d
GROUP BY 1, 2

-- name: awaited_depth
-- How many jobs wait for this one, from its parent up.
WITH RECURSIVE up (id, depth) AS (
    SELECT j.parent_id, 1 FROM {jobs} j WHERE j.n = (SELECT t.n FROM {rows: n bigint}) AND j.parent_step IS NOT NULL
    UNION ALL SELECT p.parent_id, up.depth + 1 FROM up JOIN {jobs} p ON p.id = CAST(up.id AS uuid) WHERE p.parent_step IS NOT NULL)
SELECT coalesce(max(u.depth), 0) FROM up u

-- name: try_again
-- They are tried again. In this and the next ones the second condition finds the rows, however the first is planned.
UPDATE {outbox} SET holder = NULL, tried = {outbox}.tried + 1, due_at = t.due_at FROM {rows: id bigint, due_at bigint}
WHERE {outbox}.id = t.id AND {outbox}.id {among: id bigint}

-- name: write_deliveries
-- What came of tries.
UPDATE {deliveries} SET status = t.status, tries = t.tries, finished_at = t.finished_at, url = coalesce(t.url, {deliveries}.url)
FROM {rows: id bigint, status text, tries text, finished_at bigint, url text}
WHERE {deliveries}.id = t.id AND {deliveries}.id {among: id bigint}

-- name: number_events
-- Their numbers, in the outbox.
UPDATE {outbox} SET number = t.number FROM {rows: id bigint, number bigint}
WHERE {outbox}.id = t.id AND {outbox}.id {among: id bigint}

-- name: number_deliveries
-- The same in the log.
UPDATE {deliveries} SET number = t.number FROM {rows: id bigint, number bigint}
WHERE {deliveries}.id = t.id AND {deliveries}.id {among: id bigint}
