-- What handlers emit: values in channels, numbered from 1. Each row has the values of one write.
CREATE TABLE treadle.output (
    n       bigint NOT NULL,
    channel text COLLATE "C" NOT NULL,
    last    bigint NOT NULL,
    count   integer NOT NULL,
    attempt integer NOT NULL,
    resets  boolean NOT NULL,
    size    integer NOT NULL,
    items   text NOT NULL,
    PRIMARY KEY (n, channel, last)
);

-- How far each channel is. `attempt` is the one that wrote last; 0: none since the job was requeued.
CREATE TABLE treadle.channels (
    n          bigint NOT NULL,
    channel    text COLLATE "C" NOT NULL,
    last       bigint NOT NULL,
    size       bigint NOT NULL,
    attempt    integer NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (n, channel)
) WITH (fillfactor = 70);
CREATE INDEX channels_created ON treadle.channels (created_at);
