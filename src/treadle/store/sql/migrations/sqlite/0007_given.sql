-- What a job can be given: its parent, with the step, key and generation that it is a child of, an address that is told
-- of its events, the hash of a token that may follow it, and the release that enqueued it.
ALTER TABLE treadle_jobs ADD COLUMN parent_id TEXT;
ALTER TABLE treadle_jobs ADD COLUMN parent_step TEXT;
ALTER TABLE treadle_jobs ADD COLUMN parent_key TEXT;
ALTER TABLE treadle_jobs ADD COLUMN parent_generation INTEGER;
ALTER TABLE treadle_jobs ADD COLUMN webhook_url TEXT;
ALTER TABLE treadle_jobs ADD COLUMN track_hash TEXT;
ALTER TABLE treadle_jobs ADD COLUMN release TEXT;
-- Whether the newest delivery to that address has arrived; null if none was due.
ALTER TABLE treadle_jobs ADD COLUMN webhook_sent INTEGER;
-- The children of a job, newest last.
CREATE INDEX treadle_jobs_parent ON treadle_jobs (parent_id, n) WHERE parent_id IS NOT NULL;
