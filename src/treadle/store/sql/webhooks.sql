-- Webhooks, in both databases. The notation is that of common.sql.

-- name: add_deliveries
-- What is to be sent, written with its event.
INSERT INTO {deliveries} (n, endpoint, webhook_id, event, url, status, created_at, tries, body)
SELECT t.n, t.endpoint, t.webhook_id, t.event, t.url, 'pending', t.created_at, '[]', t.body
FROM {rows: n bigint, endpoint text, webhook_id text, event text, url text, created_at bigint, body text}
WHERE true RETURNING id, webhook_id

-- name: put_outbox
-- Deliveries in turn to be sent, or to be read by their endpoint.
INSERT INTO {outbox} AS o (id, n, receiver, due_at, token, tried)
SELECT t.id, t.n, t.receiver, t.due_at, 0, 0 FROM {rows: id bigint, n bigint, receiver text, due_at bigint} WHERE true ORDER BY 1
ON CONFLICT (id) DO UPDATE SET tried = 0, number = NULL,
    due_at = CASE WHEN o.holder IS NULL THEN excluded.due_at ELSE o.due_at END

-- name: webhook_due
-- Jobs with a delivery that is not made yet. The row is written even if it says so already: its lock keeps a sender,
-- who can't see this delivery before the commit, from saying that all were delivered.
UPDATE {jobs} SET webhook_sent = 0 WHERE n {among: n bigint}

-- name: webhook_done
-- Whether all that was due for the newest event was delivered. A job that a user's transaction has locked gets another
-- event with it.
UPDATE {jobs} SET webhook_sent = CASE WHEN EXISTS (SELECT 1 FROM {deliveries} d WHERE d.n = {jobs}.n
        AND d.status <> 'delivered'
        AND d.created_at = (SELECT max(x.created_at) FROM {deliveries} x WHERE x.n = {jobs}.n)) THEN 0 ELSE 1 END
WHERE n {any_of} SELECT j.n FROM {jobs} j WHERE j.n {among: n bigint} ORDER BY j.n {skip_locked} {end_any}

-- name: receivers
-- Whose turn it is, or when (null: it reads itself): from receiver to receiver by the index, with how many deliveries senders have.
WITH RECURSIVE turn (receiver) AS (
    SELECT min(o.receiver) FROM {outbox} o
    UNION ALL SELECT (SELECT min(o.receiver) FROM {outbox} o WHERE o.receiver > u.receiver) FROM turn u
    WHERE u.receiver IS NOT NULL)
SELECT x.receiver, x.due_at - {now}, x.held FROM (
    SELECT u.receiver, (SELECT min(o.due_at) FROM {outbox} o WHERE o.receiver = u.receiver) AS due_at,
        (SELECT count(*) FROM {outbox} o WHERE o.receiver = u.receiver AND o.holder IS NOT NULL AND o.due_at > {now}) AS held
    FROM turn u WHERE u.receiver IS NOT NULL) x
ORDER BY x.due_at, x.receiver

-- name: take_deliveries
-- The next ones of a receiver.
UPDATE {outbox} SET holder = (SELECT t.holder FROM {rows: holder text}), token = token + 1,
    due_at = {now} + (SELECT t.ms FROM {rows: ms bigint})
WHERE id {any_of} SELECT o.id FROM {outbox} o WHERE o.receiver = (SELECT t.receiver FROM {rows: receiver text})
    AND o.due_at <= {now} ORDER BY o.due_at, o.id LIMIT (SELECT t.top FROM {rows: top bigint}) {skip_locked} {end_any}
RETURNING id, token, tried

-- name: deliveries_to_send
SELECT d.id, d.webhook_id, d.endpoint, CAST(j.id AS text), j.topic, d.event, d.url, d.body, d.created_at
FROM {rows: id bigint} {seek: deliveries d ON d.id = t.id} {seek_any: jobs j ON j.n = d.n}

-- name: take_undeliverable
-- All that is to be sent to receivers that are gone.
DELETE FROM {outbox} WHERE id {any_of} SELECT o.id FROM {outbox} o WHERE o.receiver {among: receiver text}
    ORDER BY o.id LIMIT 1000 {skip_locked} {end_any}
RETURNING id, n

-- name: lock_deliveries
-- Their tries so far.
SELECT d.id, d.n, d.tries FROM {deliveries} d WHERE d.id {among: id bigint} ORDER BY d.id {for_update}

-- name: held_deliveries
-- Who has them.
SELECT o.id, o.token FROM {outbox} o WHERE o.id {among: id bigint} ORDER BY o.id {for_update}

-- name: drop_from_outbox
-- They are delivered or given up.
DELETE FROM {outbox} WHERE id {among: id bigint}

-- name: give_up_deliveries
UPDATE {deliveries} SET status = 'failed', finished_at = {now} WHERE id {among: id bigint} AND status = 'pending'

-- name: lock_records
-- Each of these ids of each of these kinds, locked, so that two senders change them one after the other.
SELECT r.kind, r.id, r.key, r.body, r.version, r.created_at, r.updated_at, r.due FROM {records} r
WHERE r.kind {among: kind text} AND r.id {among: id text} ORDER BY r.kind, r.id {for_update}

-- name: delivery_page
-- Deliveries, newest first.
SELECT d.id, d.webhook_id, d.endpoint, CAST(j.id AS text), j.topic, d.event, d.url, d.status, d.created_at, d.finished_at,
    o.due_at, d.tries, NULL
FROM (SELECT c.* FROM {deliveries} c, {rows: endpoint text, status text, before bigint, since bigint}
    WHERE c.endpoint = t.endpoint AND c.id < t.before AND c.created_at >= t.since
    ORDER BY c.id DESC LIMIT (SELECT t.top FROM {rows: top bigint})) d
LEFT JOIN {jobs} j ON j.n = d.n LEFT JOIN {outbox} o ON o.id = d.id ORDER BY d.id DESC

-- name: delivery_page_by_status
-- The same of one status.
SELECT d.id, d.webhook_id, d.endpoint, CAST(j.id AS text), j.topic, d.event, d.url, d.status, d.created_at, d.finished_at,
    o.due_at, d.tries, NULL
FROM (SELECT c.* FROM {deliveries} c, {rows: endpoint text, status text, before bigint, since bigint}
    WHERE c.endpoint = t.endpoint AND c.id < t.before AND c.created_at >= t.since AND c.status = t.status
    ORDER BY c.id DESC LIMIT (SELECT t.top FROM {rows: top bigint})) d
LEFT JOIN {jobs} j ON j.n = d.n LEFT JOIN {outbox} o ON o.id = d.id ORDER BY d.id DESC

-- name: job_deliveries
-- Those of a job, newest first.
SELECT d.id, d.webhook_id, d.endpoint, CAST(d.job AS text), d.topic, d.event, d.url, d.status, d.created_at, d.finished_at,
    o.due_at, d.tries, NULL
FROM (SELECT c.*, j.id AS job, j.topic FROM {rows: id uuid, endpoint text, status text, before bigint} {seek: jobs j ON j.id = t.id}
    {seek: deliveries c ON c.n = j.n AND c.id < t.before AND c.status = coalesce(t.status, c.status)
        AND (t.endpoint IS NULL OR c.endpoint = t.endpoint)}
    ORDER BY c.id DESC LIMIT (SELECT t.top FROM {rows: top bigint})) d
LEFT JOIN {outbox} o ON o.id = d.id ORDER BY d.id DESC

-- name: one_delivery
SELECT d.id, d.webhook_id, d.endpoint, CAST(j.id AS text), j.topic, d.event, d.url, d.status, d.created_at, d.finished_at,
    o.due_at, d.tries, d.body
FROM {rows: id bigint} {seek: deliveries d ON d.id = t.id} {seek_any: jobs j ON j.n = d.n} {seek_any: outbox o ON o.id = d.id}

-- name: reopen_deliveries
-- They are to be delivered once more.
UPDATE {deliveries} SET status = 'pending', finished_at = NULL, number = NULL WHERE id {among: id bigint}
RETURNING id, n, endpoint, url, event

-- name: unread_events
-- The events that an endpoint has not read yet.
SELECT o.id FROM {outbox} o WHERE o.receiver = (SELECT t.receiver FROM {rows: receiver text}) AND o.due_at IS NULL
    AND o.number IS NULL ORDER BY o.id LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: acknowledge_events
-- What was read up to a number.
DELETE FROM {outbox} WHERE receiver = (SELECT t.receiver FROM {rows: receiver text}) AND due_at IS NULL
    AND number <= (SELECT t.number FROM {rows: number bigint})
RETURNING id, n

-- name: deliver_events
UPDATE {deliveries} SET status = 'delivered', finished_at = {now} WHERE id {among: id bigint}

-- name: read_events
-- An endpoint's events after a number.
SELECT d.number, d.webhook_id, d.body FROM {deliveries} d WHERE d.endpoint = (SELECT t.endpoint FROM {rows: endpoint text})
    AND d.number > (SELECT t.number FROM {rows: number bigint}) ORDER BY d.number LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: drop_deliveries
DELETE FROM {deliveries} WHERE n {among: n bigint}

-- name: drop_outbox
DELETE FROM {outbox} WHERE n {among: n bigint}

-- name: drop_old_tests
-- Tests belong to no job, so no retention deletes them.
DELETE FROM {deliveries} WHERE n = 0 AND created_at <= {now} - 604800000
    AND NOT EXISTS (SELECT 1 FROM {outbox} o WHERE o.id = {deliveries}.id)
