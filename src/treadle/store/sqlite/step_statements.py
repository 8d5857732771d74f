"""What steps have done, on the writer's connection inside its transaction: one statement for each table.

The rows are parameters of it. The JSON text in which plain jobs travel (`hot.py`) takes three times as long for rows as
wide as these.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic_core import to_json

from treadle.model.steps import shown_step
from treadle.policy.history import step_metadata
from treadle.store.sql.queries import Query
from treadle.store.sql.scripts.common import numbers
from treadle.store.sql.scripts.steps import step_row
from treadle.store.values import Checkpoint, StepWrite

# Of SQLite's 32,766 parameters a step takes 20.
ROWS = 1000
_EACH = re.compile(r"/\*each\*/(.*?)/\*end\*/", re.S)


def checkpoint(
    db: sqlite3.Connection, queries: dict[str, Query], lease: int, checkpoints: Sequence[Checkpoint]
) -> bool:
    """Each job once. False, and no step is written, if any of them is lost."""
    held = db.execute(queries["keep_lease"].sql, (to_json([{"lease": lease}]).decode(),)).fetchone()
    if held is None or len(checkpoints) > ROWS:
        return False
    now: int = held[1]
    touches: list[Any] = []
    for one in checkpoints:
        touches += (one.n, one.token, one.ran_ms, one.progress, one.message, one.grace_ms)
    sql = _repeated(queries["touch_checkpoints"].sql, len(checkpoints))
    if db.execute(sql, (now, now, *touches, lease)).rowcount != len(checkpoints):
        return False
    if new := [one.n for one in checkpoints if not one.flagged]:
        db.execute(queries["flag_steps"].sql, (to_json(numbers(new)).decode(),))
    newest = {(one.n, step.name, step.key): step for one in checkpoints for step in one.steps}
    rows = [(n, step) for (n, _, _), step in newest.items()]
    for first in range(0, len(rows), ROWS):
        _write(db, queries, rows[first : first + ROWS], now)
    return True


def _write(db: sqlite3.Connection, queries: dict[str, Query], steps: Sequence[tuple[int, StepWrite]], now: int) -> None:
    values: list[Any] = []
    told: list[Any] = []
    for n, step in steps:
        row = list(step_row(n, step, now).values())
        row.insert(_STARTED_AT + 1, n)  # whose start is looked up
        values += row
        if step.told:
            told += (n, shown_step(step.name, step.key), _metadata(step), now)
    db.execute(_repeated(queries["write_steps"].sql, len(steps)), values)
    if told:
        db.execute(_repeated(queries["tell_steps"].sql, len(told) // 4), told)


_STARTED_AT = 8


def _metadata(step: StepWrite) -> str:
    return to_json(step_metadata(step.name, step.key, step.attempt, step.started_ago_ms, None)).decode()


@cache
def _repeated(sql: str, count: int) -> str:
    """The statement for so many rows. SQLite keeps each of them prepared."""
    return _EACH.sub(lambda row: ", ".join([row[1].strip()] * count), sql)
