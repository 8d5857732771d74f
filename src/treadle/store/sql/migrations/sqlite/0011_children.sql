-- The child that a step waits for. A step that waits for many has them in `children` and counts them here: how many its
-- list has, how many were made, and of those how many have not ended and how many did not complete.
ALTER TABLE treadle_steps ADD COLUMN child TEXT;
ALTER TABLE treadle_steps ADD COLUMN children_total INTEGER;
ALTER TABLE treadle_steps ADD COLUMN children_made INTEGER;
ALTER TABLE treadle_steps ADD COLUMN children_left INTEGER;
ALTER TABLE treadle_steps ADD COLUMN children_failed INTEGER;

CREATE TABLE treadle_children (
    n           INTEGER NOT NULL,
    name        TEXT NOT NULL,
    key         TEXT NOT NULL,
    place       INTEGER NOT NULL,
    child       TEXT,
    state       TEXT NOT NULL,
    started_at  INTEGER,
    ended_at    INTEGER,
    result_size INTEGER,
    error       TEXT,
    result      TEXT,
    PRIMARY KEY (n, name, key)
);
CREATE INDEX treadle_children_place ON treadle_children (n, name, place);

-- A child is its parent, step, key and generation.
CREATE UNIQUE INDEX treadle_jobs_child ON treadle_jobs (parent_id, parent_step, parent_key, parent_generation)
    WHERE parent_step IS NOT NULL;
