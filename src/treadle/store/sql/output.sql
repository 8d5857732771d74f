-- What handlers emit, in both databases. The notation is that of common.sql.

-- name: add_output
-- Values in channels. Rows that were written before are left out of the answer.
INSERT INTO {output} (n, channel, last, count, attempt, resets, size, items)
SELECT t.n, t.channel, t.last, t.count, t.attempt, t.resets, t.size, t.items
FROM {rows: n bigint, channel text, last bigint, count integer, attempt integer, resets boolean, size integer, items text}
WHERE true ORDER BY 1, 2, 3
ON CONFLICT (n, channel, last) DO NOTHING
RETURNING n, channel, last, size, attempt

-- name: put_channels
-- How far channels are, each once.
INSERT INTO {channels} AS c (n, channel, last, size, attempt, created_at)
SELECT t.n, t.channel, t.last, t.size, t.attempt, t.created_at
FROM {rows: n bigint, channel text, last bigint, size bigint, attempt integer, created_at bigint}
WHERE true ORDER BY 1, 2
ON CONFLICT (n, channel) DO UPDATE SET last = excluded.last, size = c.size + excluded.size, attempt = excluded.attempt

-- name: channels_of
-- The channels of jobs.
SELECT c.n, c.channel, c.last, c.size, c.attempt FROM {channels} c WHERE c.n {among: n bigint}

-- name: output_states
-- Jobs with their status if they have ended, and their channels.
SELECT CAST(j.id AS text), o.status, c.channel, c.last, c.size, c.attempt
FROM {rows: id uuid} {seek: jobs j ON j.id = t.id} {seek_any: outcomes o ON o.n = j.n} {seek_any: channels c ON c.n = j.n}

-- name: output_job
-- The number of a job, its status if it has ended, and how far its channel is.
SELECT j.n, o.status, c.last
FROM {rows: id uuid, channel text} {seek: jobs j ON j.id = t.id} {seek_any: outcomes o ON o.n = j.n}
{seek_any: channels c ON c.n = j.n AND c.channel = t.channel}

-- name: output_page
-- The values after a number: the first rows, and more of them up to a size.
SELECT q.last, q.count, q.attempt, q.resets, q.items
FROM (SELECT p.last, p.count, p.attempt, p.resets, p.items, sum(p.size) OVER (ORDER BY p.last) - p.size AS before
    FROM (SELECT o.last, o.count, o.attempt, o.resets, o.items, o.size FROM {output} o
        WHERE o.n = (SELECT t.n FROM {rows: n bigint}) AND o.channel = (SELECT t.channel FROM {rows: channel text})
            AND o.last > (SELECT t.after FROM {rows: after bigint})
        ORDER BY o.last LIMIT 200) p) q
WHERE q.before < (SELECT t.most FROM {rows: most bigint}) ORDER BY q.last

-- name: reset_channels
-- The next attempt that writes to them starts over.
UPDATE {channels} SET attempt = 0 WHERE n {among: n bigint}

-- name: old_channels
-- Jobs with output that ended long ago.
SELECT c.n FROM {channels} c CROSS JOIN {outcomes} o
WHERE c.created_at <= {now} - (SELECT t.age FROM {rows: age bigint}) AND o.n = c.n
    AND o.ended_at <= {now} - (SELECT t.age FROM {rows: age bigint})
ORDER BY c.created_at LIMIT (SELECT t.top FROM {rows: top bigint})

-- name: drop_output
DELETE FROM {output} WHERE n {among: n bigint}

-- name: drop_channels
DELETE FROM {channels} WHERE n {among: n bigint}
