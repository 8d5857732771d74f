-- Where a job came from: its schedule and the slot that it fills.
ALTER TABLE treadle_jobs ADD COLUMN schedule_id TEXT;
ALTER TABLE treadle_jobs ADD COLUMN scheduled_at INTEGER;
CREATE INDEX treadle_jobs_schedule ON treadle_jobs (schedule_id, n) WHERE schedule_id IS NOT NULL;
