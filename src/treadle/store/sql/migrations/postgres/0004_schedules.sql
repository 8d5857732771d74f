-- Where a job came from: its schedule and the slot that it fills.
ALTER TABLE treadle.jobs ADD COLUMN schedule_id text;
ALTER TABLE treadle.jobs ADD COLUMN scheduled_at bigint;
CREATE INDEX jobs_schedule ON treadle.jobs (schedule_id, n) WHERE schedule_id IS NOT NULL;
