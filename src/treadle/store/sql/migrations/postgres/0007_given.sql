-- What a job can be given: its parent, with the step, key and generation that it is a child of, an address that is told
-- of its events, the hash of a token that may follow it, and the release that enqueued it.
ALTER TABLE treadle.jobs
    ADD COLUMN parent_id         text COLLATE "C",
    ADD COLUMN parent_step       text,
    ADD COLUMN parent_key        text,
    ADD COLUMN parent_generation integer,
    ADD COLUMN webhook_url       text,
    ADD COLUMN track_hash        text,
    ADD COLUMN release           text,
    -- Whether the newest delivery to that address has arrived; null if none was due.
    ADD COLUMN webhook_sent      integer;
-- The children of a job, newest last.
CREATE INDEX jobs_parent ON treadle.jobs (parent_id, n) WHERE parent_id IS NOT NULL;
