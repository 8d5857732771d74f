-- What handlers emit: values in channels, numbered from 1. Each row has the values of one write.
CREATE TABLE treadle_output (
    n       INTEGER NOT NULL,
    channel TEXT NOT NULL,
    last    INTEGER NOT NULL,
    count   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    resets  INTEGER NOT NULL,
    size    INTEGER NOT NULL,
    items   TEXT NOT NULL,
    PRIMARY KEY (n, channel, last)
);

-- How far each channel is. `attempt` is the one that wrote last; 0: none since the job was requeued.
CREATE TABLE treadle_channels (
    n          INTEGER NOT NULL,
    channel    TEXT NOT NULL,
    last       INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (n, channel)
) WITHOUT ROWID;
CREATE INDEX treadle_channels_created ON treadle_channels (created_at);
