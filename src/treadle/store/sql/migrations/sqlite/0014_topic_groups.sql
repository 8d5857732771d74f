-- Pauses of groups of topics (`mail.*`), also of topics that come later.
CREATE TABLE treadle_pauses (
    pattern      TEXT PRIMARY KEY,
    paused_until INTEGER NOT NULL
) WITHOUT ROWID;

-- A topic is new when its first lane is. Claims look at the topic's own row only, so they cost the same as before.
CREATE TRIGGER treadle_pause_new_topic AFTER INSERT ON treadle_lanes
BEGIN
    INSERT INTO treadle_topics (topic, paused_until)
    SELECT NEW.topic, max(p.paused_until) FROM treadle_pauses p
    WHERE NEW.topic GLOB p.pattern
        AND p.paused_until > CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)
        AND NOT EXISTS (SELECT 1 FROM treadle_lanes l WHERE l.topic = NEW.topic AND l.lane <> NEW.lane)
    HAVING count(*) > 0
    ON CONFLICT (topic) DO UPDATE SET paused_until = max(coalesce(paused_until, 0), excluded.paused_until);
END;
