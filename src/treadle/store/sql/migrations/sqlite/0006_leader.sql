-- Since when the holder leads, and what it reported with its last election: each duty, relative to `reported_at`.
ALTER TABLE treadle_leaders ADD COLUMN since INTEGER;
ALTER TABLE treadle_leaders ADD COLUMN reported_at INTEGER;
ALTER TABLE treadle_leaders ADD COLUMN duties TEXT;
