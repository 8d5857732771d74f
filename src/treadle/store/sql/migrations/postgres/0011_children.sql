-- The child that a step waits for. A step that waits for many has them in `children` and counts them here: how many its
-- list has, how many were made, and of those how many have not ended and how many did not complete.
ALTER TABLE treadle.steps
    ADD COLUMN child           uuid,
    ADD COLUMN children_total  integer,
    ADD COLUMN children_made   integer,
    ADD COLUMN children_left   integer,
    ADD COLUMN children_failed integer;

CREATE TABLE treadle.children (
    n           bigint NOT NULL,
    name        text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    place       integer NOT NULL,
    child       uuid,
    state       text NOT NULL,
    started_at  bigint,
    ended_at    bigint,
    result_size integer,
    error       text,
    result      json,
    PRIMARY KEY (n, name, key)
) WITH (fillfactor = 80);
CREATE INDEX children_place ON treadle.children (n, name, place);

-- A child is its parent, step, key and generation.
CREATE UNIQUE INDEX jobs_child ON treadle.jobs (parent_id, parent_step, parent_key, parent_generation)
    WHERE parent_step IS NOT NULL;
