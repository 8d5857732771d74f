-- What was or is to be sent to whom, with each try. It goes with its job; n = 0: a test, which belongs to none.
CREATE TABLE treadle_deliveries (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    n           INTEGER NOT NULL,
    endpoint    TEXT,
    webhook_id  TEXT NOT NULL,
    event       TEXT NOT NULL,
    url         TEXT,
    status      TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    finished_at INTEGER,
    number      INTEGER,
    tries       TEXT NOT NULL,
    body        TEXT NOT NULL
);
CREATE INDEX treadle_deliveries_job ON treadle_deliveries (n);
CREATE INDEX treadle_deliveries_endpoint ON treadle_deliveries (endpoint, id);
CREATE INDEX treadle_deliveries_status ON treadle_deliveries (endpoint, status, id);
CREATE UNIQUE INDEX treadle_deliveries_number ON treadle_deliveries (endpoint, number) WHERE number IS NOT NULL;

-- The ones that are still to be delivered. `due_at`: when to send it, or until when a sender has it; null: its endpoint
-- reads it, under `number` once it was read.
CREATE TABLE treadle_outbox (
    id       INTEGER PRIMARY KEY,
    n        INTEGER NOT NULL,
    receiver TEXT NOT NULL,
    due_at   INTEGER,
    holder   TEXT,
    token    INTEGER NOT NULL,
    tried    INTEGER NOT NULL,
    number   INTEGER
);
CREATE INDEX treadle_outbox_turn ON treadle_outbox (receiver, due_at, id);
CREATE INDEX treadle_outbox_job ON treadle_outbox (n);
CREATE INDEX treadle_outbox_held ON treadle_outbox (receiver) WHERE holder IS NOT NULL;
