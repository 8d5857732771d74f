-- Enqueue from SQL: triggers, other languages, psql. The topic, the size, the template's defaults and its switch are
-- looked after here; the payload's schema is the worker's to check. What needs the rules of admission (keys, limits,
-- policies) or must not be stored in clear (secret fields) is refused. tests/contract/test_sql_enqueue.py compares the
-- rows with those of the Python API, so a new column that matters is noticed.

-- How a refusal looks, so that each check is one line.
CREATE FUNCTION treadle.refuse_enqueue(message text, state text DEFAULT '22023') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = 'treadle.enqueue: ' || message;
END $$;

-- A length of time in ms: seconds as a number, or a text such as '15m' or '2 hours'. Null if there is none.
CREATE FUNCTION treadle.enqueue_ms(name text, value jsonb) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    seconds numeric;
BEGIN
    IF value IS NULL OR jsonb_typeof(value) = 'null' THEN
        RETURN NULL;
    END IF;
    BEGIN
        seconds := CASE jsonb_typeof(value) WHEN 'number' THEN (value #>> '{}')::numeric
            WHEN 'string' THEN extract(epoch FROM (value #>> '{}')::interval) END;
    EXCEPTION WHEN data_exception THEN
        seconds := NULL;
    END;
    IF seconds IS NULL OR seconds < 0 OR seconds > 3153600000 THEN
        PERFORM treadle.refuse_enqueue(format('%s: %s is not a time; write seconds as a number, or ''15m''', name, left(value::text, 60)));
    END IF;
    RETURN round(seconds * 1000);
END $$;

-- A moment in ms, from RFC 3339 with its zone. Null if there is none.
CREATE FUNCTION treadle.enqueue_at(name text, value jsonb) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    at timestamptz;
BEGIN
    IF value IS NULL OR jsonb_typeof(value) = 'null' THEN
        RETURN NULL;
    END IF;
    BEGIN
        IF value #>> '{}' ~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)$' THEN
            at := (value #>> '{}')::timestamptz;
        END IF;
    EXCEPTION WHEN data_exception THEN
        at := NULL;
    END;
    IF at IS NULL OR at < 'epoch' OR at >= '9000-01-01T00:00:00Z' THEN
        PERFORM treadle.refuse_enqueue(format('%s: %s is not a time with a zone; write ''2026-11-19T02:30:00Z''', name, left(value::text, 60)));
    END IF;
    RETURN floor(extract(epoch FROM at) * 1000);
END $$;

CREATE FUNCTION treadle.enqueue(topic text, payload jsonb DEFAULT '{}', options jsonb DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    known CONSTANT text[] := '{runAt,delay,expiresAt,expires,priority,maxAttempts,maxRetries,capability,scope,scopeId,createdBy}';
    refused CONSTANT text[] := '{idempotencyKey,dedupeKeys,concurrency,limit,rate,webhookUrl,track,parentId,connection}';
    me CONSTANT xid8 := pg_current_xact_id(); -- before the number, so that readers know who can still fill a gap
    now CONSTANT bigint := CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint);
    given jsonb := coalesce(options, '{}');
    content jsonb := coalesce(payload, '{}');
    template jsonb;
    definition jsonb;
    name text;
    rank_name text;
    job_n bigint;
    job_id uuid;
    job_lane integer;
    due bigint;
    expiry bigint;
    urgency integer;
    attempts integer;
    needs text;
BEGIN
    IF topic IS NULL OR NOT (topic ~ '^[a-z0-9_]+(\.[a-z0-9_]+)*$' AND length(topic) <= 100
        OR topic ~ '^[a-z][a-z0-9_]*:[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$' AND length(topic) <= 255) THEN
        PERFORM treadle.refuse_enqueue(format('topic: %L is not a topic; use lower-case letters, digits, _ and dots, at most 100 characters', left(topic, 60)));
    END IF;
    IF jsonb_typeof(content) <> 'object' THEN
        PERFORM treadle.refuse_enqueue('payload: must be a JSON object, not ' || jsonb_typeof(content));
    END IF;
    -- Measured without the blanks that jsonb is shown with; only a text that is close to the limit is worth the work.
    IF octet_length(content::text) > 1048576
        AND octet_length(regexp_replace(content::text, '("(?:[^"\\]|\\.)*")|\s+', '\1', 'g')) > 1048576 THEN
        PERFORM treadle.refuse_enqueue('payload: is over the limit of 1,048,576 bytes of JSON; store the data elsewhere and pass a reference');
    END IF;
    IF jsonb_path_exists(content, '$.** ? (@.type() == "number" && (@ > 9223372036854775807 || @ < -9223372036854775808))') THEN
        PERFORM treadle.refuse_enqueue('payload: has a number beyond 64 bits');
    END IF;
    IF jsonb_path_exists(content, 'strict $.**{101 to last}') THEN
        PERFORM treadle.refuse_enqueue('payload: is nested more than 100 levels deep');
    END IF;
    IF jsonb_typeof(given) <> 'object' THEN
        PERFORM treadle.refuse_enqueue('options: must be a JSON object, not ' || jsonb_typeof(given));
    END IF;
    FOR name IN SELECT jsonb_object_keys(given) LOOP
        IF name = ANY (refused) THEN
            PERFORM treadle.refuse_enqueue(name || ': can''t be given in SQL; enqueue from Python or over HTTP', '0A000');
        ELSIF NOT name = ANY (known) THEN
            PERFORM treadle.refuse_enqueue(format('%L is not an option; there are %s', left(name, 60), array_to_string(known, ', ')));
        END IF;
    END LOOP;
    FOREACH name IN ARRAY '{capability,scope,scopeId,createdBy}'::text[] LOOP
        IF coalesce(jsonb_typeof(given -> name), 'null') NOT IN ('null', 'string')
            OR given ->> name ~ '[[:cntrl:]]' OR length(given ->> name) NOT BETWEEN 1 AND 255 THEN
            PERFORM treadle.refuse_enqueue(name || ': use 1 to 255 printable characters');
        END IF;
    END LOOP;
    IF length(given ->> 'capability') > 100 OR given ->> 'capability' <> btrim(given ->> 'capability') THEN
        PERFORM treadle.refuse_enqueue('capability: use 1 to 100 printable characters');
    END IF;

    SELECT r.body::jsonb INTO template FROM treadle.records r WHERE r.kind = 'template' AND r.id = topic;
    definition := coalesce(template -> 'definition', '{}');
    IF NOT coalesce((template ->> 'switched')::boolean, (definition ->> 'enabled')::boolean, true) THEN
        PERFORM treadle.refuse_enqueue(format('topic %s is disabled', topic), '55000');
    END IF;
    needs := CASE
        WHEN coalesce(definition ->> 'concurrencyPolicy', 'allow') <> 'allow' THEN 'a concurrency limit'
        WHEN definition ->> 'idempotencyKey' IS NOT NULL THEN 'an idempotency key'
        WHEN jsonb_array_length(coalesce(definition -> 'dedupeKeys', '[]')) > 0 THEN 'dedupe keys'
        WHEN NOT coalesce((definition ->> 'repeatable')::boolean, true) THEN 'repeatable=False'
        WHEN jsonb_array_length(coalesce(definition -> 'secret', '[]')) > 0 THEN 'secret fields'
    END;
    IF needs IS NOT NULL THEN
        PERFORM treadle.refuse_enqueue(format('topic %s has %s, which SQL can''t apply; enqueue from Python or over HTTP', topic, needs), '0A000');
    END IF;

    IF num_nonnulls(given ->> 'runAt', given ->> 'delay') > 1 THEN
        PERFORM treadle.refuse_enqueue('give runAt or delay, not both');
    END IF;
    IF num_nonnulls(given ->> 'expiresAt', given ->> 'expires') > 1 THEN
        PERFORM treadle.refuse_enqueue('give expiresAt or expires, not both');
    END IF;
    IF num_nonnulls(given ->> 'maxAttempts', given ->> 'maxRetries') > 1 THEN
        PERFORM treadle.refuse_enqueue('give maxAttempts or maxRetries, not both: they mean the same');
    END IF;
    due := greatest(now, coalesce(treadle.enqueue_at('runAt', given -> 'runAt'), now + treadle.enqueue_ms('delay', given -> 'delay'), now));
    expiry := coalesce(treadle.enqueue_at('expiresAt', given -> 'expiresAt'), now + treadle.enqueue_ms('expires', given -> 'expires'),
        now + treadle.enqueue_ms('expires', definition -> 'expiresSeconds'));
    rank_name := coalesce(given ->> 'priority', definition ->> 'priority', '50');
    urgency := CASE rank_name WHEN 'critical' THEN 100 WHEN 'high' THEN 75 WHEN 'normal' THEN 50 WHEN 'low' THEN 25
        WHEN 'background' THEN 0 ELSE CASE WHEN rank_name ~ '^-?\d{1,9}$' THEN rank_name::integer END END;
    IF urgency IS NULL THEN
        PERFORM treadle.refuse_enqueue(format('priority: %L is not a priority; use an integer or critical, high, normal, low, background', left(rank_name, 60)));
    END IF;
    rank_name := coalesce(given ->> 'maxAttempts', given ->> 'maxRetries', definition #>> '{retryPolicy,maxAttempts}', '3');
    attempts := CASE WHEN rank_name ~ '^\d{1,7}$' THEN rank_name::integer END;
    IF attempts IS NULL OR attempts NOT BETWEEN 1 AND 1000000 THEN
        PERFORM treadle.refuse_enqueue(format('maxAttempts: %L is not between 1 and 1,000,000', left(rank_name, 60)));
    END IF;

    name := coalesce(given ->> 'capability', definition ->> 'capability', '');
    SELECT l.lane INTO job_lane FROM treadle.lanes l WHERE l.topic = enqueue.topic AND l.capability = name AND l.worker_type = '';
    IF job_lane IS NULL THEN
        INSERT INTO treadle.lanes (topic, capability) VALUES (enqueue.topic, name) ON CONFLICT DO NOTHING;
        SELECT l.lane INTO job_lane FROM treadle.lanes l WHERE l.topic = enqueue.topic AND l.capability = name AND l.worker_type = '';
    END IF;
    -- A UUID of version 7: the time in 48 bits, then chance.
    job_id := encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send(now) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid;
    INSERT INTO treadle.jobs (id, lane, topic, run_at, created_at, max_attempts, flags, expires_at, priority, payload,
        template_version, scope, scope_id, created_by)
    VALUES (job_id, job_lane, enqueue.topic, due, now, attempts, CASE WHEN expiry IS NULL THEN 0 ELSE 4 END, expiry, urgency,
        content::text::json, (template ->> 'version')::integer, given ->> 'scope', given ->> 'scopeId', given ->> 'createdBy')
    RETURNING n INTO job_n;
    IF due <= now THEN
        INSERT INTO treadle.ready (lane, rank, run_at, n, attempt, max_attempts, flags)
        SELECT j.lane, ~j.priority, j.run_at, j.n, 0, j.max_attempts, j.flags FROM treadle.jobs j WHERE j.n = job_n;
    ELSE
        INSERT INTO treadle.later (n, lane, run_at, attempt) VALUES (job_n, job_lane, due, 0);
    END IF;
    IF expiry IS NOT NULL THEN
        INSERT INTO treadle.deadlines (n, expires_at) VALUES (job_n, expiry);
    END IF;
    PERFORM pg_notify('treadle', 'ready' || CASE WHEN due > now THEN ',later' ELSE '' END
        || CASE WHEN urgency > 50 THEN ',urgent' ELSE '' END);
    RETURN job_id;
END $$;
COMMENT ON FUNCTION treadle.enqueue IS 'Store a job: topic, payload, and options such as {"delay": "15m", "priority": "high"}. Returns its id.';
