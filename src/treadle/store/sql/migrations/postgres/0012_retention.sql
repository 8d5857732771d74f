-- Templates say how long the jobs of their topics are kept.
ALTER TABLE treadle.topics ADD COLUMN stale_after bigint, ADD COLUMN delete_after bigint;

-- How far `job:stale` was told: up to the job with this end and number.
CREATE TABLE treadle.stale_marks (
    topic    text COLLATE "C" NOT NULL,
    status   text COLLATE "C" NOT NULL,
    ended_at bigint NOT NULL,
    n        bigint NOT NULL,
    PRIMARY KEY (topic, status)
) WITH (fillfactor = 50);
