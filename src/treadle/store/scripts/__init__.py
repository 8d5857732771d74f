"""What a verb does to the database, written once for all SQL stores.

A script is a generator: it yields `(query name, rows)` and is sent the answer's rows; what it
returns is the verb's answer. It does no I/O itself, so the same script runs inside asyncpg's
transaction, on SQLite's writer thread, and on whatever connection a user's own transaction has.
A script always runs inside one transaction, and may be run again from its start after a deadlock.

Scripts lock in one order: lease, place, keys, gates (sorted), so that two of them rarely meet.
The hot paths (plain insert, claim, completing) have statements of their own in the stores.
"""

from treadle.store.scripts.common import Script, not_found
from treadle.store.scripts.inserting import insert
from treadle.store.scripts.lanes import register_lanes
from treadle.store.scripts.maintenance import (
    end_overdue_cancels,
    expire_overdue,
    promote,
    prune,
    reclaim,
    save_templates,
    tidy,
)
from treadle.store.scripts.requests import cancel, delete, release, requeue, reschedule
from treadle.store.scripts.running import claim, release_unknown, settle, touch

__all__ = [
    "Script",
    "cancel",
    "claim",
    "delete",
    "end_overdue_cancels",
    "expire_overdue",
    "insert",
    "not_found",
    "promote",
    "prune",
    "reclaim",
    "register_lanes",
    "release",
    "release_unknown",
    "requeue",
    "reschedule",
    "save_templates",
    "settle",
    "tidy",
    "touch",
]
