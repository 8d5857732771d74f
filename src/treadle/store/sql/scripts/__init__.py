"""The database work of each verb, written once for all SQL stores.

A script is a generator: it yields `(query name, rows)` and is sent the answer's rows; its return value is the verb's
answer. It does no I/O itself, so the same script runs inside asyncpg's transaction, on SQLite's writer thread, and on
the connection of a user's own transaction. A script always runs inside one transaction, and may be run again from its
start after a deadlock.

Scripts lock in one order: lease, place, keys, limits (sorted), so that two of them rarely meet. The hot paths (plain
insert, claim, completion) have separate statements in the stores.
"""

from treadle.store.sql.scripts.claim import claim
from treadle.store.sql.scripts.common import Script, not_found
from treadle.store.sql.scripts.deliveries import (
    claim_deliveries,
    poll,
    redeliver,
    settle_deliveries,
    test_delivery,
)
from treadle.store.sql.scripts.due import LOCKED_MS, advance, stop_replaced
from treadle.store.sql.scripts.follow_ups import checkpoint_and_follow_up
from treadle.store.sql.scripts.insert import insert
from treadle.store.sql.scripts.lanes import register_lanes
from treadle.store.sql.scripts.limits import then_wake
from treadle.store.sql.scripts.make_children import make_children
from treadle.store.sql.scripts.output import prune_output, write_output
from treadle.store.sql.scripts.pauses import keep_pause, pause_group
from treadle.store.sql.scripts.records import insert_with_records, write_records
from treadle.store.sql.scripts.settle import release_unknown, settle, split_lease
from treadle.store.sql.scripts.stale import mark_stale
from treadle.store.sql.scripts.steer import Steering, Undone, steer
from treadle.store.sql.scripts.steps import Answering, answer, checkpoint
from treadle.store.sql.scripts.times import times_of
from treadle.store.sql.scripts.upkeep import (
    forget,
    prune,
    reap,
    tidy,
)

__all__ = [
    "LOCKED_MS",
    "Answering",
    "Script",
    "Steering",
    "Undone",
    "advance",
    "answer",
    "checkpoint",
    "checkpoint_and_follow_up",
    "claim",
    "claim_deliveries",
    "forget",
    "insert",
    "insert_with_records",
    "keep_pause",
    "make_children",
    "mark_stale",
    "not_found",
    "pause_group",
    "poll",
    "prune",
    "prune_output",
    "reap",
    "redeliver",
    "register_lanes",
    "release_unknown",
    "settle",
    "settle_deliveries",
    "split_lease",
    "steer",
    "stop_replaced",
    "test_delivery",
    "then_wake",
    "tidy",
    "times_of",
    "write_output",
    "write_records",
]
