-- The reaper looks for leases that ran out.
CREATE INDEX treadle_leases_until ON treadle_leases (until);

-- Names of workers, so that an outcome can say who produced it in a few bytes.
CREATE TABLE treadle_workers (
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    -- When its last lease ended; no outcome of it is younger.
    seen_at INTEGER NOT NULL
);
ALTER TABLE treadle_leases ADD COLUMN worker_id INTEGER;
ALTER TABLE treadle_notes ADD COLUMN worker INTEGER;
ALTER TABLE treadle_outcomes ADD COLUMN worker INTEGER;
ALTER TABLE treadle_outcomes ADD COLUMN error_group TEXT;
CREATE INDEX treadle_outcomes_error_group ON treadle_outcomes (error_group, n) WHERE error_group IS NOT NULL;

-- How long jobs waited and ran, per minute, in buckets of powers of two.
CREATE TABLE treadle_tally_hist (
    minute INTEGER NOT NULL,
    writer INTEGER NOT NULL,
    topic  TEXT NOT NULL,
    kind   TEXT NOT NULL CHECK (kind IN ('wait', 'run')),
    bucket INTEGER NOT NULL CHECK (bucket BETWEEN 0 AND 23),
    count  INTEGER NOT NULL,
    PRIMARY KEY (minute, writer, topic, kind, bucket)
) WITHOUT ROWID;

-- Records that ask to be looked at when their time comes.
ALTER TABLE treadle_records ADD COLUMN due INTEGER;
CREATE INDEX treadle_records_due ON treadle_records (kind, due) WHERE due IS NOT NULL;

-- Templates are records: one per topic with its current definition, and one for each definition that was ever saved, so
-- that one seen before keeps its number.
INSERT INTO treadle_records (kind, id, key, body, version, created_at, updated_at)
SELECT 'template', topic, topic, json_object('version', version, 'definition', json(definition), 'versions',
    json_array(json_object('version', version, 'created_ms', updated_at))), 1, updated_at, updated_at
FROM treadle_templates WHERE version > 0 ORDER BY topic;
INSERT INTO treadle_records (kind, id, key, body, version, created_at, updated_at)
SELECT 'template_version', topic || '/' || version, topic || '/' || version, definition, 1, updated_at, updated_at
FROM treadle_templates WHERE version > 0 ORDER BY topic;

-- A lane is topic x capability x worker type. The priority is the job's own, so that however many priorities are used,
-- a claim looks at as many lanes as its worker serves.
ALTER TABLE treadle_lanes RENAME TO treadle_lanes_before;
CREATE TABLE treadle_lanes (
    lane        INTEGER PRIMARY KEY AUTOINCREMENT,
    topic       TEXT NOT NULL,
    capability  TEXT NOT NULL,
    worker_type TEXT NOT NULL DEFAULT '',
    UNIQUE (topic, capability, worker_type)
);
INSERT INTO treadle_lanes (lane, topic, capability)
SELECT min(lane), topic, capability FROM treadle_lanes_before GROUP BY topic, capability;

-- A job keeps the concurrency limit that it was enqueued with.
ALTER TABLE treadle_jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 50;
ALTER TABLE treadle_jobs RENAME COLUMN gate TO limit_key;
ALTER TABLE treadle_jobs ADD COLUMN limit_policy TEXT;
ALTER TABLE treadle_jobs ADD COLUMN limit_most INTEGER;
UPDATE treadle_jobs SET priority = b.priority, lane = l.lane
FROM treadle_lanes_before b JOIN treadle_lanes l ON l.topic = b.topic AND l.capability = b.capability
WHERE b.lane = treadle_jobs.lane AND (b.priority <> 50 OR l.lane <> b.lane);
UPDATE treadle_jobs SET limit_policy = 'queue_same_scope', limit_most = coalesce(
    (SELECT g.max FROM treadle_gates g WHERE g.gate = limit_key),
    (SELECT json_extract(t.definition, '$.concurrencyLimit') FROM treadle_templates t WHERE t.topic = treadle_jobs.topic),
    1)
WHERE limit_key IS NOT NULL;
UPDATE treadle_jobs SET limit_policy = json_extract(t.definition, '$.concurrencyPolicy') FROM treadle_templates t
WHERE limit_key IS NOT NULL AND t.topic = treadle_jobs.topic
    AND json_extract(t.definition, '$.concurrencyPolicy') IN ('reject_same_scope', 'replace_same_scope');
DROP TABLE treadle_templates;

-- rank = ~priority: the most urgent first. Jobs that waited at a concurrency limit wait in `ready` for the next claim.
ALTER TABLE treadle_ready RENAME TO treadle_ready_before;
CREATE TABLE treadle_ready (
    lane         INTEGER NOT NULL,
    rank         INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    n            INTEGER NOT NULL UNIQUE,
    attempt      INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    flags        INTEGER NOT NULL,
    PRIMARY KEY (lane, rank, run_at, n)
) WITHOUT ROWID;
INSERT INTO treadle_ready (lane, rank, run_at, n, attempt, max_attempts, flags)
SELECT j.lane, ~j.priority, j.run_at, j.n, p.attempt, j.max_attempts, j.flags
FROM (SELECT n, attempt FROM treadle_ready_before UNION ALL SELECT n, attempt FROM treadle_held) p
CROSS JOIN treadle_jobs j WHERE j.n = p.n ORDER BY 1, 2, 3, 4;
UPDATE treadle_later SET lane = (SELECT j.lane FROM treadle_jobs j WHERE j.n = treadle_later.n);
DROP TABLE treadle_ready_before;
DROP TABLE treadle_lanes_before;
DROP TABLE treadle_held;
DROP TABLE treadle_gates;

-- Jobs that a claim found at their concurrency limit.
CREATE TABLE treadle_held (
    n       INTEGER PRIMARY KEY,
    lane    INTEGER NOT NULL,
    key     TEXT NOT NULL,
    rank    INTEGER NOT NULL,
    run_at  INTEGER NOT NULL,
    most    INTEGER NOT NULL,
    attempt INTEGER NOT NULL
);
CREATE INDEX treadle_held_next ON treadle_held (key, lane, rank, run_at, n);

-- How many jobs of a key are running; nothing but a count, so a row that is missing means none.
CREATE TABLE treadle_limits (
    key     TEXT PRIMARY KEY,
    running INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO treadle_limits (key, running)
SELECT j.limit_key, count(*) FROM treadle_running r CROSS JOIN treadle_jobs j
WHERE j.n = r.n AND j.limit_key IS NOT NULL GROUP BY 1;

-- Keys with held jobs that need a look, because one of their jobs left `ready` without having run.
CREATE TABLE treadle_wakes (
    id  INTEGER PRIMARY KEY,
    key TEXT NOT NULL
);
ALTER TABLE treadle_members RENAME COLUMN gate TO key;

-- Running jobs that are replaced by one in a user's transaction: asked to stop when that has committed.
CREATE TABLE treadle_replaced (
    id     INTEGER PRIMARY KEY,
    job    TEXT NOT NULL,
    reason TEXT NOT NULL
);

-- When a pending job was last changed by hand.
ALTER TABLE treadle_jobs ADD COLUMN changed_at INTEGER;

-- Jobs that wait for an answer: held by nobody, until a wait's time is over (null: for as long as it takes).
CREATE TABLE treadle_parked (
    n       INTEGER PRIMARY KEY,
    lane    INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    until   INTEGER
);
CREATE INDEX treadle_parked_until ON treadle_parked (until) WHERE until IS NOT NULL;

-- From when the grace of a cancel counts, if a step has to finish first.
ALTER TABLE treadle_running ADD COLUMN grace_from INTEGER;

-- What the steps of a job have done. A step is its name and key; `place` is where it was declared or first seen.
CREATE TABLE treadle_steps (
    n           INTEGER NOT NULL,
    name        TEXT NOT NULL,
    key         TEXT NOT NULL,
    place       INTEGER NOT NULL,
    state       TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    progress    INTEGER,
    started_at  INTEGER,
    ended_at    INTEGER,
    ran_ms      INTEGER NOT NULL,
    until       INTEGER,
    result_size INTEGER,
    input_hash  TEXT,
    error_type  TEXT,
    title       TEXT,
    message     TEXT,
    error       TEXT,
    schema      TEXT,
    result      TEXT,
    PRIMARY KEY (n, name, key)
) WITHOUT ROWID;

-- Results that are too large to travel with their job.
CREATE TABLE treadle_step_results (
    n      INTEGER NOT NULL,
    name   TEXT NOT NULL,
    key    TEXT NOT NULL,
    result TEXT NOT NULL,
    PRIMARY KEY (n, name, key)
);

-- Answers that came before their step waited for one.
CREATE TABLE treadle_answers (
    n          INTEGER NOT NULL,
    name       TEXT NOT NULL,
    key        TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    answered_by TEXT,
    error      TEXT,
    result     TEXT,
    PRIMARY KEY (n, name, key)
);

-- For people who read SQL. It stays at the end of this file: it depends on the tables above.
CREATE VIEW treadle_job_list AS
SELECT j.id, j.topic,
    CASE WHEN o.n IS NOT NULL THEN o.status WHEN r.cancel_at IS NOT NULL THEN 'cancelling'
        WHEN r.n IS NOT NULL THEN 'processing' WHEN k.n IS NOT NULL THEN 'waiting' ELSE 'pending' END AS status,
    coalesce(o.attempt, r.attempt, y.attempt, l.attempt, h.attempt, k.attempt) AS attempt,
    j.max_attempts,
    strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', j.run_at / 1000.0, 'unixepoch') AS run_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(o.claimed_at, r.claimed_at) / 1000.0, 'unixepoch') AS claimed_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(o.started_at, r.started_at) / 1000.0, 'unixepoch') AS started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', o.ended_at / 1000.0, 'unixepoch') AS ended_at,
    coalesce(o.error, f.error) AS error
FROM treadle_jobs j
LEFT JOIN treadle_outcomes o ON o.n = j.n
LEFT JOIN treadle_running r ON r.n = j.n
LEFT JOIN treadle_ready y ON y.n = j.n
LEFT JOIN treadle_later l ON l.n = j.n
LEFT JOIN treadle_held h ON h.n = j.n
LEFT JOIN treadle_parked k ON k.n = j.n
LEFT JOIN treadle_notes f ON f.n = j.n;
