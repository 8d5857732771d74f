-- How far a job with steps was when its last attempt ended: it goes on from there.
ALTER TABLE treadle.notes ADD COLUMN progress integer;
ALTER TABLE treadle.notes ADD COLUMN message text;
