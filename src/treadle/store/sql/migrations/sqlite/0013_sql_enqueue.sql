-- Enqueue from SQL: triggers, other languages, the sqlite3 shell. An INSERT into this view stores a job:
--     INSERT INTO treadle_enqueue (topic, payload, options) VALUES ('mail', '{"to": "ada"}', '{"delay": "15m"}');
-- The topic, the size, the template's defaults and its switch are looked after here; the payload's schema is the
-- worker's to check. What needs the rules of admission (keys, limits, policies) or must not be stored in clear (secret
-- fields) is refused. tests/contract/test_sql_enqueue.py compares the rows with those of the Python API, so a new column
-- that matters is noticed. A later migration that rebuilds a table named here has to drop and make this trigger again.
CREATE VIEW treadle_enqueue AS
SELECT id, topic, payload, '{}' AS options FROM treadle_jobs;

CREATE TRIGGER treadle_enqueue_insert INSTEAD OF INSERT ON treadle_enqueue
BEGIN
    SELECT RAISE(ABORT, 'treadle_enqueue: topic: is not a topic; use lower-case letters, digits, _ and dots, at most 100 characters') WHERE NOT coalesce(typeof(NEW.topic) = 'text' AND NEW.topic <> '' AND ((NEW.topic NOT GLOB '*[^a-z0-9_.]*' AND length(NEW.topic) <= 100)
        OR (NEW.topic GLOB '[a-z]*:*' AND length(NEW.topic) <= 255 AND substr(NEW.topic, 1, instr(NEW.topic, ':') - 1) NOT GLOB '*[^a-z0-9_]*'
        AND substr(NEW.topic, instr(NEW.topic, ':') + 1) NOT GLOB '*[^A-Za-z0-9_.]*' AND NEW.topic NOT GLOB '*:' AND NEW.topic NOT GLOB '*:.*'))
        AND NEW.topic NOT GLOB '.*' AND NEW.topic NOT GLOB '*.' AND instr(NEW.topic, '..') = 0, 0);
    SELECT RAISE(ABORT, 'treadle_enqueue: payload: is not JSON') WHERE NOT json_valid(coalesce(NEW.payload, '{}'));
    SELECT RAISE(ABORT, 'treadle_enqueue: payload: must be a JSON object') WHERE json_type(coalesce(NEW.payload, '{}')) <> 'object';
    SELECT RAISE(ABORT, 'treadle_enqueue: payload: is over the limit of 1,048,576 bytes of JSON; store the data elsewhere and pass a reference') WHERE length(CAST(json(coalesce(NEW.payload, '{}')) AS BLOB)) > 1048576;
    SELECT RAISE(ABORT, 'treadle_enqueue: payload: has a number beyond 64 bits') WHERE EXISTS (SELECT 1 FROM json_tree(coalesce(NEW.payload, '{}')) t WHERE t.type = 'integer' AND typeof(t.atom) <> 'integer'
        OR t.type = 'real' AND abs(t.atom) > 1.7976931348623157e308);
    SELECT RAISE(ABORT, 'treadle_enqueue: payload: is nested more than 100 levels deep') WHERE length(coalesce(NEW.payload, '{}')) > 200 AND EXISTS (WITH RECURSIVE deep(id, depth) AS (SELECT 0, 0 UNION ALL
        SELECT t.id, deep.depth + 1 FROM json_tree(coalesce(NEW.payload, '{}')) t JOIN deep ON t.parent = deep.id WHERE deep.depth <= 101)
        SELECT 1 FROM deep WHERE depth > 101);
    SELECT RAISE(ABORT, 'treadle_enqueue: options: is not JSON') WHERE NOT json_valid(coalesce(NEW.options, '{}'));
    SELECT RAISE(ABORT, 'treadle_enqueue: options: must be a JSON object') WHERE json_type(coalesce(NEW.options, '{}')) <> 'object';
    SELECT RAISE(ABORT, 'treadle_enqueue: keys, limits, addresses and parents can''t be given in SQL; enqueue from Python or over HTTP') WHERE EXISTS (SELECT 1 FROM json_each(coalesce(NEW.options, '{}')) o WHERE o.key IN ('idempotencyKey', 'dedupeKeys', 'concurrency', 'limit', 'rate', 'webhookUrl', 'track', 'parentId', 'connection'));
    SELECT RAISE(ABORT, 'treadle_enqueue: unknown option; there are runAt, delay, expiresAt, expires, priority, maxAttempts, maxRetries, capability, scope, scopeId, createdBy') WHERE EXISTS (SELECT 1 FROM json_each(coalesce(NEW.options, '{}')) o WHERE o.key NOT IN ('runAt', 'delay', 'expiresAt', 'expires', 'priority', 'maxAttempts', 'maxRetries', 'capability', 'scope', 'scopeId', 'createdBy'));
    SELECT RAISE(ABORT, 'treadle_enqueue: options: each value is a text or a number')
    WHERE EXISTS (SELECT 1 FROM json_each(coalesce(NEW.options, '{}')) o WHERE o.type IN ('true', 'false', 'array', 'object'));
    SELECT RAISE(ABORT, 'treadle_enqueue: capability: use 1 to 100 printable characters') WHERE json_extract(NEW.options, '$.capability') IS NOT NULL AND NOT (typeof(json_extract(NEW.options, '$.capability')) = 'text' AND length(json_extract(NEW.options, '$.capability')) BETWEEN 1 AND 100 AND json_extract(NEW.options, '$.capability') NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || ']*'
        AND trim(json_extract(NEW.options, '$.capability')) = json_extract(NEW.options, '$.capability'));
    SELECT RAISE(ABORT, 'treadle_enqueue: scope: use 1 to 255 printable characters') WHERE json_extract(NEW.options, '$.scope') IS NOT NULL AND NOT (typeof(json_extract(NEW.options, '$.scope')) = 'text' AND length(json_extract(NEW.options, '$.scope')) BETWEEN 1 AND 255 AND json_extract(NEW.options, '$.scope') NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || ']*'
        AND trim(json_extract(NEW.options, '$.scope')) = json_extract(NEW.options, '$.scope'));
    SELECT RAISE(ABORT, 'treadle_enqueue: scopeId: use 1 to 255 printable characters') WHERE json_extract(NEW.options, '$.scopeId') IS NOT NULL AND NOT (typeof(json_extract(NEW.options, '$.scopeId')) = 'text' AND length(json_extract(NEW.options, '$.scopeId')) BETWEEN 1 AND 255 AND json_extract(NEW.options, '$.scopeId') NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || ']*'
        AND trim(json_extract(NEW.options, '$.scopeId')) = json_extract(NEW.options, '$.scopeId'));
    SELECT RAISE(ABORT, 'treadle_enqueue: createdBy: use 1 to 255 printable characters') WHERE json_extract(NEW.options, '$.createdBy') IS NOT NULL AND NOT (typeof(json_extract(NEW.options, '$.createdBy')) = 'text' AND length(json_extract(NEW.options, '$.createdBy')) BETWEEN 1 AND 255 AND json_extract(NEW.options, '$.createdBy') NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || ']*'
        AND trim(json_extract(NEW.options, '$.createdBy')) = json_extract(NEW.options, '$.createdBy'));
    SELECT RAISE(ABORT, 'treadle_enqueue: the topic is disabled') WHERE NOT coalesce(json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.switched'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.enabled'), 1);
    SELECT RAISE(ABORT, 'treadle_enqueue: the topic has a concurrency limit, which SQL can''t apply; enqueue from Python or over HTTP') WHERE coalesce(json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.concurrencyPolicy'), 'allow') <> 'allow';
    SELECT RAISE(ABORT, 'treadle_enqueue: the topic has an idempotency key, which SQL can''t apply; enqueue from Python or over HTTP') WHERE json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.idempotencyKey') IS NOT NULL;
    SELECT RAISE(ABORT, 'treadle_enqueue: the topic has dedupe keys, which SQL can''t apply; enqueue from Python or over HTTP') WHERE coalesce(json_array_length(json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.dedupeKeys')), 0) > 0;
    SELECT RAISE(ABORT, 'treadle_enqueue: the topic has repeatable=False, which SQL can''t apply; enqueue from Python or over HTTP') WHERE json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.repeatable') = 0;
    SELECT RAISE(ABORT, 'treadle_enqueue: the topic has secret fields, which SQL can''t apply; enqueue from Python or over HTTP') WHERE coalesce(json_array_length(json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.secret')), 0) > 0;
    SELECT RAISE(ABORT, 'treadle_enqueue: give runAt or delay, not both') WHERE json_extract(NEW.options, '$.runAt') IS NOT NULL AND json_extract(NEW.options, '$.delay') IS NOT NULL;
    SELECT RAISE(ABORT, 'treadle_enqueue: give expiresAt or expires, not both') WHERE json_extract(NEW.options, '$.expiresAt') IS NOT NULL AND json_extract(NEW.options, '$.expires') IS NOT NULL;
    SELECT RAISE(ABORT, 'treadle_enqueue: give maxAttempts or maxRetries, not both: they mean the same') WHERE json_extract(NEW.options, '$.maxAttempts') IS NOT NULL AND json_extract(NEW.options, '$.maxRetries') IS NOT NULL;
    SELECT RAISE(ABORT, 'treadle_enqueue: delay: is not a time; write seconds as a number, or ''15m''') WHERE json_extract(NEW.options, '$.delay') IS NOT NULL AND NOT coalesce((typeof(json_extract(NEW.options, '$.delay')) IN ('integer', 'real') AND json_extract(NEW.options, '$.delay') BETWEEN 0 AND 3153600000
        OR typeof(json_extract(NEW.options, '$.delay')) = 'text' AND json_extract(NEW.options, '$.delay') GLOB '[0-9]*' AND json_extract(NEW.options, '$.delay') NOT GLOB '*.*.*' AND rtrim(rtrim(json_extract(NEW.options, '$.delay'), 'smhd'), '0123456789.') = ''
        AND substr(json_extract(NEW.options, '$.delay'), length(rtrim(json_extract(NEW.options, '$.delay'), 'smhd')) + 1) IN ('ms', 's', 'm', 'h', 'd')
        AND length(json_extract(NEW.options, '$.delay')) <= 12), 0);
    SELECT RAISE(ABORT, 'treadle_enqueue: expires: is not a time; write seconds as a number, or ''15m''') WHERE json_extract(NEW.options, '$.expires') IS NOT NULL AND NOT coalesce((typeof(json_extract(NEW.options, '$.expires')) IN ('integer', 'real') AND json_extract(NEW.options, '$.expires') BETWEEN 0 AND 3153600000
        OR typeof(json_extract(NEW.options, '$.expires')) = 'text' AND json_extract(NEW.options, '$.expires') GLOB '[0-9]*' AND json_extract(NEW.options, '$.expires') NOT GLOB '*.*.*' AND rtrim(rtrim(json_extract(NEW.options, '$.expires'), 'smhd'), '0123456789.') = ''
        AND substr(json_extract(NEW.options, '$.expires'), length(rtrim(json_extract(NEW.options, '$.expires'), 'smhd')) + 1) IN ('ms', 's', 'm', 'h', 'd')
        AND length(json_extract(NEW.options, '$.expires')) <= 12), 0);
    SELECT RAISE(ABORT, 'treadle_enqueue: runAt: is not a time with a zone; write ''2026-11-19T02:30:00Z''') WHERE json_extract(NEW.options, '$.runAt') IS NOT NULL AND NOT coalesce((typeof(json_extract(NEW.options, '$.runAt')) = 'text' AND julianday(json_extract(NEW.options, '$.runAt')) BETWEEN 2440587.5 AND 5008221.5
        AND (json_extract(NEW.options, '$.runAt') GLOB '*T*Z' OR json_extract(NEW.options, '$.runAt') GLOB '*T*[+-][0-9][0-9]:[0-9][0-9]')), 0);
    SELECT RAISE(ABORT, 'treadle_enqueue: expiresAt: is not a time with a zone; write ''2026-11-19T02:30:00Z''') WHERE json_extract(NEW.options, '$.expiresAt') IS NOT NULL AND NOT coalesce((typeof(json_extract(NEW.options, '$.expiresAt')) = 'text' AND julianday(json_extract(NEW.options, '$.expiresAt')) BETWEEN 2440587.5 AND 5008221.5
        AND (json_extract(NEW.options, '$.expiresAt') GLOB '*T*Z' OR json_extract(NEW.options, '$.expiresAt') GLOB '*T*[+-][0-9][0-9]:[0-9][0-9]')), 0);
    SELECT RAISE(ABORT, 'treadle_enqueue: priority: use an integer or critical, high, normal, low, background') WHERE typeof(CASE coalesce(json_extract(NEW.options, '$.priority'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.priority'), 50) WHEN 'critical' THEN 100 WHEN 'high' THEN 75 WHEN 'normal' THEN 50 WHEN 'low' THEN 25 WHEN 'background' THEN 0 ELSE coalesce(json_extract(NEW.options, '$.priority'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.priority'), 50) END) <> 'integer' OR abs(CASE coalesce(json_extract(NEW.options, '$.priority'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.priority'), 50) WHEN 'critical' THEN 100 WHEN 'high' THEN 75 WHEN 'normal' THEN 50 WHEN 'low' THEN 25 WHEN 'background' THEN 0 ELSE coalesce(json_extract(NEW.options, '$.priority'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.priority'), 50) END) > 999999999;
    SELECT RAISE(ABORT, 'treadle_enqueue: maxAttempts: is not between 1 and 1,000,000') WHERE typeof(coalesce(json_extract(NEW.options, '$.maxAttempts'), json_extract(NEW.options, '$.maxRetries'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.retryPolicy.maxAttempts'), 3)) <> 'integer' OR coalesce(json_extract(NEW.options, '$.maxAttempts'), json_extract(NEW.options, '$.maxRetries'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.retryPolicy.maxAttempts'), 3) NOT BETWEEN 1 AND 1000000;
    INSERT INTO treadle_lanes (topic, capability)
    SELECT NEW.topic, coalesce(json_extract(NEW.options, '$.capability'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.capability'), '') WHERE true
    ON CONFLICT (topic, capability, worker_type) DO NOTHING;
    -- The id is a UUID of version 7: the time in 48 bits, then chance.
    INSERT INTO treadle_jobs (id, lane, topic, run_at, created_at, max_attempts, flags, expires_at, priority, payload,
        template_version, scope, scope_id, created_by)
    SELECT substr(t.id, 1, 8) || '-' || substr(t.id, 9, 4) || '-7' || substr(t.id, 14, 3) || '-'
            || substr('89ab', abs(random() % 4) + 1, 1) || substr(t.id, 18, 3) || '-' || substr(t.id, 21, 12),
        (SELECT l.lane FROM treadle_lanes l WHERE l.topic = NEW.topic AND l.capability = t.capability AND l.worker_type = ''),
        NEW.topic, max(t.due, t.now), t.now, t.attempts, CASE WHEN t.expires_at IS NULL THEN 0 ELSE 4 END, t.expires_at,
        t.priority, json(coalesce(NEW.payload, '{}')), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.version'),
        json_extract(NEW.options, '$.scope'), json_extract(NEW.options, '$.scopeId'), json_extract(NEW.options, '$.createdBy')
    FROM (SELECT n.now, lower(printf('%012x', n.now) || hex(randomblob(10))) AS id,
            coalesce(json_extract(NEW.options, '$.capability'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.capability'), '') AS capability,
            coalesce(CAST(round((julianday(json_extract(NEW.options, '$.runAt')) - 2440587.5) * 86400000) AS INTEGER),
                n.now + CAST(round(CASE typeof(json_extract(NEW.options, '$.delay')) WHEN 'text' THEN CAST(rtrim(json_extract(NEW.options, '$.delay'), 'smhd') AS REAL) * CASE substr(json_extract(NEW.options, '$.delay'), length(rtrim(json_extract(NEW.options, '$.delay'), 'smhd')) + 1)
            WHEN 'ms' THEN 1 WHEN 's' THEN 1000 WHEN 'm' THEN 60000 WHEN 'h' THEN 3600000 ELSE 86400000 END ELSE json_extract(NEW.options, '$.delay') * 1000 END) AS INTEGER), n.now) AS due,
            coalesce(CAST(round((julianday(json_extract(NEW.options, '$.expiresAt')) - 2440587.5) * 86400000) AS INTEGER),
                n.now + CAST(round(CASE typeof(json_extract(NEW.options, '$.expires')) WHEN 'text' THEN CAST(rtrim(json_extract(NEW.options, '$.expires'), 'smhd') AS REAL) * CASE substr(json_extract(NEW.options, '$.expires'), length(rtrim(json_extract(NEW.options, '$.expires'), 'smhd')) + 1)
            WHEN 'ms' THEN 1 WHEN 's' THEN 1000 WHEN 'm' THEN 60000 WHEN 'h' THEN 3600000 ELSE 86400000 END ELSE json_extract(NEW.options, '$.expires') * 1000 END) AS INTEGER),
                n.now + CAST(round(json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.expiresSeconds') * 1000) AS INTEGER)) AS expires_at,
            CASE coalesce(json_extract(NEW.options, '$.priority'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.priority'), 50) WHEN 'critical' THEN 100 WHEN 'high' THEN 75 WHEN 'normal' THEN 50 WHEN 'low' THEN 25 WHEN 'background' THEN 0 ELSE coalesce(json_extract(NEW.options, '$.priority'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.priority'), 50) END AS priority,
            coalesce(json_extract(NEW.options, '$.maxAttempts'), json_extract(NEW.options, '$.maxRetries'), json_extract((SELECT body FROM treadle_records WHERE kind = 'template' AND id = NEW.topic), '$.definition.retryPolicy.maxAttempts'), 3) AS attempts
        FROM (SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) AS now) n) t;
    INSERT INTO treadle_ready (lane, rank, run_at, n, attempt, max_attempts, flags)
    SELECT lane, ~priority, run_at, n, 0, max_attempts, flags FROM treadle_jobs
    WHERE n = last_insert_rowid() AND run_at <= created_at;
    INSERT INTO treadle_later (n, lane, run_at, attempt)
    SELECT n, lane, run_at, 0 FROM treadle_jobs WHERE n = last_insert_rowid() AND run_at > created_at;
    INSERT INTO treadle_deadlines (n, expires_at)
    SELECT n, expires_at FROM treadle_jobs WHERE n = last_insert_rowid() AND expires_at IS NOT NULL;
END;
