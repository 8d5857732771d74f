-- How far a job with steps was when its last attempt ended: it goes on from there.
ALTER TABLE treadle_notes ADD COLUMN progress INTEGER;
ALTER TABLE treadle_notes ADD COLUMN message TEXT;
