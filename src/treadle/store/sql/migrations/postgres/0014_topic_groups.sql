-- Pauses of groups of topics (`mail.*`), also of topics that come later.
CREATE TABLE treadle.pauses (
    pattern      text COLLATE "C" PRIMARY KEY,
    paused_until bigint NOT NULL
);

-- A topic is new when its first lane is. Claims look at the topic's own row only, so they cost the same as before.
-- With its owner's rights: who may enqueue need not be allowed to pause.
CREATE FUNCTION treadle.pause_new_topic() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO treadle.topics AS t (topic, paused_until)
    SELECT NEW.topic, max(p.paused_until) FROM treadle.pauses p
    WHERE NEW.topic LIKE replace(replace(p.pattern, '_', '\_'), '*', '%')
        AND p.paused_until > extract(epoch FROM statement_timestamp()) * 1000
        AND NOT EXISTS (SELECT 1 FROM treadle.lanes l WHERE l.topic = NEW.topic AND l.lane <> NEW.lane)
    HAVING count(*) > 0
    ON CONFLICT (topic) DO UPDATE SET paused_until = greatest(t.paused_until, excluded.paused_until);
    RETURN NULL;
END $$;
CREATE TRIGGER pause_new_topic AFTER INSERT ON treadle.lanes FOR EACH ROW EXECUTE FUNCTION treadle.pause_new_topic();
