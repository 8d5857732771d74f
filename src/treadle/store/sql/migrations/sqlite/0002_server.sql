-- The server's own data: accounts, API keys, signing keys, settings. Few and small; found by id or by key, and changed
-- only if the version is still the one that was read.
CREATE TABLE treadle_records (
    n          INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL,
    id         TEXT NOT NULL,
    key        TEXT NOT NULL,
    body       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (kind, id),
    UNIQUE (kind, key)
);
CREATE INDEX treadle_records_age ON treadle_records (kind, n);

-- The W3C traceparent of the enqueue, if tracing is on. Empty it takes a byte of the row; read with the payload.
ALTER TABLE treadle_jobs ADD COLUMN trace TEXT;

-- For access rules such as `createdBy = @request.auth.id`. Jobs without an owner don't pay for them.
CREATE INDEX treadle_jobs_created_by ON treadle_jobs (created_by, n) WHERE created_by IS NOT NULL;
CREATE INDEX treadle_jobs_scope_id ON treadle_jobs (scope_id, n) WHERE scope_id IS NOT NULL;
