-- Since when the holder leads, and what it reported with its last election: each duty, relative to `reported_at`.
ALTER TABLE treadle.leaders ADD COLUMN since bigint;
ALTER TABLE treadle.leaders ADD COLUMN reported_at bigint;
ALTER TABLE treadle.leaders ADD COLUMN duties json;
