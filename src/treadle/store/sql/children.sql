-- Statements about the children that steps wait for; see common.sql.

-- name: job_numbers
-- The numbers of jobs.
SELECT CAST(j.id AS text), j.n FROM {rows: id uuid} {seek: jobs j ON j.id = t.id}

-- name: lock_child_waits
-- Steps that may wait for a child, locked in this order.
SELECT s.n, s.name, s.key, CAST(s.child AS text), s.place, s.attempt, s.state, s.error, s.error_type
FROM {rows: n bigint, name text, key text} {seek_lock: steps s ON s.n = t.n AND s.name = t.name AND s.key = t.key}

-- name: lock_families
-- Steps that wait for many children, locked in this order.
SELECT s.n, s.name, s.state, s.children_made, s.children_left, s.children_failed
FROM {rows: n bigint, name text} {seek_lock: steps s ON s.n = t.n AND s.name = t.name AND s.key = ''}
WHERE s.children_made IS NOT NULL

-- name: end_children
-- Children that have ended, of those that are waited for.
INSERT INTO {children} (n, name, key, place, child, state, ended_at, result_size, error, result)
SELECT c.n, c.name, c.key, c.place, c.child, t.state, t.ended_at, t.result_size, t.error, {json: t.result}
FROM {rows: n bigint, name text, key text, child uuid, state text, ended_at bigint, result_size integer, error text, result text}
{seek: children c ON c.n = t.n AND c.name = t.name AND c.key = t.key AND c.child = t.child AND c.state = 'waiting'}
WHERE true ORDER BY 1, 2, 3
ON CONFLICT (n, name, key) DO UPDATE SET state = excluded.state, ended_at = excluded.ended_at,
    result_size = excluded.result_size, error = excluded.error, result = excluded.result
RETURNING n, name, state

-- name: count_families
-- How many children were made, have to end and have failed, as changes of what is stored.
INSERT INTO {steps} AS x (n, name, key, place, state, attempt, ran_ms, children_total, children_made, children_left, children_failed)
SELECT s.n, s.name, s.key, s.place, s.state, s.attempt, 0, coalesce(t.total, s.children_total), t.made, t.ended, t.failed
FROM {rows: n bigint, name text, total integer, made integer, ended integer, failed integer}
{seek: steps s ON s.n = t.n AND s.name = t.name AND s.key = ''}
WHERE true ORDER BY 1, 2
ON CONFLICT (n, name, key) DO UPDATE SET children_total = excluded.children_total,
    children_made = coalesce(x.children_made, 0) + excluded.children_made,
    children_left = coalesce(x.children_left, 0) - excluded.children_left,
    children_failed = coalesce(x.children_failed, 0) + excluded.children_failed
RETURNING n, name, children_made, children_left, children_failed

-- name: restart_families
-- Steps whose children are looked at anew. Their counts stay what the rows say.
UPDATE {steps} SET children_made = 0, children_failed = 0, children_left = (SELECT count(*) FROM {children} c
    WHERE c.n = {steps}.n AND c.name = {steps}.name AND c.state = 'waiting')
WHERE n {among: n bigint} AND name {among: name text} AND key = ''

-- name: reopen_children
-- The ones that did not complete, until they are looked at.
UPDATE {children} SET state = 'pending' WHERE n {among: n bigint} AND name {among: name text} AND state = 'failed'

-- name: find_children
-- The children that were made for these runs of a step.
SELECT c.key, c.state, CAST(c.child AS text), c.place
FROM {rows: n bigint, name text, key text} {seek: children c ON c.n = t.n AND c.name = t.name AND c.key = t.key}

-- name: put_children
-- Children as they are from now on.
INSERT INTO {children} (n, name, key, place, child, state, started_at, ended_at, result_size, error, result)
SELECT t.n, t.name, t.key, t.place, t.child, t.state, t.started_at, t.ended_at, t.result_size, t.error, {json: t.result}
FROM {rows: n bigint, name text, key text, place integer, child uuid, state text, started_at bigint, ended_at bigint,
    result_size integer, error text, result text}
WHERE true ORDER BY 1, 2, 3
ON CONFLICT (n, name, key) DO UPDATE SET place = excluded.place, child = excluded.child, state = excluded.state,
    started_at = excluded.started_at, ended_at = excluded.ended_at, result_size = excluded.result_size,
    error = excluded.error, result = excluded.result

-- name: child_states
-- How these jobs are: no status means that they live.
SELECT CAST(j.id AS text), j.topic, o.status, {json_text: o.result}, o.error, o.cancel_reason
FROM {rows: id uuid} {seek: jobs j ON j.id = t.id} {seek_any: outcomes o ON o.n = j.n}

-- name: last_generations
-- How often these runs of steps had a child before.
SELECT t.key, (SELECT max(j.parent_generation) FROM {jobs} j
    WHERE j.parent_id = t.parent AND j.parent_step = t.name AND j.parent_key = t.key)
FROM {rows: parent text, name text, key text}

-- name: look_again
-- Steps that their job begins to wait for, locked: a child may have ended since they were read.
SELECT s.n, s.state, s.children_left
FROM {rows: n bigint, name text, key text} {seek_lock: steps s ON s.n = t.n AND s.name = t.name AND s.key = t.key}

-- name: cancel_children
-- Children that ended jobs waited for, to be cancelled after this transaction has committed.
INSERT INTO {replaced} (job, reason)
SELECT x.child, t.reason FROM {rows: n bigint, reason text}
JOIN (SELECT s.n, s.child FROM {steps} s WHERE s.n {among: n bigint} AND s.state = 'waiting' AND s.child IS NOT NULL
    UNION ALL SELECT c.n, c.child FROM {children} c WHERE c.n {among: n bigint} AND c.state = 'waiting') x ON x.n = t.n

-- name: awaiting
-- Which of these jobs have steps that wait for children.
SELECT DISTINCT s.n FROM {rows: n bigint}
{seek: steps s ON s.n = t.n AND s.state = 'waiting' AND (s.child IS NOT NULL OR s.children_left > 0)}

-- name: forget_children
-- Children of steps that run again.
DELETE FROM {children} WHERE n {among: n bigint} AND (n, name) IN (SELECT t.n, t.name FROM {rows: n bigint, name text}) IS TRUE

-- name: detach_steps
-- Steps that run again, and look at the child that they had.
UPDATE {steps} SET state = 'pending', progress = NULL, ended_at = NULL, error = NULL, error_type = NULL
WHERE n {among: n bigint} AND (n, name, key) IN (SELECT t.n, t.name, t.key FROM {rows: n bigint, name text, key text}) IS TRUE

-- name: child_results
-- The children of a step in the order of its list, as they ended.
SELECT c.key, c.place, c.state, {json_text: c.result}, c.error, CAST(c.child AS text) FROM {children} c
WHERE c.n = (SELECT t.n FROM {rows: n bigint}) AND c.name = (SELECT t.name FROM {rows: name text})
    AND c.place > (SELECT t.place FROM {rows: place bigint})
ORDER BY c.place, c.key LIMIT (SELECT t.top FROM {rows: top bigint})
