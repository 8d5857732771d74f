-- Statements that PostgreSQL and SQLite share. `queries.py` fills in, once at load:
--   {jobs} …           the table, in the schema or with the prefix
--   {now}              the database's clock in ms
--   {rows: n bigint}   the statement's one parameter, a JSON array of objects, as a table named t
--   {among: n bigint}  one of the parameter's values, found in an index
--   {any_of} SELECT … {end_any}  one of the rows of a query, without a join
--   {seek: jobs j ON …}  the table's rows for each of the parameter's rows, which always drive
--   {given: t.*}       what a job is given (`model/fields.py`), as many names as there are; {plain: …} for plain jobs,
--                      {kept: …} what is read as it is kept
--   {hooked}           a trait of all jobs as long as there are webhook endpoints
--   {due: $6, $5}      when a new job is to run: at a named time, or after a delay
--   {for_update} …     row locks, nothing in SQLite, where a writer is alone anyway

-- name: clock
-- The database's time; scripts read it once and use it throughout.
SELECT {now}

-- name: add_lanes
-- Register lanes; in every enqueue, because a lane seen in a transaction that rolled back is not there.
INSERT INTO {lanes} (topic, capability)
SELECT DISTINCT t.topic, t.capability FROM {rows: topic text, capability text}
WHERE NOT EXISTS (SELECT 1 FROM {lanes} l WHERE l.topic = t.topic AND l.capability = t.capability AND l.worker_type = '')
ORDER BY 1, 2
ON CONFLICT (topic, capability, worker_type) DO NOTHING

-- name: find_lanes
-- The numbers of lanes.
SELECT l.topic, l.capability, l.lane
FROM {rows: topic text, capability text}
{seek: lanes l ON l.topic = t.topic AND l.capability = t.capability AND l.worker_type = ''}

-- name: take_keys
-- Take unique keys; a key missing from the answer is already taken. Sorted, or two batches deadlock.
INSERT INTO {keys} (kind, key, n, hash)
SELECT t.kind, t.key, t.n, t.hash FROM {rows: kind text, key text, n bigint, hash text}
WHERE true ORDER BY 1, 2
ON CONFLICT (kind, key) DO NOTHING
RETURNING kind, key, n

-- name: find_keys
-- The owners of these keys.
SELECT k.kind, k.key, k.hash, CAST(j.id AS text)
FROM {rows: kind text, key text} JOIN {keys} k ON k.kind = t.kind AND k.key = t.key JOIN {jobs} j ON j.n = k.n

-- name: drop_keys
-- Free the keys of one kind that these jobs hold.
DELETE FROM {keys} WHERE n {among: n bigint} AND kind = (SELECT min(t.kind) FROM {rows: kind text})

-- name: idempotency_keys
-- Those that these jobs hold, as they are locked and as they were given.
SELECT k.n, k.key, j.idempotency_key FROM {rows: n bigint} {seek: keys k ON k.n = t.n AND k.kind = 'idempotency'}
    {seek: jobs j ON j.n = t.n}

-- name: keep_once
-- A job that may complete only once has completed: its dedupe key stays for good.
UPDATE {keys} SET kind = 'once' WHERE kind = 'dedupe' AND n {among: n bigint}

-- name: lock_limit_keys
-- Create and lock the rows that stand for concurrency keys, so that jobs with `reject` or `replace` come one after the
-- other. Claims and endings don't read them, so a user's transaction that has one locked blocks no worker. Sorted, or
-- two batches deadlock.
INSERT INTO {keys} (kind, key, n) SELECT 'limit', t.key, 0 FROM {rows: key text} WHERE true ORDER BY 2
ON CONFLICT (kind, key) DO UPDATE SET n = 0

-- name: make_limits
-- Create missing counts.
INSERT INTO {limits} (key, running) SELECT DISTINCT t.key, 0 FROM {rows: key text} WHERE true ORDER BY 1
ON CONFLICT (key) DO NOTHING

-- name: lock_free_limits
-- Lock the counts of these keys; counts locked by other transactions are skipped.
SELECT l.key, l.running FROM {limits} l WHERE l.key {among: key text} ORDER BY l.key {skip_locked}

-- name: lock_limits
-- Lock the counts of these keys, in order.
SELECT l.key, l.running FROM {limits} l WHERE l.key {among: key text} ORDER BY l.key {for_update}

-- name: held_lanes
-- The lanes in which jobs are held under these keys, and the limit of the first in each. From lane to lane by the index:
-- many may wait in one.
WITH RECURSIVE lane (key, lane) AS (
    SELECT t.key, (SELECT min(x.lane) FROM {held} x WHERE x.key = t.key) FROM {rows: key text}
    UNION ALL
    SELECT y.key, (SELECT min(x.lane) FROM {held} x WHERE x.key = y.key AND x.lane > y.lane) FROM lane y
    WHERE y.lane IS NOT NULL)
SELECT y.key, y.lane, (SELECT x.most FROM {held} x WHERE x.key = y.key AND x.lane = y.lane
    ORDER BY x.rank, x.run_at, x.n LIMIT 1)
FROM lane y WHERE y.lane IS NOT NULL ORDER BY 1, 2

-- name: add_wakes
-- The jobs held under these keys need a look.
INSERT INTO {wakes} (key) SELECT DISTINCT t.key FROM {rows: key text} WHERE true

-- name: take_wakes
-- Keys to look at; keys written by a user's transaction show up when it commits.
DELETE FROM {wakes} WHERE id {any_of} SELECT w.id FROM {wakes} w ORDER BY w.id LIMIT 1000 {skip_locked} {end_any}
RETURNING key

-- name: add_replaced
-- Running jobs to cancel after this transaction has committed; a cancel now would keep them locked until then.
INSERT INTO {replaced} (job, reason) SELECT t.job, t.reason FROM {rows: job uuid, reason text} WHERE true

-- name: take_replaced
DELETE FROM {replaced} WHERE id {any_of} SELECT x.id FROM {replaced} x ORDER BY x.id LIMIT 1000 {skip_locked} {end_any}
RETURNING CAST(job AS text), reason

-- name: add_members
-- Jobs that live under a concurrency key.
INSERT INTO {members} (key, n) SELECT t.key, t.n FROM {rows: key text, n bigint} WHERE true
ON CONFLICT (key, n) DO NOTHING

-- name: drop_members
-- Jobs that no longer do.
DELETE FROM {members} WHERE (key, n) IN (SELECT t.key, t.n FROM {rows: key text, n bigint})

-- name: insert_jobs
-- The wide rows, with numbers and times already chosen.
INSERT INTO {jobs} (n, id, lane, topic, run_at, created_at, max_attempts, flags, expires_at, dedupe_key, limit_key,
    limit_policy, limit_most, priority, payload, trace, {given})
SELECT t.n, t.id, t.lane, t.topic, t.run_at, t.created_at, t.max_attempts, t.flags, t.expires_at, t.dedupe_key, t.limit_key,
    t.limit_policy, t.limit_most, t.priority, {json: t.payload}, t.trace, {given: t.*}
FROM {rows: n bigint, id uuid, lane integer, topic text, run_at bigint, created_at bigint, max_attempts integer,
    flags integer, expires_at bigint, dedupe_key text, limit_key text, limit_policy text, limit_most integer,
    priority integer, payload text, trace text, {given: * TYPE}}

-- name: add_deadlines
-- When these jobs expire if they have not started.
INSERT INTO {deadlines} (n, expires_at) SELECT t.n, t.expires_at FROM {rows: n bigint, expires_at bigint} WHERE true

-- name: drop_deadlines
-- They have ended.
DELETE FROM {deadlines} WHERE n {among: n bigint}

-- name: due_deadlines
-- Jobs past their deadline; running ones are left alone.
SELECT d.n FROM {deadlines} d WHERE d.expires_at <= {now} AND NOT EXISTS (SELECT 1 FROM {running} r WHERE r.n = d.n)
ORDER BY d.expires_at LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: place_ready
-- Into the queue, at the place given by the job's lane, priority and time.
INSERT INTO {ready} (lane, rank, run_at, n, attempt, max_attempts, flags)
SELECT j.lane, ~j.priority, j.run_at, j.n, t.attempt, j.max_attempts, j.flags
FROM {rows: n bigint, attempt integer} {seek: jobs j ON j.n = t.n} ORDER BY 1, 2, 3, 4

-- name: place_later
-- Set aside until the job is due.
INSERT INTO {later} (n, lane, run_at, attempt)
SELECT j.n, j.lane, j.run_at, t.attempt FROM {rows: n bigint, attempt integer} {seek: jobs j ON j.n = t.n} ORDER BY 1

-- name: place_held
-- Held until a running job of the same key ends.
INSERT INTO {held} (n, lane, key, rank, run_at, most, attempt)
SELECT j.n, j.lane, j.limit_key, ~j.priority, j.run_at, j.limit_most, t.attempt
FROM {rows: n bigint, attempt integer} {seek: jobs j ON j.n = t.n} ORDER BY 1

-- name: place_parked
-- Set aside until an answer comes, until the first of its waits is over, or until a step is due for its next try.
INSERT INTO {parked} (n, lane, attempt, until)
SELECT j.n, j.lane, t.attempt, coalesce(
    (SELECT min(s.until) FROM {steps} s WHERE s.n = j.n AND s.state = 'waiting' AND s.until < t.wake_at), t.wake_at,
    (SELECT min(s.until) FROM {steps} s WHERE s.n = j.n AND s.state = 'waiting'))
FROM {rows: n bigint, attempt integer, wake_at bigint} {seek: jobs j ON j.n = t.n} ORDER BY 1

-- name: clear_deadline
-- A requeued job has no deadline.
UPDATE {jobs} SET expires_at = NULL WHERE n {among: n bigint}

-- name: lock_ready
-- Which of these are ready.
SELECT p.n, p.attempt FROM {ready} p WHERE p.n {among: n bigint} ORDER BY p.n {for_update}

-- name: lock_later
-- Which of these are set aside.
SELECT p.n, p.attempt FROM {later} p WHERE p.n {among: n bigint} ORDER BY p.n {for_update}

-- name: lock_held
-- Which of these wait for a key.
SELECT p.n, p.attempt FROM {held} p WHERE p.n {among: n bigint} ORDER BY p.n {for_update}

-- name: lock_parked
-- Which of these wait for an answer.
SELECT p.n, p.attempt FROM {parked} p WHERE p.n {among: n bigint} ORDER BY p.n {for_update}

-- name: lock_running
-- Which of these are running.
SELECT r.n, r.attempt, r.cancel_at FROM {running} r WHERE r.n {among: n bigint} ORDER BY r.n {for_update}

-- name: take_ready
-- Take jobs out of `ready` by number.
DELETE FROM {ready} WHERE n {among: n bigint} RETURNING n, attempt

-- name: take_later
-- Take jobs out of `later` by number.
DELETE FROM {later} WHERE n {among: n bigint} RETURNING n, attempt

-- name: take_held
-- Take jobs out of `held` by number.
DELETE FROM {held} WHERE n {among: n bigint} RETURNING n, attempt

-- name: take_parked
-- Away from their waits, by number.
DELETE FROM {parked} WHERE n {among: n bigint} RETURNING n, attempt

-- name: take_overdue
-- Jobs with a wait that lasted too long.
DELETE FROM {parked} WHERE n {any_of} SELECT k.n FROM {parked} k WHERE k.until <= {now}
    ORDER BY k.until, k.n LIMIT (SELECT t.top FROM {rows: top bigint}) {skip_locked} {end_any}
RETURNING n, attempt

-- name: expire_ready
-- Take jobs out of `ready` if the deadline passed before their first attempt; locked ones are skipped.
DELETE FROM {ready} WHERE n {any_of} SELECT p.n FROM {ready} p WHERE p.n {among: n bigint} AND p.attempt = 0
    AND (SELECT d.expires_at FROM {deadlines} d WHERE d.n = p.n) <= {now} {skip_locked} {end_any}
RETURNING n, attempt

-- name: expire_later
-- Take jobs out of `later` if the deadline passed before their first attempt; locked ones are skipped.
DELETE FROM {later} WHERE n {any_of} SELECT p.n FROM {later} p WHERE p.n {among: n bigint} AND p.attempt = 0
    AND (SELECT d.expires_at FROM {deadlines} d WHERE d.n = p.n) <= {now} {skip_locked} {end_any}
RETURNING n, attempt

-- name: expire_held
-- Take jobs out of `held` if the deadline passed before their first attempt; locked ones are skipped.
DELETE FROM {held} WHERE n {any_of} SELECT p.n FROM {held} p WHERE p.n {among: n bigint} AND p.attempt = 0
    AND (SELECT d.expires_at FROM {deadlines} d WHERE d.n = p.n) <= {now} {skip_locked} {end_any}
RETURNING n, attempt

-- name: take_due
-- The oldest jobs that are due.
DELETE FROM {later} WHERE n {any_of} SELECT l.n FROM {later} l WHERE l.run_at <= {now}
    ORDER BY l.run_at, l.n LIMIT (SELECT t.top FROM {rows: top bigint}) {skip_locked} {end_any}
RETURNING n, attempt

-- name: next_due
-- Milliseconds until the next job is due or the next wait ends, whether a deadline has passed, whether held jobs need a
-- look, and whether running ones were replaced.
SELECT (SELECT min(x.at) FROM (SELECT min(run_at) AS at FROM {later} UNION ALL SELECT min(until) FROM {parked}) x) - {now},
    (SELECT d.n FROM {deadlines} d WHERE d.expires_at <= {now} AND NOT EXISTS (SELECT 1 FROM {running} r WHERE r.n = d.n)
        ORDER BY d.expires_at LIMIT 1),
    (SELECT w.id FROM {wakes} w LIMIT 1), (SELECT x.id FROM {replaced} x LIMIT 1)

-- name: hold_lease
-- Lock a live lease so that it is not reclaimed (renewing does not wait), and read the clock.
SELECT l.id, {now} FROM {leases} l WHERE l.id = (SELECT t.lease FROM {rows: lease bigint}) AND l.until > {now} {key_share}

-- name: keep_lease
-- Lock a lease that was not taken back, so that the reaper passes it over (renewing does not wait), and read the clock.
-- It may have expired: its outcomes count until it is taken back.
SELECT l.id, {now}, l.worker_id, l.worker FROM {leases} l WHERE l.id = (SELECT t.lease FROM {rows: lease bigint}) {key_share}

-- name: take_running_by_number
-- End attempts regardless of their owner.
DELETE FROM {running} WHERE n {among: n bigint}
RETURNING n, token, attempt, claimed_at, started_at, cancel_at, cancel_reason, progress, message, lease

-- name: take_orphans
-- End the attempts of expired leases, which the caller has locked.
DELETE FROM {running} WHERE (lease IN (SELECT t.lease FROM {rows: lease bigint})) IS TRUE
RETURNING n, token, attempt, claimed_at, started_at, cancel_at, cancel_reason, progress, message, lease

-- name: take_unknown
-- End attempts under this lease that its worker does not know about.
DELETE FROM {running} WHERE lease = (SELECT min(t.lease) FROM {rows: lease bigint})
    AND token NOT IN (SELECT t.token FROM {rows: token bigint})
RETURNING n, token, attempt, claimed_at, started_at, cancel_at, cancel_reason, progress, message, lease

-- name: settled_by
-- Endings with these tokens: shows whether a settle happened when its COMMIT got no answer.
SELECT o.n, o.status FROM {rows: n bigint, token bigint} {seek: outcomes o ON o.n = t.n AND o.token = t.token}

-- name: mark_cancel
-- Ask running jobs to stop.
UPDATE {running} SET cancel_at = {now}, cancel_reason = (SELECT max(t.reason) FROM {rows: reason text})
WHERE cancel_at IS NULL AND n {among: n bigint}
RETURNING n, attempt

-- name: find_running
-- Which of these are running.
SELECT r.n, r.attempt, r.cancel_at FROM {running} r WHERE r.n {among: n bigint}

-- name: cancelling
-- Every job with a cancel request, and for how long it could have stopped.
SELECT r.n, r.token, r.lease, j.topic, {now} - CASE WHEN r.grace_from > r.cancel_at THEN r.grace_from ELSE r.cancel_at END
FROM {running} r JOIN {jobs} j ON j.n = r.n WHERE r.cancel_at IS NOT NULL

-- name: find_outcomes
-- How these jobs ended; locked, so that one of two requeues wins.
SELECT o.n, o.status, o.attempt, o.ended_at, o.started_at, {json_text: o.result}, o.error, o.error_type, o.topic,
    (SELECT w.name FROM {workers} w WHERE w.id = o.worker)
FROM {outcomes} o WHERE o.n {among: n bigint} ORDER BY o.n {for_update}

-- name: add_outcomes
-- Endings.
INSERT INTO {outcomes} (n, token, topic, status, attempt, ended_at, claimed_at, started_at, cancel_at, cancel_reason,
    progress, message, result, error, error_type, error_group, worker)
SELECT t.n, t.token, t.topic, t.status, t.attempt, t.ended_at, t.claimed_at, t.started_at, t.cancel_at, t.cancel_reason,
    t.progress, t.message, {json: t.result}, t.error, t.error_type, t.error_group, t.worker
FROM {rows: n bigint, token bigint, topic text, status text, attempt integer, ended_at bigint, claimed_at bigint,
    started_at bigint, cancel_at bigint, cancel_reason text, progress integer, message text, result text, error text,
    error_type text, error_group text, worker integer}
WHERE true

-- name: drop_outcomes
-- Requeued or deleted jobs.
DELETE FROM {outcomes} WHERE n {among: n bigint}

-- name: add_notes
-- The last failure, the last worker and, if they have steps, the progress of jobs that are pending again or wait.
INSERT INTO {notes} AS x (n, error, error_type, worker, progress, message)
SELECT t.n, t.error, t.error_type, t.worker, t.progress, t.message
FROM {rows: n bigint, error text, error_type text, worker integer, progress integer, message text}
WHERE true
ON CONFLICT (n) DO UPDATE SET error = coalesce(excluded.error, x.error), error_type = coalesce(excluded.error_type, x.error_type),
    worker = coalesce(excluded.worker, x.worker), progress = coalesce(excluded.progress, x.progress),
    message = coalesce(excluded.message, x.message)

-- name: drop_notes
DELETE FROM {notes} WHERE n {among: n bigint}

-- name: add_events
-- Lines of history.
INSERT INTO {events} (n, type, from_status, to_status, message, metadata, created_at)
SELECT t.n, t.type, t.from_status, t.to_status, t.message, {json: t.metadata}, t.created_at
FROM {rows: n bigint, type text, from_status text, to_status text, message text, metadata text, created_at bigint}
WHERE true

-- name: drop_events
DELETE FROM {events} WHERE n {among: n bigint}

-- name: job_events
-- The history of one job. What a requeue replaced comes along up to 16 KiB.
SELECT e.id, e.type, e.from_status, e.to_status, e.message,
    CASE WHEN e.type = 'job:requeued' AND {size: e.metadata} > 16384 THEN {without_replaced: e.metadata}
        ELSE {json_text: e.metadata} END, e.created_at
FROM {events} e JOIN {jobs} j ON j.n = e.n WHERE j.id = (SELECT t.id FROM {rows: id uuid}) ORDER BY e.id

-- name: add_tally
-- Count endings; negative when one is undone.
INSERT INTO {tally} AS y (minute, writer, topic, status, count, run_ms)
SELECT t.minute, t.writer, t.topic, t.status, sum(t.count), sum(t.run_ms)
FROM {rows: minute bigint, writer bigint, topic text, status text, count bigint, run_ms bigint}
WHERE true GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
ON CONFLICT (minute, writer, topic, status) DO UPDATE SET count = y.count + excluded.count, run_ms = y.run_ms + excluded.run_ms

-- name: add_times
-- Count how long jobs waited and ran.
INSERT INTO {tally_hist} AS y (minute, writer, topic, kind, bucket, count)
SELECT t.minute, t.writer, t.topic, t.kind, t.bucket, sum(t.count)
FROM {rows: minute bigint, writer bigint, topic text, kind text, bucket integer, count bigint}
WHERE true GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
ON CONFLICT (minute, writer, topic, kind, bucket) DO UPDATE SET count = y.count + excluded.count

-- name: take_fine_times
-- Histograms old enough to be kept in longer spans; a window, because what is older was joined before.
DELETE FROM {tally_hist} WHERE minute < {now} / 60000 - (SELECT t.age FROM {rows: age bigint})
    AND minute >= {now} / 60000 - (SELECT t.behind FROM {rows: behind bigint})
    AND (writer <> 0 OR minute % (SELECT t.span FROM {rows: span bigint}) <> 0)
RETURNING minute, topic, kind, bucket, count

-- name: times_history
-- Histograms of waits and runs in spans of so many minutes.
SELECT y.minute - y.minute % (SELECT max(t.step) FROM {rows: step bigint}), y.topic, y.kind, y.bucket, sum(y.count)
FROM {tally_hist} y WHERE y.minute >= (SELECT max(t.minute) FROM {rows: minute bigint}) GROUP BY 1, 2, 3, 4 ORDER BY 1

-- name: take_old_tally
-- Finished minutes that several writers counted.
DELETE FROM {tally} WHERE writer <> 0 AND minute < {now} / 60000 - 2 RETURNING minute, topic, status, count, run_ms

-- name: find_jobs
-- The fields needed to move a job, by public id.
SELECT j.n, CAST(j.id AS text), j.topic, j.lane, j.run_at, j.max_attempts, j.flags | {hooked}, j.limit_key, j.dedupe_key, j.priority, l.capability,
    j.limit_policy, j.limit_most, j.parent_id, j.parent_step, j.parent_key
FROM {rows: id uuid} {seek: jobs j ON j.id = t.id} {seek: lanes l ON l.lane = j.lane} ORDER BY j.n

-- name: stored_jobs
-- The jobs among these that an earlier try of an insert has stored.
SELECT CAST(j.id AS text), j.topic, CAST(j.payload AS text), j.created_at FROM {rows: id uuid} {seek: jobs j ON j.id = t.id}

-- name: job_facts
-- The same by number.
SELECT j.n, CAST(j.id AS text), j.topic, j.lane, j.run_at, j.max_attempts, j.flags | {hooked}, j.limit_key, j.dedupe_key, j.priority, l.capability,
    j.limit_policy, j.limit_most, j.parent_id, j.parent_step, j.parent_key
FROM {rows: n bigint} {seek: jobs j ON j.n = t.n} {seek: lanes l ON l.lane = j.lane} ORDER BY j.n

-- name: drop_jobs
DELETE FROM {jobs} WHERE n {among: n bigint}

-- name: drop_all_keys
-- Every key of deleted jobs.
DELETE FROM {keys} WHERE n {among: n bigint}

-- name: stale_marks
-- Up to which job of each topic and status `job:stale` was told.
SELECT m.topic, m.status, m.ended_at, m.n FROM {stale_marks} m

-- name: make_stale_marks
-- Marks before every job.
INSERT INTO {stale_marks} (topic, status, ended_at, n) SELECT t.topic, t.status, 0, 0 FROM {rows: topic text, status text}
WHERE true ORDER BY 1, 2
ON CONFLICT (topic, status) DO NOTHING

-- name: lock_stale_marks
SELECT m.topic, m.status, m.ended_at, m.n
FROM {stale_marks} m WHERE m.topic {among: topic text} ORDER BY m.topic, m.status {for_update}

-- name: move_stale_marks
-- Forward, by rows that say for each topic and status how far.
INSERT INTO {stale_marks} AS m (topic, status, ended_at, n)
SELECT t.topic, t.status, t.ended_at, t.n FROM {rows: topic text, status text, ended_at bigint, n bigint} WHERE true ORDER BY 1, 2
ON CONFLICT (topic, status) DO UPDATE SET ended_at = excluded.ended_at, n = excluded.n

-- name: lock_ended
-- When these jobs ended; locked, so that none is requeued before its event is stored.
SELECT o.n, o.ended_at FROM {outcomes} o WHERE o.n {among: n bigint} ORDER BY o.n {for_update}

-- name: first_ended
-- When the first job ended, of those that ended until a time.
SELECT min(o.ended_at) FROM {outcomes} o WHERE o.ended_at <= (SELECT t.until FROM {rows: until bigint})

-- name: ended_jobs
-- Jobs that ended in a span of time, after a place among them.
SELECT o.n, CAST(j.id AS text), o.topic, o.status, o.ended_at, CASE WHEN {may_go} THEN 1 ELSE 0 END
FROM (SELECT e.n, e.topic, e.status, e.ended_at FROM {outcomes} e
    WHERE e.ended_at >= (SELECT t.at FROM {rows: at bigint}) AND e.ended_at <= (SELECT t.until FROM {rows: until bigint})
        AND (e.ended_at > (SELECT t.at FROM {rows: at bigint}) OR e.n > (SELECT t.after FROM {rows: after bigint}))
    ORDER BY e.ended_at, e.n LIMIT (SELECT t.top FROM {rows: top bigint})) o
{seek: jobs j ON j.n = o.n}
ORDER BY o.ended_at, o.n

-- name: count_old
-- How many jobs of some topics (all the others if `named` is 0) and statuses ended long ago, up to a limit.
SELECT count(*) FROM (SELECT 1 FROM {outcomes} o
    WHERE o.ended_at <= {now} - (SELECT max(t.age) FROM {rows: age bigint})
        AND o.status IN (SELECT t.status FROM {rows: status text} WHERE t.status IS NOT NULL)
        AND (o.topic IN (SELECT t.topic FROM {rows: topic text} WHERE t.topic IS NOT NULL))
            = ((SELECT max(t.named) FROM {rows: named integer}) = 1)
    LIMIT (SELECT max(t.top) FROM {rows: top bigint})) x

-- name: may_go
-- What keeps an ended job from being deleted by retention, however old it is: a delivery that is still to be made, or a
-- child that one of its steps waits for. A part of other queries, about outcome o.
NOT EXISTS (SELECT 1 FROM {outbox} x WHERE x.n = o.n)
    AND NOT EXISTS (
        SELECT 1 FROM {steps} s WHERE s.n = o.n AND s.state = 'waiting' AND (s.child IS NOT NULL OR s.children_left > 0))

-- name: old_outcomes
-- Jobs that ended long ago.
SELECT o.n FROM {outcomes} o WHERE o.ended_at <= {now} - (SELECT t.age FROM {rows: age bigint}) AND {may_go}
ORDER BY o.ended_at LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: take_old_outcomes
-- Outcomes that are still that old.
DELETE FROM {outcomes} AS o WHERE n {among: n bigint} AND {may_go}
    AND ended_at <= {now} - (SELECT min(t.age) FROM {rows: age bigint})
RETURNING n, status, ended_at, started_at, topic

-- name: drop_old_histograms
-- Histograms of the time before retention.
DELETE FROM {tally_hist} WHERE minute < ({now} - (SELECT t.age FROM {rows: age bigint})) / 60000

-- name: drop_old_retries
-- Failed attempts of the time before retention: nothing takes them back when their job is deleted.
DELETE FROM {tally} WHERE minute < ({now} - (SELECT t.age FROM {rows: age bigint})) / 60000 AND status = 'retrying'

-- name: drop_empty_tally
-- Minutes that count no jobs any more, because all were deleted or requeued.
DELETE FROM {tally} WHERE writer = 0 AND count = 0 AND minute < {now} / 60000 - 2

-- name: open_lease
-- No worker_id in the answer means that the name is new.
INSERT INTO {leases} (worker, worker_id, until, renewed_at, serves)
SELECT t.worker, (SELECT w.id FROM {workers} w WHERE w.name = t.worker {key_share}), {now} + t.ms, {now}, {json: t.serves}
FROM {rows: worker text, ms bigint, serves text} WHERE true RETURNING id, worker_id

-- name: add_worker
-- A name gets its number.
INSERT INTO {workers} (name, seen_at) SELECT t.worker, {now} FROM {rows: worker text} WHERE true
ON CONFLICT (name) DO NOTHING

-- name: name_lease
-- The number of a name that was new when the lease was opened.
UPDATE {leases} SET worker_id = (SELECT w.id FROM {workers} w WHERE w.name = {leases}.worker)
WHERE id = (SELECT t.lease FROM {rows: lease bigint})

-- name: copy_leases
-- A lease for each of these jobs, for the same worker.
INSERT INTO {leases} (worker, worker_id, until, renewed_at, serves)
SELECT l.worker, l.worker_id, {now} + t.ms, {now}, l.serves
FROM {rows: lease bigint, ms bigint} JOIN {leases} l ON l.id = t.lease WHERE true RETURNING id

-- name: lease_workers
-- The workers of these leases.
SELECT l.id, l.worker_id, l.worker FROM {leases} l WHERE l.id {among: lease bigint}

-- name: close_lease
-- End a lease; jobs left under it can be reclaimed immediately.
UPDATE {leases} SET until = 0 WHERE id = (SELECT t.lease FROM {rows: lease bigint}) RETURNING id

-- name: close_lease_of
-- The same, on behalf of a process that has died: only if the lease is that process's.
UPDATE {leases} SET until = 0 WHERE id = (SELECT t.lease FROM {rows: lease bigint}) AND until > 0
    AND {json_at: serves home} = (SELECT t.home FROM {rows: home text})
    AND CAST({json_at: serves pid} AS bigint) = (SELECT t.pid FROM {rows: pid bigint})
    AND CAST({json_at: serves started} AS bigint) = (SELECT t.started FROM {rows: started bigint})
RETURNING id

-- name: leases_of
-- Leases of worker processes that ran on this machine since it booted, in this namespace.
SELECT l.id, {json_at: l.serves pid}, {json_at: l.serves started} FROM {leases} l
WHERE l.until > 0 AND {json_at: l.serves home} = (SELECT t.home FROM {rows: home text})

-- name: expired_leases
-- Expired leases that no settle has locked.
SELECT l.id, l.worker, l.worker_id FROM {leases} l WHERE l.until <= {now}
ORDER BY l.until, l.id LIMIT (SELECT t.top FROM {rows: top bigint}) {skip_locked}

-- name: jobs_under
-- How many jobs run under each of these leases. One scan of `running`, which is small and has no index on the lease.
SELECT r.lease, count(*) FROM {running} r WHERE (r.lease IN (SELECT t.lease FROM {rows: lease bigint})) IS TRUE GROUP BY 1

-- name: see_workers
-- The leases of these workers end now.
UPDATE {workers} SET seen_at = {now} WHERE id {any_of} SELECT l.worker_id FROM {leases} l WHERE l.id {among: lease bigint} {end_any}

-- name: drop_old_workers
-- Names of workers that left before the time of retention and that no job mentions any more. One that opens a lease just
-- now has its row locked.
DELETE FROM {workers} WHERE id {any_of} SELECT w.id FROM {workers} w
    WHERE w.seen_at <= {now} - (SELECT t.age FROM {rows: age bigint})
    AND NOT EXISTS (SELECT 1 FROM {outcomes} o WHERE o.ended_at <= w.seen_at)
    AND w.id NOT IN (SELECT l.worker_id FROM {leases} l WHERE l.worker_id IS NOT NULL)
    AND w.id NOT IN (SELECT x.worker FROM {notes} x WHERE x.worker IS NOT NULL) LIMIT 1000 {skip_locked} {end_any}

-- name: drop_leases
DELETE FROM {leases} WHERE id {among: lease bigint}

-- name: rated_topics
-- Topics with a rate limit; locked, so that claims under one limit come one after the other.
SELECT p.topic, p.rate_limit, p.rate_ms FROM {topics} p
WHERE p.rate_limit IS NOT NULL AND p.topic IN (SELECT t.topic FROM {rows: topic text}) ORDER BY p.topic {for_update}

-- name: recent_starts
-- Starts within the window, oldest first. The window is 200 ms longer than the rate says, because a handler may start
-- that much later than its job was claimed. Starts far in the future are ignored: the clock was set back since.
SELECT s.topic, s.at, s.count FROM {starts} s JOIN {topics} p ON p.topic = s.topic
WHERE s.topic IN (SELECT t.topic FROM {rows: topic text})
    AND s.at > {now} - p.rate_ms - 200 AND s.at <= {now} + p.rate_ms ORDER BY s.topic, s.at

-- name: add_starts
INSERT INTO {starts} (topic, at, token, count)
SELECT t.topic, t.at, t.token, t.count FROM {rows: topic text, at bigint, token bigint, count integer} WHERE true

-- name: drop_old_starts
DELETE FROM {starts} WHERE at <= {now} - 200 - coalesce((SELECT p.rate_ms FROM {topics} p WHERE p.topic = {starts}.topic), 0)

-- name: start_running
-- Move jobs into `running`: the attempt is used up from here on.
INSERT INTO {running} (n, token, lease, attempt, claimed_at)
SELECT t.n, t.token, t.lease, t.attempt, t.claimed_at
FROM {rows: n bigint, token bigint, lease bigint, attempt integer, claimed_at bigint} WHERE true

-- name: drop_ready
-- Take jobs out of `ready` without returning them.
DELETE FROM {ready} WHERE n {among: n bigint}

-- name: pause_topic
INSERT INTO {topics} (topic, paused_until) SELECT t.topic, t.until FROM {rows: topic text, until bigint} WHERE true
ON CONFLICT (topic) DO UPDATE SET paused_until = excluded.paused_until

-- name: drop_pauses
-- Of a group, and those that are over.
DELETE FROM {pauses} WHERE pattern {among: pattern text} OR paused_until <= {now}

-- name: add_pauses
INSERT INTO {pauses} (pattern, paused_until) SELECT t.pattern, t.until FROM {rows: pattern text, until bigint} WHERE true
ON CONFLICT (pattern) DO UPDATE SET paused_until = excluded.paused_until

-- name: extend_pause
-- Never shortens a pause that is longer.
INSERT INTO {topics} AS p (topic, paused_until) SELECT t.topic, t.until FROM {rows: topic text, until bigint} WHERE true
ON CONFLICT (topic) DO UPDATE SET paused_until = excluded.paused_until
WHERE p.paused_until IS NULL OR p.paused_until < excluded.paused_until

-- name: set_topics
-- The rate limits and the retention of topics; null lifts one.
INSERT INTO {topics} (topic, rate_limit, rate_ms, stale_after, delete_after)
SELECT t.topic, t.n, t.ms, t.stale_after, t.delete_after
FROM {rows: topic text, n integer, ms bigint, stale_after bigint, delete_after bigint}
WHERE true ORDER BY 1
ON CONFLICT (topic) DO UPDATE SET rate_limit = excluded.rate_limit, rate_ms = excluded.rate_ms,
    stale_after = excluded.stale_after, delete_after = excluded.delete_after

-- name: topic_ages
-- Topics whose templates say how long their jobs are kept.
SELECT p.topic, p.stale_after, p.delete_after FROM {topics} p
WHERE p.stale_after IS NOT NULL OR p.delete_after IS NOT NULL

-- name: list_topics
-- All topics with their pauses, and the groups of topics that are paused.
SELECT x.topic, coalesce((SELECT p.paused_until FROM {topics} p WHERE p.topic = x.topic AND p.paused_until > {now}),
    (SELECT g.paused_until FROM {pauses} g WHERE g.pattern = x.topic AND g.paused_until > {now}))
FROM (SELECT topic FROM {topics} UNION SELECT topic FROM {lanes} UNION
    SELECT id FROM {records} WHERE kind = 'template' UNION
    SELECT pattern FROM {pauses} WHERE paused_until > {now}) x ORDER BY x.topic

-- name: live_counts
-- Jobs that have not ended, by topic.
SELECT l.topic, x.status, sum(x.count) FROM (
    SELECT lane, 'pending' AS status, count(*) AS count FROM {ready} GROUP BY lane
    UNION ALL SELECT lane, 'pending', count(*) FROM {later} GROUP BY lane
    UNION ALL SELECT lane, 'pending', count(*) FROM {held} GROUP BY lane
    UNION ALL SELECT lane, 'waiting', count(*) FROM {parked} GROUP BY lane
    UNION ALL SELECT j.lane, CASE WHEN r.cancel_at IS NULL THEN 'processing' ELSE 'cancelling' END, count(*)
        FROM {running} r JOIN {jobs} j ON j.n = r.n GROUP BY 1, 2) x
JOIN {lanes} l ON l.lane = x.lane GROUP BY 1, 2

-- name: running_counts
-- Running jobs by topic, without the ones that were asked to stop.
SELECT l.topic, count(*) FROM {running} r JOIN {jobs} j ON j.n = r.n JOIN {lanes} l ON l.lane = j.lane
WHERE r.cancel_at IS NULL GROUP BY 1

-- name: ended_counts
-- Endings by topic and status, from the tally. Failed attempts that are tried again end no job.
SELECT y.topic, y.status, sum(y.count), sum(y.run_ms) FROM {tally} y
WHERE y.minute >= (SELECT t.minute FROM {rows: minute bigint}) AND y.status <> 'retrying' GROUP BY 1, 2

-- name: tally_history
-- Endings, and failed attempts that are tried again, in spans of minutes, from the tally.
SELECT y.minute - y.minute % (SELECT max(t.step) FROM {rows: step bigint}), y.topic, y.status, sum(y.count), sum(y.run_ms)
FROM {tally} y WHERE y.minute >= (SELECT max(t.minute) FROM {rows: minute bigint}) GROUP BY 1, 2, 3 ORDER BY 1

-- name: backlog
-- Pending jobs by topic and capability, due or not, with their number and earliest time, and how many of them are held.
SELECT l.topic, l.capability, x.due, sum(x.count), min(x.first), sum(x.held) FROM (
    SELECT lane, 1 AS due, count(*) AS count, min(run_at) AS first, 0 AS held FROM {ready} GROUP BY lane
    UNION ALL SELECT lane, 1, count(*), min(run_at), count(*) FROM {held} GROUP BY lane
    UNION ALL SELECT lane, 0, count(*), min(run_at), 0 FROM {later} GROUP BY lane) x
JOIN {lanes} l ON l.lane = x.lane GROUP BY 1, 2, 3

-- name: busy_keys
-- Keys under which jobs are held, with how many run and may run, and the topic of the first job held; from key to key
-- by the index.
WITH RECURSIVE held_key (key) AS (
    SELECT min(h.key) FROM {held} h
    UNION ALL SELECT (SELECT min(h.key) FROM {held} h WHERE h.key > k.key) FROM held_key k WHERE k.key IS NOT NULL),
first (key) AS (
    SELECT k.key FROM held_key k WHERE k.key IS NOT NULL LIMIT (SELECT t.top FROM {rows: top bigint}))
SELECT (SELECT l.topic FROM {lanes} l WHERE l.lane = (SELECT min(x.lane) FROM {held} x WHERE x.key = f.key)), f.key,
    coalesce((SELECT c.running FROM {limits} c WHERE c.key = f.key), 0),
    (SELECT x.most FROM {held} x WHERE x.key = f.key ORDER BY x.lane, x.rank, x.run_at, x.n LIMIT 1)
FROM first f ORDER BY 2

-- name: rates_used
-- Topics with a rate limit, and the starts within its window.
SELECT p.topic, p.rate_limit, p.rate_ms, (SELECT coalesce(sum(s.count), 0) FROM {starts} s
    WHERE s.topic = p.topic AND s.at > {now} - p.rate_ms - 200)
FROM {topics} p WHERE p.rate_limit IS NOT NULL

-- name: waits
-- Steps that wait for an answer by topic and step, of the first of the jobs that wait: how many jobs, since when the
-- first, when the next one gives up, and the job that waits longest. A step that `ctx.sleep` made waits for nobody, and
-- children end by themselves.
SELECT x.topic, x.name, x.jobs, x.since, x.until, CAST(x.id AS text) FROM (
    SELECT j.topic, s.name, j.id, s.started_at AS since,
        row_number() OVER (PARTITION BY j.topic, s.name ORDER BY s.started_at, s.n, s.key) AS place,
        min(s.until) OVER (PARTITION BY j.topic, s.name) AS until,
        count(CASE WHEN s.first = 1 THEN 1 END) OVER (PARTITION BY j.topic, s.name) AS jobs
    FROM (SELECT w.n, w.name, w.key, w.started_at, w.until,
            row_number() OVER (PARTITION BY w.n, w.name ORDER BY w.started_at, w.key) AS first
        FROM (SELECT k.n FROM {parked} k ORDER BY k.n LIMIT (SELECT t.top FROM {rows: top bigint})) p
        {seek: steps w ON w.n = p.n AND w.state = 'waiting' AND w.name <> 'sleep' AND w.name NOT LIKE '%/sleep'
            AND w.child IS NULL AND w.children_made IS NULL}) s
    {seek: jobs j ON j.n = s.n}) x
WHERE x.place = 1 ORDER BY x.since

-- name: leaders
-- The current leaders.
SELECT o.name, o.holder, o.until, o.since, o.reported_at, {json_text: o.duties} FROM {leaders} o WHERE o.until > {now}
ORDER BY o.name

-- name: elect
-- Take an office that is free, expired, or already held by the caller, and report on its duties.
INSERT INTO {leaders} AS o (name, holder, until, since, reported_at, duties)
SELECT t.name, t.holder, {now} + t.ms, {now}, {now}, t.duties FROM {rows: name text, holder text, ms bigint, duties json}
WHERE true
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until, reported_at = excluded.reported_at,
    duties = excluded.duties,
    since = CASE WHEN o.holder = excluded.holder AND o.until > {now} THEN coalesce(o.since, excluded.since)
        ELSE excluded.since END
    WHERE o.holder = excluded.holder OR o.until <= {now}
RETURNING name

-- name: resign
DELETE FROM {leaders} WHERE (name, holder) IN (SELECT t.name, t.holder FROM {rows: name text, holder text}) RETURNING name

-- name: drop_idle_limit_keys
-- Rows for concurrency keys without live jobs.
DELETE FROM {keys} WHERE (kind, key) IN (SELECT k.kind, k.key FROM {keys} k WHERE k.kind = 'limit'
    AND NOT EXISTS (SELECT 1 FROM {members} m WHERE m.key = k.key) LIMIT 1000 {skip_locked})

-- name: drop_idle_limits
-- Counts of keys without running jobs.
DELETE FROM {limits} WHERE key {any_of} SELECT l.key FROM {limits} l WHERE l.running = 0 LIMIT 1000 {skip_locked} {end_any}

-- name: set_limits
-- The real number of running jobs under these keys, which are locked.
UPDATE {limits} SET running = (SELECT count(*) FROM {members} m JOIN {running} r ON r.n = m.n WHERE m.key = {limits}.key)
WHERE key {among: key text} RETURNING key, running

-- name: held_keys
-- Keys under which jobs are held, from key to key by the index.
WITH RECURSIVE held_key (key) AS (
    SELECT min(h.key) FROM {held} h
    UNION ALL SELECT (SELECT min(h.key) FROM {held} h WHERE h.key > k.key) FROM held_key k WHERE k.key IS NOT NULL)
SELECT k.key FROM held_key k WHERE k.key IS NOT NULL LIMIT 10000

-- name: limit_drift
-- Concurrency keys with a wrong count; there should be none.
SELECT x.key, sum(x.counted), sum(x.running) FROM (
    SELECT l.key, l.running AS counted, 0 AS running FROM {limits} l
    UNION ALL SELECT j.limit_key, 0, 1 FROM {running} r JOIN {jobs} j ON j.n = r.n WHERE j.limit_key IS NOT NULL) x
GROUP BY x.key

-- name: misplaced
-- Jobs in no place or in more than one; there should be none.
SELECT CAST(j.id AS text), (SELECT count(*) FROM {ready} p WHERE p.n = j.n) + (SELECT count(*) FROM {later} p WHERE p.n = j.n)
    + (SELECT count(*) FROM {held} p WHERE p.n = j.n) + (SELECT count(*) FROM {parked} p WHERE p.n = j.n) + (SELECT count(*) FROM {running} p WHERE p.n = j.n)
    + (SELECT count(*) FROM {outcomes} p WHERE p.n = j.n) AS places
FROM {jobs} j WHERE
    (SELECT count(*) FROM {ready} p WHERE p.n = j.n) + (SELECT count(*) FROM {later} p WHERE p.n = j.n)
    + (SELECT count(*) FROM {held} p WHERE p.n = j.n) + (SELECT count(*) FROM {parked} p WHERE p.n = j.n) + (SELECT count(*) FROM {running} p WHERE p.n = j.n)
    + (SELECT count(*) FROM {outcomes} p WHERE p.n = j.n) <> 1 LIMIT 100

-- name: view
-- A job with all its data; `lists.py` puts the FROM that selects the jobs in front of the joins. Where the jobs before it
-- on the page have 8 MiB of payloads and results, it comes without its own.
SELECT {now}, j.n, CAST(j.id AS text), j.topic, j.priority, l.capability,
    CASE WHEN coalesce(page.before, 0) < 8388608 THEN {json_text: j.payload} END, j.run_at, j.created_at,
    j.expires_at, j.max_attempts, j.flags,
    CASE WHEN o.n IS NOT NULL THEN 'ended' WHEN r.n IS NOT NULL THEN 'running' WHEN q.n IS NOT NULL THEN 'ready'
        WHEN a.n IS NOT NULL THEN 'later' WHEN h.n IS NOT NULL THEN 'held' WHEN k.n IS NOT NULL THEN 'parked' ELSE 'lost' END,
    coalesce(o.attempt, r.attempt, q.attempt, a.attempt, h.attempt, k.attempt, 0), coalesce(o.token, r.token), o.status,
    coalesce(o.claimed_at, r.claimed_at), coalesce(o.started_at, r.started_at), o.ended_at,
    coalesce(o.cancel_at, r.cancel_at), coalesce(o.cancel_reason, r.cancel_reason),
    coalesce(o.progress, r.progress, CASE WHEN (j.flags & 32) <> 0 THEN coalesce({step_progress}, x.progress) END),
    coalesce(o.message, r.message, x.message),
    CASE WHEN coalesce(page.before, 0) < 8388608 THEN {json_text: o.result} END,
    coalesce(o.error, x.error), coalesce(o.error_type, x.error_type), o.error_group, coalesce(s.worker, w.name),
    s.worker, s.until, s.renewed_at,
    ({told_events} WHERE e.n = j.n), (SELECT max(e.created_at) FROM {events} e WHERE e.n = j.n), j.changed_at,
    CASE WHEN (j.flags & 32) <> 0 THEN {current_step} END, CASE WHEN (j.flags & 32) <> 0 THEN CAST({step_document} AS text) END,
    k.until, j.track_hash, {kept: j.*}
FROM page {seek: jobs j ON j.n = page.n} {seek: lanes l ON l.lane = j.lane}
{seek_any: outcomes o ON o.n = j.n} {seek_any: running r ON r.n = j.n} {seek_any: ready q ON q.n = j.n}
{seek_any: later a ON a.n = j.n} {seek_any: held h ON h.n = j.n} {seek_any: parked k ON k.n = j.n} {seek_any: leases s ON s.id = r.lease}
{seek_any: notes x ON x.n = j.n} {seek_any: workers w ON w.id = coalesce(o.worker, x.worker)}
ORDER BY j.n DESC

-- name: current_step
-- The first declared step of those that run, else the step that began last; a part of other queries.
SELECT s.name FROM {steps} s WHERE s.n = {job} AND s.started_at IS NOT NULL
ORDER BY CASE WHEN s.state = 'processing' AND s.place = (SELECT min(f.place) FROM {steps} f
    WHERE f.n = s.n AND f.state = 'processing' AND f.title IS NOT NULL) THEN 0 ELSE 1 END, s.started_at DESC, s.place DESC LIMIT 1

-- name: step_progress
-- How many of a flow's steps have finished, in percent; a part of other queries. Only declared steps have titles.
SELECT count({done}) * 100 / nullif(count(*), 0) FROM {steps} s WHERE s.n = {job} AND s.title IS NOT NULL

-- name: step_document
-- The steps of a job as people see them: one entry for each name, the runs of one that has keys as its `items`. A part of
-- other queries: the view of a job and the filters share it, so that they can't disagree.
SELECT {json_array}({json: x.entry}) FROM (SELECT {json_object}('id', s.name, 'name', coalesce(max(s.title), s.name),
        'status', CASE WHEN max(s.item) IS NOT NULL AND min(s.key) = '' THEN max(CASE s.key WHEN '' THEN s.state END) WHEN {any: processing} THEN 'processing' WHEN {any: waiting} THEN 'waiting'
            WHEN {any: failed} THEN 'failed' WHEN {any: pending} THEN 'pending' WHEN {any: cancelled} THEN 'cancelled'
            WHEN {any: completed} THEN 'completed' ELSE 'skipped' END,
        'progress', CASE WHEN max(s.item) IS NOT NULL AND min(s.key) = '' THEN CASE max(CASE s.key WHEN '' THEN {done} END) WHEN 1 THEN 100
                ELSE count({done}) * 100 / coalesce(nullif(max(CASE s.key WHEN '' THEN s.item END), 0), 1) END
            WHEN max(s.children_total) > 0 THEN max(s.children_made - s.children_left - s.children_failed) * 100 / max(s.children_total)
            WHEN max(s.key) = '' AND count({done}) = 0 THEN coalesce(max(s.progress), 0) ELSE count({done}) * 100 / count(*) END,
        'message', max(s.message), 'attempt', max(s.attempt), 'startedAt', {date: min(s.started_at)},
        'completedAt', CASE WHEN count({done}) = count(*) OR max(s.item) IS NOT NULL AND max(CASE s.key WHEN '' THEN {done} END) = 1 THEN {date: max(s.ended_at)} END,
        'error', coalesce(max(CASE WHEN s.key = '' AND s.state <> 'completed' THEN s.error END),
            max(CASE s.state WHEN 'completed' THEN NULL ELSE s.error END)),
        'result', {parsed: max(CASE s.key WHEN '' THEN {json_text: s.result} END)},
        'resultSize', max(CASE s.key WHEN '' THEN s.result_size END), 'key', NULL,
        'items', CASE WHEN max(s.item) IS NOT NULL AND min(s.key) = '' THEN {json_object}('total', max(CASE s.key WHEN '' THEN s.item END),
                'done', count(CASE WHEN s.key <> '' THEN {done} END), 'failed', count(CASE WHEN s.key <> '' AND s.state = 'failed' THEN 1 END))
            WHEN max(s.children_made) IS NOT NULL THEN {json_object}('total', max(s.children_total),
                'done', max(s.children_made - s.children_left - s.children_failed), 'failed', max(s.children_failed))
            WHEN max(s.key) <> '' THEN {json_object}('total', count(*), 'done', count({done}),
            'failed', count(CASE s.state WHEN 'failed' THEN 1 END)) END) AS entry
    FROM {steps} s WHERE s.n = {job} GROUP BY s.name ORDER BY min(s.place), s.name) x

-- name: sized_page
-- The `chosen` jobs of a page, each with the bytes of the payloads and results before it.
SELECT c.n, c.place, sum({size: j.payload} + coalesce({size: o.result}, 0))
    OVER (ORDER BY c.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM chosen c {seek: jobs j ON j.n = c.n} {seek_any: outcomes o ON o.n = j.n}

-- name: page_by_id
-- The jobs with these ids.
SELECT k.n, 0 AS before FROM {rows: id uuid} {seek: jobs k ON k.id = t.id}

-- name: held_by
-- The running jobs with these ids, as their owner claimed them.
SELECT j.n, CAST(j.id AS text), j.topic, {json_text: j.payload}, r.attempt, j.max_attempts, j.flags, j.created_by,
    j.scope, j.scope_id, r.token, r.lease, {now} - coalesce(r.started_at, r.claimed_at), r.cancel_at
FROM {rows: id uuid} {seek: jobs j ON j.id = t.id} {seek: running r ON r.n = j.n}

-- name: anything_to_reap
-- Is there a lease that ran out, or a job that was asked to stop?
SELECT 1 WHERE EXISTS (SELECT 1 FROM {leases} WHERE until <= {now})
    OR EXISTS (SELECT 1 FROM {running} WHERE cancel_at IS NOT NULL)

-- name: live_workers
-- Workers with a live lease, all or those of one name, and how many jobs they hold.
SELECT l.worker, {json_text: l.serves}, l.until, (SELECT count(*) FROM {running} r WHERE r.lease = l.id), l.renewed_at
FROM {leases} l WHERE l.until > {now} AND l.worker = coalesce((SELECT t.worker FROM {rows: worker text}), l.worker)
ORDER BY l.worker

-- name: held_behind
-- What a job waits for at its limit: how many may run and do, one of them, and how many wait ahead of it.
SELECT j.limit_most, c.running, CAST(k.id AS text), (
    SELECT count(*) FROM {members} o JOIN {jobs} b ON b.n = o.n WHERE o.key = j.limit_key
        AND (~b.priority, b.run_at, b.n) < (~j.priority, j.run_at, j.n)
        AND NOT EXISTS (SELECT 1 FROM {running} x WHERE x.n = o.n))
FROM {jobs} j JOIN {limits} c ON c.key = j.limit_key JOIN {members} m ON m.key = j.limit_key
JOIN {running} r ON r.n = m.n JOIN {jobs} k ON k.n = m.n
WHERE j.id = (SELECT t.id FROM {rows: id uuid}) AND c.running >= j.limit_most
    AND (EXISTS (SELECT 1 FROM {ready} x WHERE x.n = j.n) OR EXISTS (SELECT 1 FROM {held} x WHERE x.n = j.n))
ORDER BY m.n LIMIT 3

-- name: rate_used
-- The rate limit of a job's topic and the starts within its window.
SELECT p.rate_limit, p.rate_ms, (SELECT coalesce(sum(s.count), 0) FROM {starts} s
    WHERE s.topic = p.topic AND s.at > {now} - p.rate_ms - 200)
FROM {jobs} j JOIN {topics} p ON p.topic = j.topic
WHERE p.rate_limit IS NOT NULL AND j.id = (SELECT t.id FROM {rows: id uuid})

-- name: get_records
-- The records with these ids, of any kinds.
SELECT r.kind, r.id, r.key, r.body, r.version, r.created_at, r.updated_at, r.due
FROM {rows: kind text, id text} JOIN {records} r ON r.kind = t.kind AND r.id = t.id

-- name: record_by_key
-- The one record of a kind with this key.
SELECT r.kind, r.id, r.key, r.body, r.version, r.created_at, r.updated_at, r.due
FROM {rows: kind text, key text} JOIN {records} r ON r.kind = t.kind AND r.key = t.key

-- name: oldest_records
-- The records of a kind, oldest first.
SELECT r.kind, r.id, r.key, r.body, r.version, r.created_at, r.updated_at, r.due FROM {records} r
WHERE r.kind = (SELECT t.kind FROM {rows: kind text}) ORDER BY r.n LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: due_records
-- Records of a kind that are due before a time, the earliest first.
SELECT r.kind, r.id, r.key, r.body, r.version, r.created_at, r.updated_at, r.due FROM {records} r
WHERE r.kind = (SELECT t.kind FROM {rows: kind text}) AND r.due IS NOT NULL
    AND r.due < (SELECT t.before FROM {rows: before bigint})
ORDER BY r.due LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: newest_records
-- The newest of a kind, newest first.
SELECT r.kind, r.id, r.key, r.body, r.version, r.created_at, r.updated_at, r.due FROM {records} r
WHERE r.kind = (SELECT t.kind FROM {rows: kind text}) ORDER BY r.n DESC LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: add_records
-- Create records; missing from the answer: the ones with a taken id or key.
INSERT INTO {records} (kind, id, key, body, due, version, created_at, updated_at)
SELECT t.kind, t.id, t.key, t.body, t.due, 1, {now}, {now}
FROM {rows: kind text, id text, key text, body text, due bigint}
WHERE true ON CONFLICT DO NOTHING
RETURNING kind, id, key, body, version, created_at, updated_at, due

-- name: claimed_steps
-- What the steps of these jobs have done, small results included, and the answers that came early. The items of mapped
-- steps stay where they are: there may be thousands.
SELECT s.n, s.name, s.key, s.place, s.state, s.attempt, s.ran_ms, s.until - {now},
    CASE WHEN s.result_size <= 4096 THEN {json_text: s.result} END, s.result_size, s.input_hash, s.error, s.error_type,
    CASE WHEN s.title IS NULL THEN 0 ELSE 1 END, CAST(s.child AS text), s.children_made, s.children_left, s.children_failed,
    s.item, j.template_version
FROM {rows: n bigint} {seek: jobs j ON j.n = t.n} {seek: steps s ON s.n = t.n}
WHERE s.item IS NULL OR s.key = ''
UNION ALL SELECT a.n, a.name, a.key, -1, 'answered', 0, 0, NULL, {json_text: a.result}, NULL, NULL, a.error, NULL, 0, NULL,
    NULL, NULL, NULL, NULL, NULL
FROM {rows: n bigint} {seek: answers a ON a.n = t.n}

-- name: add_steps
-- The declared steps of new jobs.
INSERT INTO {steps} (n, name, key, place, state, attempt, ran_ms, title, comes_after)
SELECT t.n, t.name, '', t.place, 'pending', 0, 0, t.title, t.comes_after
FROM {rows: n bigint, name text, place integer, title text, comes_after text} WHERE true

-- name: put_steps
-- What steps have done, each once; what is not told stays as it was.
INSERT INTO {steps} AS x (n, name, key, place, state, attempt, progress, message, started_at, ended_at, ran_ms, until, error,
    error_type, result, result_size, input_hash, title, schema, item, child)
SELECT t.n, t.name, t.key, t.place, t.state, t.attempt, t.progress, t.message, t.started_at, t.ended_at, t.ran_ms, t.until,
    t.error, t.error_type, {json: t.result}, t.result_size, t.input_hash, t.title, {json: t.schema}, t.item, t.child
FROM {rows: n bigint, name text, key text, place integer, state text, attempt integer, progress integer, message text,
    started_at bigint, ended_at bigint, ran_ms bigint, until bigint, error text, error_type text, result text,
    result_size integer, input_hash text, title text, schema text, item integer, child uuid}
WHERE true ORDER BY 1, 2, 3
{on_step_conflict}

-- name: on_step_conflict
-- A part of other queries.
ON CONFLICT (n, name, key) DO UPDATE SET state = excluded.state, attempt = excluded.attempt,
    progress = coalesce(excluded.progress, x.progress), message = coalesce(excluded.message, x.message),
    started_at = coalesce(excluded.started_at, x.started_at), ended_at = excluded.ended_at, ran_ms = x.ran_ms + excluded.ran_ms,
    until = CASE excluded.state WHEN 'waiting' THEN excluded.until ELSE x.until END, error = excluded.error, error_type = excluded.error_type,
    result = excluded.result, result_size = excluded.result_size,
    input_hash = coalesce(excluded.input_hash, x.input_hash), title = coalesce(excluded.title, x.title),
    schema = coalesce(excluded.schema, x.schema), item = coalesce(excluded.item, x.item), child = coalesce(excluded.child, x.child)

-- name: put_step_results
-- Results that are kept apart.
INSERT INTO {step_results} (n, name, key, result)
SELECT t.n, t.name, t.key, {json: t.result} FROM {rows: n bigint, name text, key text, result text} WHERE true ORDER BY 1, 2, 3
ON CONFLICT (n, name, key) DO UPDATE SET result = excluded.result

-- name: interrupt_steps
-- Steps that were under way when their job's attempt ended, or that will not run any more.
-- All rows say the same, except for which jobs.
UPDATE {steps} SET state = (SELECT max(t.state) FROM {rows: state text}), error = (SELECT max(t.error) FROM {rows: error text}),
    error_type = (SELECT max(t.error_type) FROM {rows: error_type text}),
    ended_at = (SELECT max(t.ended_at) FROM {rows: ended_at bigint})
WHERE n {among: n bigint} AND state = (SELECT max(t.was) FROM {rows: was text})

-- name: restart_clocks
-- A new attempt has all of its flow's time.
UPDATE {steps} SET ran_ms = 0 WHERE n {among: n bigint} AND ran_ms > 0

-- name: flag_steps
-- Jobs that have steps from now on.
UPDATE {jobs} SET flags = flags | 32 WHERE n {among: n bigint} AND (flags & 32) = 0

-- name: flag_ready
-- The same where they are ready: a claim looks only there.
UPDATE {ready} SET flags = flags | 32 WHERE n {among: n bigint} AND (flags & 32) = 0

-- name: started_in_time
-- Jobs that no longer need their deadline.
UPDATE {jobs} SET flags = flags & ~4 WHERE n {among: n bigint}

-- name: find_steps
-- The steps of ended jobs, without their results.
SELECT s.n, s.name, s.key, s.place, s.state, s.attempt, CASE WHEN s.title IS NULL THEN 0 ELSE 1 END, s.comes_after,
    CAST(s.child AS text), s.children_left
FROM {rows: n bigint} {seek: steps s ON s.n = t.n}
ORDER BY s.n, s.place, s.name, s.key

-- name: lock_steps
-- The state of steps that are to be answered.
SELECT s.n, s.name, s.key, s.state, s.place, s.attempt, s.schema IS NOT NULL OR s.until IS NOT NULL,
    CASE WHEN s.error_type IS NULL AND s.until <= s.ended_at THEN 1 ELSE 0 END,
    CASE WHEN s.child IS NULL AND s.children_made IS NULL THEN 0 ELSE 1 END
FROM {rows: n bigint, name text, key text} {seek: steps s ON s.n = t.n AND s.name = t.name AND s.key = t.key}

-- name: count_names
-- How many names the steps and the early answers of a job have, with one more.
SELECT count(*) FROM (
    SELECT s.name FROM {rows: n bigint} {seek: steps s ON s.n = t.n}
    UNION SELECT a.name FROM {rows: n bigint} {seek: answers a ON a.n = t.n}
    UNION SELECT t.name FROM {rows: name text}) AS names

-- name: add_answers
-- Answers that come early; what is missing from the answer was answered before.
INSERT INTO {answers} (n, name, key, created_at, answered_by, error, result)
SELECT t.n, t.name, t.key, t.created_at, t.answered_by, t.error, {json: t.result}
FROM {rows: n bigint, name text, key text, created_at bigint, answered_by text, error text, result text}
WHERE true ORDER BY 1, 2, 3
ON CONFLICT (n, name, key) DO NOTHING RETURNING n, name, key

-- name: kept_answers
-- Which of these steps have an answer that was not used yet.
SELECT a.n, a.name, a.key FROM {rows: n bigint, name text, key text}
{seek: answers a ON a.n = t.n AND a.name = t.name AND a.key = t.key}

-- name: early_answers
-- Answers that came early to steps that wait now.
SELECT a.n, a.name, a.key, s.place, s.attempt, {json_text: a.result}, a.error, a.answered_by
FROM {rows: n bigint} {seek: answers a ON a.n = t.n}
{seek: steps s ON s.n = a.n AND s.name = a.name AND s.key = a.key AND s.state = 'waiting'
    AND s.child IS NULL AND s.children_made IS NULL}

-- name: drop_answers
-- Answers that were used. With IS TRUE the second condition is a filter with a hash table, never a join.
DELETE FROM {answers} WHERE n {among: n bigint}
    AND (n, name, key) IN (SELECT t.n, t.name, t.key FROM {rows: n bigint, name text, key text}) IS TRUE

-- name: reset_steps
-- Declared steps that run again.
UPDATE {steps} SET state = 'pending', attempt = 0, progress = NULL, message = NULL, started_at = NULL, ended_at = NULL,
    ran_ms = 0, until = NULL, error = NULL, error_type = NULL, result = NULL, result_size = NULL, input_hash = NULL
WHERE n {among: n bigint} AND title IS NOT NULL
    AND (n, name, key) IN (SELECT t.n, t.name, t.key FROM {rows: n bigint, name text, key text}) IS TRUE

-- name: forget_steps
-- Steps of a handler that run again: it makes them anew.
DELETE FROM {steps} WHERE n {among: n bigint} AND title IS NULL
    AND (n, name, key) IN (SELECT t.n, t.name, t.key FROM {rows: n bigint, name text, key text}) IS TRUE

-- name: forget_step_results
DELETE FROM {step_results} WHERE n {among: n bigint}
    AND (n, name, key) IN (SELECT t.n, t.name, t.key FROM {rows: n bigint, name text, key text}) IS TRUE

-- name: job_payloads
SELECT j.n, {json_text: j.payload} FROM {rows: n bigint} {seek: jobs j ON j.n = t.n}

-- name: drop_steps
DELETE FROM {steps} WHERE n {among: n bigint}

-- name: drop_children
DELETE FROM {children} WHERE n {among: n bigint}

-- name: drop_step_results
DELETE FROM {step_results} WHERE n {among: n bigint}

-- name: drop_all_answers
DELETE FROM {answers} WHERE n {among: n bigint}

-- name: step_page
-- The runs of one step, with results up to a size. In the place of a step that waits for many children they are listed.
-- A page is chosen first, so that only its results are read: 10,000 runs may have 600 MB of them.
SELECT x.name, x.key, s.title, x.state, coalesce(s.attempt, 1), s.progress, s.message, x.started_at,
    coalesce(s.ended_at, c.ended_at), coalesce(s.error, c.error), coalesce(s.result_size, c.result_size),
    CASE WHEN coalesce(s.result_size, c.result_size) <= x.most
        THEN coalesce({json_text: s.result}, {json_text: w.result}, {json_text: c.result}) END,
    {json_text: s.schema}, s.until, CAST(coalesce(s.child, c.child) AS text)
FROM (
    SELECT y.*, CASE WHEN y.failing = 0 THEN 0 ELSE CASE y.state WHEN 'failed' THEN 1 WHEN 'waiting' THEN 2 WHEN 'processing' THEN 3
        WHEN 'pending' THEN 4 ELSE 5 END END AS urgency
    FROM (
        SELECT s.n, s.name, s.key, s.state, s.started_at, 0 AS is_child, coalesce(s.item, 0) AS place, t.most, t.failing
        FROM {rows: id uuid, name text, most bigint, failing bigint} {seek: jobs j ON j.id = t.id}
        {seek: steps s ON s.n = j.n AND s.name = t.name AND s.children_made IS NULL AND (s.item IS NULL OR s.key <> '')}
        UNION ALL
        SELECT c.n, c.name, c.key, c.state, c.started_at, 1, c.place, t.most, t.failing
        FROM {rows: id uuid, name text, most bigint, failing bigint} {seek: jobs j ON j.id = t.id}
        {seek: children c ON c.n = j.n AND c.name = t.name}) y
    ORDER BY urgency, y.place, y.started_at, y.key
    LIMIT (SELECT max(t.top) FROM {rows: top bigint}) OFFSET (SELECT max(t.skip) FROM {rows: skip bigint})) x
{seek_any: steps s ON s.n = x.n AND s.name = x.name AND s.key = x.key AND x.is_child = 0}
{seek_any: step_results w ON w.n = s.n AND w.name = s.name AND w.key = s.key}
{seek_any: children c ON c.n = x.n AND c.name = x.name AND c.key = x.key AND x.is_child = 1}
ORDER BY x.urgency, x.place, x.started_at, x.key

-- name: count_step
-- How many runs a step has, and whether it is there at all: a mapped step may have no item yet.
SELECT (SELECT count(*) FROM {rows: id uuid, name text} {seek: jobs j ON j.id = t.id}
        {seek: steps s ON s.n = j.n AND s.name = t.name AND s.children_made IS NULL AND (s.item IS NULL OR s.key <> '')})
    + (SELECT count(*) FROM {rows: id uuid, name text} {seek: jobs j ON j.id = t.id} {seek: children c ON c.n = j.n AND c.name = t.name}),
    (SELECT count(*) FROM {rows: id uuid, name text} {seek: jobs j ON j.id = t.id} {seek: steps s ON s.n = j.n AND s.name = t.name})

-- name: step_results
-- The results of runs of steps, however large.
SELECT s.name, s.key, coalesce({json_text: s.result}, {json_text: w.result})
FROM {rows: n bigint, name text, key text} {seek: steps s ON s.n = t.n AND s.name = t.name AND s.key = t.key}
{seek_any: step_results w ON w.n = s.n AND w.name = s.name AND w.key = s.key}

-- name: step_items
-- What the items of a mapped step have done, without their results.
SELECT s.key, s.state, s.attempt FROM {rows: n bigint, name text}
{seek: steps s ON s.n = t.n AND s.name = t.name AND s.item IS NOT NULL AND s.key <> ''}

-- name: item_results
-- The results of some of the items of a mapped step, in the order of its list.
SELECT s.item, coalesce({json_text: s.result}, {json_text: w.result})
FROM {rows: n bigint, name text, first integer, last integer}
{seek: steps s ON s.n = t.n AND s.name = t.name AND s.item IS NOT NULL AND s.item >= t.first AND s.item < t.last AND s.key <> '' AND s.state = 'completed'}
{seek_any: step_results w ON w.n = s.n AND w.name = s.name AND w.key = s.key}
ORDER BY s.item

-- name: last_numbers
-- The last numbers of jobs and events.
SELECT (SELECT max(n) FROM {jobs}), (SELECT max(id) FROM {events})

-- name: jobs_after
-- Jobs made after a number.
SELECT j.n, j.created_at FROM {jobs} j WHERE j.n > (SELECT t.last FROM {rows: last bigint})
ORDER BY j.n LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: events_after
-- Lines of history after a number, of any job.
SELECT e.id, e.n, e.type, e.to_status, {json_text: e.metadata}, e.created_at FROM {events} e
WHERE e.id > (SELECT t.last FROM {rows: last bigint}) ORDER BY e.id LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: started_attempts
-- Running attempts with their progress.
SELECT r.n, r.token, r.attempt, r.started_at, r.progress, r.message FROM {running} r WHERE r.started_at IS NOT NULL

-- name: cancelled_before_start
-- Running jobs that were asked to stop before their start was stored.
SELECT r.n FROM {running} r WHERE r.cancel_at IS NOT NULL AND r.started_at IS NULL

-- name: page_by_number
-- The jobs with these numbers.
SELECT t.n, 0 AS before FROM {rows: n bigint}

-- name: departing
-- The fields of a deleted job that its last event reports.
SELECT CAST(j.id AS text), j.topic, j.scope, j.scope_id, j.created_by FROM {rows: n bigint} {seek: jobs j ON j.n = t.n}
ORDER BY j.n

-- name: drop_old_news
-- Lines about many jobs are only for listeners.
DELETE FROM {events} WHERE n = 0 AND created_at <= {now} - 300000
