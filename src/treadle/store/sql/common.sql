-- Statements that PostgreSQL and SQLite share. `queries.py` fills in, once at load:
--   {jobs} …           the table, in the schema or with the prefix
--   {now}              the database's clock in ms
--   {rows: n bigint}   the statement's one parameter, a JSON array of objects, as a table named t
--   {for_update} …     row locks, nothing in SQLite, where a writer is alone anyway

-- name: clock
-- The database's time; scripts read it once and use it throughout.
SELECT {now}

-- name: add_lanes
-- Register lanes; in every enqueue, because a lane seen in a transaction that rolled back is not there.
INSERT INTO {lanes} (topic, capability, priority)
SELECT DISTINCT t.topic, t.capability, t.priority FROM {rows: topic text, capability text, priority integer}
WHERE NOT EXISTS (SELECT 1 FROM {lanes} l
    WHERE l.topic = t.topic AND l.capability = t.capability AND l.priority = t.priority)
ORDER BY 1, 2, 3
ON CONFLICT (topic, capability, priority) DO NOTHING

-- name: find_lanes
-- The numbers of lanes.
SELECT l.topic, l.capability, l.priority, l.lane
FROM {rows: topic text, capability text, priority integer}
JOIN {lanes} l ON l.topic = t.topic AND l.capability = t.capability AND l.priority = t.priority

-- name: take_keys
-- Claim unique keys; what is missing from the answer belongs to somebody else. Sorted, or two batches deadlock.
INSERT INTO {keys} (kind, key, n, hash)
SELECT t.kind, t.key, t.n, t.hash FROM {rows: kind text, key text, n bigint, hash text}
WHERE true ORDER BY 1, 2
ON CONFLICT (kind, key) DO NOTHING
RETURNING kind, key, n

-- name: find_keys
-- Who holds these keys.
SELECT k.kind, k.key, k.hash, CAST(j.id AS text)
FROM {rows: kind text, key text} JOIN {keys} k ON k.kind = t.kind AND k.key = t.key JOIN {jobs} j ON j.n = k.n

-- name: drop_keys
-- Free the keys of one kind that these jobs hold.
DELETE FROM {keys} WHERE (n, kind) IN (SELECT t.n, t.kind FROM {rows: n bigint, kind text})

-- name: keep_once
-- A job that may complete only once has completed: its dedupe key stays for good.
UPDATE {keys} SET kind = 'once' WHERE kind = 'dedupe' AND n IN (SELECT t.n FROM {rows: n bigint})

-- name: lock_gates
-- Make the gates that are missing and lock all of them, in order. A limit that changed takes effect here.
INSERT INTO {gates} (gate, used, max)
SELECT t.gate, 0, t.max FROM {rows: gate text, max integer} WHERE true ORDER BY 1
ON CONFLICT (gate) DO UPDATE SET max = excluded.max
RETURNING gate, used, max

-- name: relock_gates
-- Lock gates that exist, in order.
SELECT g.gate, g.used, g.max FROM {gates} g WHERE g.gate IN (SELECT t.gate FROM {rows: gate text})
ORDER BY g.gate {for_update}

-- name: change_gates
-- Count jobs in (positive) and out (negative).
UPDATE {gates} SET used = used + (SELECT t.change FROM {rows: gate text, change integer} WHERE t.gate = {gates}.gate)
WHERE gate IN (SELECT t.gate FROM {rows: gate text})

-- name: add_members
-- Jobs that now live under a gate.
INSERT INTO {members} (gate, n) SELECT t.gate, t.n FROM {rows: gate text, n bigint} WHERE true
ON CONFLICT (gate, n) DO NOTHING

-- name: drop_members
-- Jobs that no longer do.
DELETE FROM {members} WHERE (gate, n) IN (SELECT t.gate, t.n FROM {rows: gate text, n bigint})

-- name: insert_jobs
-- The wide rows, with numbers and times already chosen.
INSERT INTO {jobs} (n, id, lane, topic, run_at, created_at, max_attempts, flags, expires_at, template_version,
    scope, scope_id, created_by, idempotency_key, dedupe_key, gate, payload, trace)
SELECT t.n, t.id, t.lane, t.topic, t.run_at, t.created_at, t.max_attempts, t.flags, t.expires_at, t.template_version,
    t.scope, t.scope_id, t.created_by, t.idempotency_key, t.dedupe_key, t.gate, {json: t.payload}, t.trace
FROM {rows: n bigint, id uuid, lane integer, topic text, run_at bigint, created_at bigint, max_attempts integer,
    flags integer, expires_at bigint, template_version integer, scope text, scope_id text, created_by text,
    idempotency_key text, dedupe_key text, gate text, payload text, trace text}

-- name: add_deadlines
-- When these jobs expire if they have not started.
INSERT INTO {deadlines} (n, expires_at) SELECT t.n, t.expires_at FROM {rows: n bigint, expires_at bigint} WHERE true

-- name: drop_deadlines
-- They have ended.
DELETE FROM {deadlines} WHERE n IN (SELECT t.n FROM {rows: n bigint})

-- name: due_deadlines
-- Jobs past their deadline; those that run are left alone.
SELECT d.n FROM {deadlines} d WHERE d.expires_at <= {now} AND NOT EXISTS (SELECT 1 FROM {running} r WHERE r.n = d.n)
ORDER BY d.expires_at LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: place_ready
-- Into the queue, at the place that the job's own lane and time give it.
INSERT INTO {ready} (lane, run_at, n, attempt, max_attempts, flags)
SELECT j.lane, j.run_at, j.n, t.attempt, j.max_attempts, j.flags
FROM {rows: n bigint, attempt integer} JOIN {jobs} j ON j.n = t.n ORDER BY 1, 2, 3

-- name: place_later
-- Set aside until the job's own time has come.
INSERT INTO {later} (n, lane, run_at, attempt)
SELECT j.n, j.lane, j.run_at, t.attempt FROM {rows: n bigint, attempt integer} JOIN {jobs} j ON j.n = t.n ORDER BY 1

-- name: place_held
-- Set aside until the gate has room.
INSERT INTO {held} (n, lane, gate, priority, attempt)
SELECT j.n, j.lane, j.gate, l.priority, t.attempt
FROM {rows: n bigint, attempt integer} JOIN {jobs} j ON j.n = t.n JOIN {lanes} l ON l.lane = j.lane ORDER BY 1

-- name: set_run_at
-- A new time for a job that is in no place just now.
UPDATE {jobs} SET run_at = (SELECT t.run_at FROM {rows: n bigint, run_at bigint} WHERE t.n = {jobs}.n)
WHERE n IN (SELECT t.n FROM {rows: n bigint})

-- name: clear_deadline
-- A requeued job gets all the time it needs.
UPDATE {jobs} SET expires_at = NULL WHERE n IN (SELECT t.n FROM {rows: n bigint})

-- name: move_job
-- Change a pending job that is in no place just now.
UPDATE {jobs} SET
    lane = (SELECT t.lane FROM {rows: n bigint, lane integer}),
    run_at = (SELECT t.run_at FROM {rows: n bigint, run_at bigint}),
    max_attempts = (SELECT t.max_attempts FROM {rows: n bigint, max_attempts integer})
WHERE n = (SELECT t.n FROM {rows: n bigint})

-- name: take_ready
-- Out of the queue, by number.
DELETE FROM {ready} WHERE n IN (SELECT t.n FROM {rows: n bigint}) RETURNING n, attempt

-- name: take_later
-- Out of the set-aside, by number.
DELETE FROM {later} WHERE n IN (SELECT t.n FROM {rows: n bigint}) RETURNING n, attempt

-- name: take_held
-- Away from the gate, by number.
DELETE FROM {held} WHERE n IN (SELECT t.n FROM {rows: n bigint}) RETURNING n, attempt

-- name: take_due
-- The oldest jobs whose time has come.
DELETE FROM {later} WHERE n IN (SELECT l.n FROM {later} l WHERE l.run_at <= {now}
    ORDER BY l.run_at, l.n LIMIT (SELECT t.top FROM {rows: top bigint}) {skip_locked})
RETURNING n, attempt

-- name: next_due
-- In how many ms the next job's time comes.
SELECT min(run_at) - {now} FROM {later}

-- name: hold_lease
-- Lock a live lease so that nobody reclaims it meanwhile (renewing it is not kept waiting), and read the clock.
SELECT l.id, {now} FROM {leases} l WHERE l.id = (SELECT t.lease FROM {rows: lease bigint}) AND l.until > {now} {key_share}

-- name: take_running
-- End attempts: only with the right token under the right lease.
DELETE FROM {running} WHERE (n, token, lease) IN (SELECT t.n, t.token, t.lease FROM {rows: n bigint, token bigint, lease bigint})
RETURNING n, token, attempt, claimed_at, started_at, cancel_at, cancel_reason, progress, message

-- name: take_running_by_number
-- End attempts whoever holds them.
DELETE FROM {running} WHERE n IN (SELECT t.n FROM {rows: n bigint})
RETURNING n, token, attempt, claimed_at, started_at, cancel_at, cancel_reason, progress, message

-- name: take_orphans
-- End the attempts of leases that have run out (the caller has them locked).
DELETE FROM {running} WHERE lease IN (SELECT t.lease FROM {rows: lease bigint})
RETURNING n, token, attempt, claimed_at, started_at, cancel_at, cancel_reason, progress, message, lease

-- name: take_unknown
-- End attempts under this lease that its worker never heard of.
DELETE FROM {running} WHERE lease IN (SELECT t.lease FROM {rows: lease bigint})
    AND token NOT IN (SELECT t.token FROM {rows: token bigint})
RETURNING n, token, attempt, claimed_at, started_at, cancel_at, cancel_reason, progress, message

-- name: settled_by
-- Endings that carry these tokens: the answer to a settle whose COMMIT got no answer.
SELECT o.n FROM {rows: n bigint, token bigint} JOIN {outcomes} o ON o.n = t.n AND o.token = t.token

-- name: touch_running
-- Start and progress of running jobs (the lease is locked).
UPDATE {running} SET
    started_at = coalesce(started_at, (SELECT t.started_at FROM {rows: n bigint, started_at bigint} WHERE t.n = {running}.n)),
    progress = coalesce((SELECT t.progress FROM {rows: n bigint, progress integer} WHERE t.n = {running}.n), progress),
    message = coalesce((SELECT t.message FROM {rows: n bigint, message text} WHERE t.n = {running}.n), message)
WHERE (n, token, lease) IN (SELECT t.n, t.token, t.lease FROM {rows: n bigint, token bigint, lease bigint})
RETURNING n

-- name: mark_cancel
-- Ask running jobs to stop.
UPDATE {running} SET cancel_at = {now}, cancel_reason = (SELECT max(t.reason) FROM {rows: reason text})
WHERE cancel_at IS NULL AND n IN (SELECT t.n FROM {rows: n bigint})
RETURNING n, attempt

-- name: find_running
-- Which of these are running.
SELECT r.n, r.attempt, r.cancel_at FROM {running} r WHERE r.n IN (SELECT t.n FROM {rows: n bigint})

-- name: cancel_requests
-- What a worker has been asked to stop.
SELECT r.n, r.token, coalesce(r.cancel_reason, '') FROM {running} r
WHERE r.cancel_at IS NOT NULL AND r.lease = (SELECT t.lease FROM {rows: lease bigint})

-- name: cancelling
-- Every job that was asked to stop, and for how long already.
SELECT r.n, r.token, r.lease, j.topic, {now} - r.cancel_at
FROM {running} r JOIN {jobs} j ON j.n = r.n WHERE r.cancel_at IS NOT NULL

-- name: find_outcomes
-- How these jobs ended; locked, so that one of two requeues wins.
SELECT o.n, o.status, o.attempt, o.ended_at, o.started_at, {json_text: o.result}, o.error, o.error_type, o.topic
FROM {outcomes} o WHERE o.n IN (SELECT t.n FROM {rows: n bigint}) ORDER BY o.n {for_update}

-- name: add_outcomes
-- Endings.
INSERT INTO {outcomes} (n, token, topic, status, attempt, ended_at, claimed_at, started_at, cancel_at, cancel_reason,
    progress, message, result, error, error_type)
SELECT t.n, t.token, t.topic, t.status, t.attempt, t.ended_at, t.claimed_at, t.started_at, t.cancel_at, t.cancel_reason,
    t.progress, t.message, {json: t.result}, t.error, t.error_type
FROM {rows: n bigint, token bigint, topic text, status text, attempt integer, ended_at bigint, claimed_at bigint,
    started_at bigint, cancel_at bigint, cancel_reason text, progress integer, message text, result text, error text,
    error_type text}
WHERE true

-- name: drop_outcomes
-- They live again, or are deleted.
DELETE FROM {outcomes} WHERE n IN (SELECT t.n FROM {rows: n bigint})

-- name: add_notes
-- The last failure of jobs that are tried again.
INSERT INTO {notes} (n, error, error_type) SELECT t.n, t.error, t.error_type FROM {rows: n bigint, error text, error_type text}
WHERE true
ON CONFLICT (n) DO UPDATE SET error = excluded.error, error_type = excluded.error_type

-- name: drop_notes
DELETE FROM {notes} WHERE n IN (SELECT t.n FROM {rows: n bigint})

-- name: add_events
-- Lines of history.
INSERT INTO {events} (n, type, from_status, to_status, message, metadata, created_at)
SELECT t.n, t.type, t.from_status, t.to_status, t.message, {json: t.metadata}, t.created_at
FROM {rows: n bigint, type text, from_status text, to_status text, message text, metadata text, created_at bigint}
WHERE true

-- name: drop_events
DELETE FROM {events} WHERE n IN (SELECT t.n FROM {rows: n bigint})

-- name: job_events
-- The history of one job.
SELECT e.id, e.type, e.from_status, e.to_status, e.message, {json_text: e.metadata}, e.created_at
FROM {events} e JOIN {jobs} j ON j.n = e.n WHERE j.id = (SELECT t.id FROM {rows: id uuid}) ORDER BY e.id

-- name: add_tally
-- Count endings; negative when one is undone.
INSERT INTO {tally} AS y (minute, writer, topic, status, count, run_ms)
SELECT t.minute, t.writer, t.topic, t.status, sum(t.count), sum(t.run_ms)
FROM {rows: minute bigint, writer bigint, topic text, status text, count bigint, run_ms bigint}
WHERE true GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
ON CONFLICT (minute, writer, topic, status) DO UPDATE SET count = y.count + excluded.count, run_ms = y.run_ms + excluded.run_ms

-- name: take_old_tally
-- Minutes that several writers counted and that are over.
DELETE FROM {tally} WHERE writer <> 0 AND minute < {now} / 60000 - 2 RETURNING minute, topic, status, count, run_ms

-- name: find_jobs
-- What moving a job needs to know of it, by public id.
SELECT j.n, CAST(j.id AS text), j.topic, j.lane, j.run_at, j.max_attempts, j.flags, j.gate, j.dedupe_key, l.priority, l.capability
FROM {rows: id uuid} JOIN {jobs} j ON j.id = t.id JOIN {lanes} l ON l.lane = j.lane ORDER BY j.n

-- name: job_facts
-- The same by number.
SELECT j.n, CAST(j.id AS text), j.topic, j.lane, j.run_at, j.max_attempts, j.flags, j.gate, j.dedupe_key, l.priority, l.capability
FROM {rows: n bigint} JOIN {jobs} j ON j.n = t.n JOIN {lanes} l ON l.lane = j.lane ORDER BY j.n

-- name: drop_jobs
DELETE FROM {jobs} WHERE n IN (SELECT t.n FROM {rows: n bigint})

-- name: drop_all_keys
-- Every key of deleted jobs.
DELETE FROM {keys} WHERE n IN (SELECT t.n FROM {rows: n bigint})

-- name: old_outcomes
-- Jobs that ended long ago.
SELECT o.n FROM {outcomes} o WHERE o.ended_at <= {now} - (SELECT t.age FROM {rows: age bigint})
ORDER BY o.ended_at LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: open_lease
INSERT INTO {leases} (worker, until, renewed_at, serves)
SELECT t.worker, {now} + t.ms, {now}, {json: t.serves} FROM {rows: worker text, ms bigint, serves text}
WHERE true RETURNING id

-- name: extend_lease
-- Renew a lease that is still live; no row means that it is lost.
UPDATE {leases} SET until = {now} + (SELECT t.ms FROM {rows: ms bigint}), renewed_at = {now}
WHERE id = (SELECT t.lease FROM {rows: lease bigint}) AND until > {now} RETURNING id

-- name: close_lease
-- Nothing more will be done under it; what is left can be reclaimed at once.
UPDATE {leases} SET until = 0 WHERE id = (SELECT t.lease FROM {rows: lease bigint})

-- name: expired_leases
-- Leases that have run out and that nobody is settling under just now.
SELECT l.id, l.worker FROM {leases} l WHERE l.until <= {now} ORDER BY l.id LIMIT 100 {skip_locked}

-- name: drop_leases
DELETE FROM {leases} WHERE id IN (SELECT t.lease FROM {rows: lease bigint})

-- name: rated_topics
-- Topics with a rate limit; locked, so that claims under one limit come one after the other.
SELECT p.topic, p.rate_limit, p.rate_ms FROM {topics} p
WHERE p.rate_limit IS NOT NULL AND p.topic IN (SELECT t.topic FROM {rows: topic text}) ORDER BY p.topic {for_update}

-- name: recent_starts
-- What was started within the window, oldest first.
SELECT s.topic, s.at, s.count FROM {starts} s JOIN {topics} p ON p.topic = s.topic
WHERE s.topic IN (SELECT t.topic FROM {rows: topic text}) AND s.at > {now} - p.rate_ms ORDER BY s.topic, s.at

-- name: add_starts
INSERT INTO {starts} (topic, at, token, count)
SELECT t.topic, t.at, t.token, t.count FROM {rows: topic text, at bigint, token bigint, count integer} WHERE true

-- name: drop_old_starts
DELETE FROM {starts} WHERE at <= {now} - coalesce((SELECT p.rate_ms FROM {topics} p WHERE p.topic = {starts}.topic), 0)

-- name: lane_heads
-- The lanes that a worker serves, in the order in which it should serve them.
SELECT x.lane, x.topic FROM (
    SELECT l.lane, l.topic, l.priority,
        (SELECT r.run_at FROM {ready} r WHERE r.lane = l.lane ORDER BY r.run_at, r.n LIMIT 1) AS head
    FROM {lanes} l LEFT JOIN {topics} p ON p.topic = l.topic
    WHERE l.topic IN (SELECT t.topic FROM {rows: topic text})
      AND (l.capability = '' OR l.capability IN (SELECT t.capability FROM {rows: capability text}))
      AND (p.paused_until IS NULL OR p.paused_until <= {now})) x
WHERE x.head IS NOT NULL ORDER BY x.priority DESC, x.head

-- name: start_running
-- Leased: the attempt is spent from here on.
INSERT INTO {running} (n, token, lease, attempt, claimed_at)
SELECT t.n, t.token, t.lease, t.attempt, t.claimed_at
FROM {rows: n bigint, token bigint, lease bigint, attempt integer, claimed_at bigint} WHERE true

-- name: drop_ready
-- Out of the queue, nothing asked back.
DELETE FROM {ready} WHERE n IN (SELECT t.n FROM {rows: n bigint})

-- name: pause_topic
INSERT INTO {topics} (topic, paused_until) SELECT t.topic, t.until FROM {rows: topic text, until bigint} WHERE true
ON CONFLICT (topic) DO UPDATE SET paused_until = excluded.paused_until

-- name: set_rates
-- The rate limits that the templates name.
INSERT INTO {topics} (topic, rate_limit, rate_ms) SELECT t.topic, t.n, t.ms FROM {rows: topic text, n integer, ms bigint}
WHERE true ORDER BY 1
ON CONFLICT (topic) DO UPDATE SET rate_limit = excluded.rate_limit, rate_ms = excluded.rate_ms

-- name: list_topics
-- Every topic that there is, with its pause.
SELECT x.topic, (SELECT p.paused_until FROM {topics} p WHERE p.topic = x.topic AND p.paused_until > {now})
FROM (SELECT topic FROM {topics} UNION SELECT topic FROM {lanes} UNION SELECT topic FROM {templates}) x ORDER BY x.topic

-- name: live_counts
-- Jobs that have not ended, by topic.
SELECT l.topic, x.status, sum(x.count) FROM (
    SELECT lane, 'pending' AS status, count(*) AS count FROM {ready} GROUP BY lane
    UNION ALL SELECT lane, 'pending', count(*) FROM {later} GROUP BY lane
    UNION ALL SELECT lane, 'pending', count(*) FROM {held} GROUP BY lane
    UNION ALL SELECT j.lane, CASE WHEN r.cancel_at IS NULL THEN 'processing' ELSE 'cancelling' END, count(*)
        FROM {running} r JOIN {jobs} j ON j.n = r.n GROUP BY 1, 2) x
JOIN {lanes} l ON l.lane = x.lane GROUP BY 1, 2

-- name: ended_counts
-- Endings by topic and status, from the tally.
SELECT y.topic, y.status, sum(y.count), sum(y.run_ms) FROM {tally} y
WHERE y.minute >= (SELECT t.minute FROM {rows: minute bigint}) GROUP BY 1, 2

-- name: get_templates
SELECT topic, {json_text: definition}, version FROM {templates} ORDER BY topic

-- name: lock_templates
SELECT topic, {json_text: definition}, version FROM {templates} WHERE topic IN (SELECT t.topic FROM {rows: topic text})
ORDER BY topic {for_update}

-- name: add_templates
-- Version 0 of those that are missing; the same transaction writes the first one.
INSERT INTO {templates} (topic, version, definition, updated_at)
SELECT t.topic, 0, 'null', {now} FROM {rows: topic text} WHERE true ORDER BY 1
ON CONFLICT (topic) DO NOTHING

-- name: put_templates
INSERT INTO {templates} (topic, version, definition, updated_at)
SELECT t.topic, t.version, {json: t.definition}, {now} FROM {rows: topic text, version integer, definition text}
WHERE true ORDER BY 1
ON CONFLICT (topic) DO UPDATE SET version = excluded.version, definition = excluded.definition, updated_at = excluded.updated_at

-- name: elect
-- Take an office that is free, held by me, or whose term is over.
INSERT INTO {leaders} AS o (name, holder, until) SELECT t.name, t.holder, {now} + t.ms FROM {rows: name text, holder text, ms bigint}
WHERE true
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
    WHERE o.holder = excluded.holder OR o.until <= {now}
RETURNING name

-- name: resign
DELETE FROM {leaders} WHERE (name, holder) IN (SELECT t.name, t.holder FROM {rows: name text, holder text})

-- name: lock_empty_gates
-- Gates that nobody seems to be under; locked ones are in use.
SELECT g.gate FROM {gates} g
WHERE g.used = 0 AND NOT EXISTS (SELECT 1 FROM {members} m WHERE m.gate = g.gate) LIMIT 1000 {skip_locked}

-- name: drop_empty_gates
-- Those that are empty now that they are locked: the look above may be older than the lock.
DELETE FROM {gates} WHERE gate IN (SELECT t.gate FROM {rows: gate text})
    AND used = 0 AND NOT EXISTS (SELECT 1 FROM {members} m WHERE m.gate = {gates}.gate)

-- name: gate_drift
-- Gates whose count is not what it should be; there should be none.
SELECT g.gate, g.used, (SELECT count(*) FROM {members} m WHERE m.gate = g.gate
    AND (EXISTS (SELECT 1 FROM {ready} r WHERE r.n = m.n) OR EXISTS (SELECT 1 FROM {running} r WHERE r.n = m.n)))
FROM {gates} g

-- name: misplaced
-- Jobs in no place or in more than one; there should be none.
SELECT CAST(j.id AS text), (SELECT count(*) FROM {ready} p WHERE p.n = j.n) + (SELECT count(*) FROM {later} p WHERE p.n = j.n)
    + (SELECT count(*) FROM {held} p WHERE p.n = j.n) + (SELECT count(*) FROM {running} p WHERE p.n = j.n)
    + (SELECT count(*) FROM {outcomes} p WHERE p.n = j.n) AS places
FROM {jobs} j WHERE
    (SELECT count(*) FROM {ready} p WHERE p.n = j.n) + (SELECT count(*) FROM {later} p WHERE p.n = j.n)
    + (SELECT count(*) FROM {held} p WHERE p.n = j.n) + (SELECT count(*) FROM {running} p WHERE p.n = j.n)
    + (SELECT count(*) FROM {outcomes} p WHERE p.n = j.n) <> 1 LIMIT 100

-- name: view
-- A job with all that is known of it; `listing.py` puts the FROM that chooses the jobs in front of the joins.
SELECT {now}, j.n, CAST(j.id AS text), j.topic, l.priority, l.capability, {json_text: j.payload}, j.run_at, j.created_at,
    j.expires_at, j.max_attempts, j.flags, j.scope, j.scope_id, j.created_by, j.idempotency_key, j.template_version,
    CASE WHEN o.n IS NOT NULL THEN 'ended' WHEN r.n IS NOT NULL THEN 'running' WHEN q.n IS NOT NULL THEN 'ready'
        WHEN a.n IS NOT NULL THEN 'later' WHEN h.n IS NOT NULL THEN 'held' ELSE 'lost' END,
    coalesce(o.attempt, r.attempt, q.attempt, a.attempt, h.attempt, 0), coalesce(o.token, r.token), o.status,
    coalesce(o.claimed_at, r.claimed_at), coalesce(o.started_at, r.started_at), o.ended_at,
    coalesce(o.cancel_at, r.cancel_at), coalesce(o.cancel_reason, r.cancel_reason),
    coalesce(o.progress, r.progress), coalesce(o.message, r.message), {json_text: o.result},
    coalesce(o.error, x.error), coalesce(o.error_type, x.error_type), s.worker, s.until, s.renewed_at,
    ({told_events} WHERE e.n = j.n), (SELECT max(e.created_at) FROM {events} e WHERE e.n = j.n)
FROM page JOIN {jobs} j ON j.n = page.n JOIN {lanes} l ON l.lane = j.lane
LEFT JOIN {outcomes} o ON o.n = j.n LEFT JOIN {running} r ON r.n = j.n LEFT JOIN {ready} q ON q.n = j.n
LEFT JOIN {later} a ON a.n = j.n LEFT JOIN {held} h ON h.n = j.n LEFT JOIN {leases} s ON s.id = r.lease
LEFT JOIN {notes} x ON x.n = j.n
ORDER BY j.n DESC

-- name: page_by_id
-- The jobs with these ids.
SELECT k.n FROM {rows: id uuid} JOIN {jobs} k ON k.id = t.id

-- name: holdings
-- The running jobs with these ids, as their owner claimed them.
SELECT j.n, CAST(j.id AS text), j.topic, {json_text: j.payload}, r.attempt, j.max_attempts, j.flags, j.created_by,
    j.scope, j.scope_id, r.token, r.lease, {now} - coalesce(r.started_at, r.claimed_at), r.cancel_at
FROM {rows: id uuid} JOIN {jobs} j ON j.id = t.id JOIN {running} r ON r.n = j.n

-- name: any_expired_lease
-- Is there anything to reclaim?
SELECT 1 FROM {leases} WHERE until <= {now} LIMIT 1

-- name: live_workers
-- Workers whose lease is live, and how much they hold.
SELECT l.worker, {json_text: l.serves}, l.until, (SELECT count(*) FROM {running} r WHERE r.lease = l.id)
FROM {leases} l WHERE l.until > {now} ORDER BY l.worker

-- name: held_behind
-- Who is in front of a job that waits at its gate.
SELECT g.max, CAST(k.id AS text), (SELECT count(*) FROM {held} o WHERE o.gate = h.gate AND o.n < h.n)
FROM {jobs} j JOIN {held} h ON h.n = j.n JOIN {gates} g ON g.gate = h.gate
JOIN {members} m ON m.gate = h.gate AND m.n <> h.n JOIN {jobs} k ON k.n = m.n
WHERE j.id = (SELECT t.id FROM {rows: id uuid})
    AND (EXISTS (SELECT 1 FROM {running} r WHERE r.n = m.n) OR EXISTS (SELECT 1 FROM {ready} r WHERE r.n = m.n))
ORDER BY m.n LIMIT 3

-- name: rate_used
-- The rate limit of a job's topic and what was started within its window.
SELECT p.rate_limit, p.rate_ms, (SELECT coalesce(sum(s.count), 0) FROM {starts} s
    WHERE s.topic = p.topic AND s.at > {now} - p.rate_ms)
FROM {jobs} j JOIN {topics} p ON p.topic = j.topic
WHERE p.rate_limit IS NOT NULL AND j.id = (SELECT t.id FROM {rows: id uuid})

-- name: get_records
-- The records with these ids, of any kinds.
SELECT r.kind, r.id, r.key, r.body, r.version, r.created_at, r.updated_at
FROM {rows: kind text, id text} JOIN {records} r ON r.kind = t.kind AND r.id = t.id

-- name: find_record
-- The one record of a kind with this key.
SELECT r.kind, r.id, r.key, r.body, r.version, r.created_at, r.updated_at
FROM {rows: kind text, key text} JOIN {records} r ON r.kind = t.kind AND r.key = t.key

-- name: list_records
-- All of a kind, oldest first.
SELECT r.kind, r.id, r.key, r.body, r.version, r.created_at, r.updated_at FROM {records} r
WHERE r.kind = (SELECT t.kind FROM {rows: kind text}) ORDER BY r.n LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: add_record
-- Make one; no row means that its id or its key is taken.
INSERT INTO {records} (kind, id, key, body, version, created_at, updated_at)
SELECT t.kind, t.id, t.key, t.body, 1, {now}, {now} FROM {rows: kind text, id text, key text, body text}
WHERE true ON CONFLICT DO NOTHING
RETURNING kind, id, key, body, version, created_at, updated_at

-- name: change_record
-- Change one that is still as it was read; no row means that it is not, or that its new key is taken.
UPDATE {records} SET key = (SELECT t.key FROM {rows: key text}), body = (SELECT t.body FROM {rows: body text}),
    version = version + 1, updated_at = {now}
WHERE (kind, id, version) IN (SELECT t.kind, t.id, t.version FROM {rows: kind text, id text, version bigint})
    AND NOT EXISTS (SELECT 1 FROM {rows: kind text, id text, key text} JOIN {records} o ON o.kind = t.kind
        AND o.key = t.key AND o.id <> t.id)
RETURNING kind, id, key, body, version, created_at, updated_at

-- name: drop_record
DELETE FROM {records} WHERE (kind, id) IN (SELECT t.kind, t.id FROM {rows: kind text, id text}) RETURNING id

-- name: last_numbers
-- How far jobs and events have come.
SELECT (SELECT max(n) FROM {jobs}), (SELECT max(id) FROM {events})

-- name: jobs_after
-- Jobs made after a number.
SELECT j.n, j.created_at FROM {jobs} j WHERE j.n > (SELECT t.last FROM {rows: last bigint})
ORDER BY j.n LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: events_after
-- Lines of history after a number, of whichever job.
SELECT e.id, e.n, e.type, e.to_status, {json_text: e.metadata}, e.created_at FROM {events} e
WHERE e.id > (SELECT t.last FROM {rows: last bigint}) ORDER BY e.id LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: started_attempts
-- What runs, as far as it has come.
SELECT r.n, r.token, r.attempt, r.started_at, r.progress, r.message FROM {running} r WHERE r.started_at IS NOT NULL

-- name: page_by_number
-- The jobs with these numbers.
SELECT t.n FROM {rows: n bigint}

-- name: departing
-- What is still told of jobs that are being deleted.
SELECT CAST(j.id AS text), j.topic, j.scope, j.scope_id, j.created_by FROM {rows: n bigint} JOIN {jobs} j ON j.n = t.n
ORDER BY j.n

-- name: drop_old_news
-- Lines about many jobs are only for those who watch.
DELETE FROM {events} WHERE n = 0 AND created_at <= {now} - 300000
