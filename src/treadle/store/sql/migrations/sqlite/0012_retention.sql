-- Templates say how long the jobs of their topics are kept.
ALTER TABLE treadle_topics ADD COLUMN stale_after INTEGER;
ALTER TABLE treadle_topics ADD COLUMN delete_after INTEGER;

-- How far `job:stale` was told: up to the job with this end and number.
CREATE TABLE treadle_stale_marks (
    topic    TEXT NOT NULL,
    status   TEXT NOT NULL,
    ended_at INTEGER NOT NULL,
    n        INTEGER NOT NULL,
    PRIMARY KEY (topic, status)
) WITHOUT ROWID;
