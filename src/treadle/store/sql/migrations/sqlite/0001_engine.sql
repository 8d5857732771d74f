-- Wide rows are written once; narrow rows move from place to place. A job is in exactly one of
-- ready, later, held, running and outcomes at any commit: the place is its status.
-- All times are milliseconds since the epoch by the clock of this machine.

-- One row: the last token that was handed out.
CREATE TABLE treadle_token (value INTEGER NOT NULL);
INSERT INTO treadle_token VALUES (0);

CREATE TABLE treadle_topics (
    topic        TEXT PRIMARY KEY,
    paused_until INTEGER,
    rate_limit   INTEGER,
    rate_ms      INTEGER
) WITHOUT ROWID;

-- topic x capability x priority: what the claim walks through, highest priority first.
CREATE TABLE treadle_lanes (
    lane       INTEGER PRIMARY KEY AUTOINCREMENT,
    topic      TEXT NOT NULL,
    capability TEXT NOT NULL,
    priority   INTEGER NOT NULL,
    UNIQUE (topic, capability, priority)
);

-- Written at enqueue. Only lane, run_at and max_attempts may change, and only while the job is in no hot place.
CREATE TABLE treadle_jobs (
    n                INTEGER PRIMARY KEY AUTOINCREMENT,
    id               TEXT NOT NULL UNIQUE,
    lane             INTEGER NOT NULL,
    topic            TEXT NOT NULL,
    run_at           INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    max_attempts     INTEGER NOT NULL,
    flags            INTEGER NOT NULL,
    expires_at       INTEGER,
    template_version INTEGER,
    scope            TEXT,
    scope_id         TEXT,
    created_by       TEXT,
    idempotency_key  TEXT,
    dedupe_key       TEXT,
    gate             TEXT,
    payload          TEXT NOT NULL
);
CREATE INDEX treadle_jobs_topic ON treadle_jobs (topic, n);
CREATE INDEX treadle_jobs_scope ON treadle_jobs (scope, scope_id, n) WHERE scope_id IS NOT NULL;

CREATE TABLE treadle_ready (
    lane         INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    n            INTEGER NOT NULL UNIQUE,
    attempt      INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    flags        INTEGER NOT NULL,
    PRIMARY KEY (lane, run_at, n)
) WITHOUT ROWID;

CREATE TABLE treadle_later (
    n       INTEGER PRIMARY KEY,
    lane    INTEGER NOT NULL,
    run_at  INTEGER NOT NULL,
    attempt INTEGER NOT NULL
);
CREATE INDEX treadle_later_due ON treadle_later (run_at);

-- Jobs that wait for a free place under their concurrency limit.
CREATE TABLE treadle_held (
    n        INTEGER PRIMARY KEY,
    lane     INTEGER NOT NULL,
    gate     TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempt  INTEGER NOT NULL
);
CREATE INDEX treadle_held_next ON treadle_held (gate, priority DESC, n);

CREATE TABLE treadle_leases (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    worker     TEXT NOT NULL,
    until      INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    serves     TEXT NOT NULL
);

CREATE TABLE treadle_running (
    n             INTEGER PRIMARY KEY,
    token         INTEGER NOT NULL,
    lease         INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    claimed_at    INTEGER NOT NULL,
    started_at    INTEGER,
    cancel_at     INTEGER,
    cancel_reason TEXT,
    progress      INTEGER,
    message       TEXT
);
CREATE INDEX treadle_running_cancelling ON treadle_running (cancel_at) WHERE cancel_at IS NOT NULL;

CREATE TABLE treadle_outcomes (
    n             INTEGER PRIMARY KEY,
    token         INTEGER,
    topic         TEXT NOT NULL,
    status        TEXT NOT NULL,
    attempt       INTEGER NOT NULL,
    ended_at      INTEGER NOT NULL,
    claimed_at    INTEGER,
    started_at    INTEGER,
    cancel_at     INTEGER,
    cancel_reason TEXT,
    progress      INTEGER,
    message       TEXT,
    result        TEXT,
    error         TEXT,
    error_type    TEXT
);
CREATE INDEX treadle_outcomes_topic ON treadle_outcomes (topic, status, n);
CREATE INDEX treadle_outcomes_not_completed ON treadle_outcomes (status, n) WHERE status <> 'completed';
CREATE INDEX treadle_outcomes_ended ON treadle_outcomes (ended_at);

-- Unique while it matters: idempotency until the job is deleted, dedupe until it ends.
CREATE TABLE treadle_keys (
    kind TEXT NOT NULL,
    key  TEXT NOT NULL,
    n    INTEGER NOT NULL,
    hash TEXT,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
CREATE INDEX treadle_keys_job ON treadle_keys (n);

-- used: how many jobs of this key are ready or running.
CREATE TABLE treadle_gates (
    gate TEXT PRIMARY KEY,
    used INTEGER NOT NULL,
    max  INTEGER NOT NULL
) WITHOUT ROWID;
-- Live jobs under a gate, wherever they are.
CREATE TABLE treadle_members (
    gate TEXT NOT NULL,
    n    INTEGER NOT NULL,
    PRIMARY KEY (gate, n)
) WITHOUT ROWID;

CREATE TABLE treadle_deadlines (
    n          INTEGER PRIMARY KEY,
    expires_at INTEGER NOT NULL
);
CREATE INDEX treadle_deadlines_due ON treadle_deadlines (expires_at);

-- Starts under a rate limit: one row per claim and topic, kept for one window.
CREATE TABLE treadle_starts (
    topic TEXT NOT NULL,
    at    INTEGER NOT NULL,
    token INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (topic, at, token)
) WITHOUT ROWID;

-- The last failure of a job that is tried again.
CREATE TABLE treadle_notes (
    n          INTEGER PRIMARY KEY,
    error      TEXT,
    error_type TEXT
);

CREATE TABLE treadle_events (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    n           INTEGER NOT NULL,
    type        TEXT NOT NULL,
    from_status TEXT,
    to_status   TEXT,
    message     TEXT NOT NULL,
    metadata    TEXT NOT NULL,
    created_at  INTEGER NOT NULL
);
CREATE INDEX treadle_events_job ON treadle_events (n, id);

-- Endings per minute, a row per writer so that settlers never wait for each other; the leader folds them.
CREATE TABLE treadle_tally (
    minute INTEGER NOT NULL,
    writer INTEGER NOT NULL,
    topic  TEXT NOT NULL,
    status TEXT NOT NULL,
    count  INTEGER NOT NULL,
    run_ms INTEGER NOT NULL,
    PRIMARY KEY (minute, writer, topic, status)
) WITHOUT ROWID;

CREATE TABLE treadle_templates (
    topic      TEXT PRIMARY KEY,
    version    INTEGER NOT NULL,
    definition TEXT NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE treadle_leaders (
    name   TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    until  INTEGER NOT NULL
) WITHOUT ROWID;

