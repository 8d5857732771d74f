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

from treadle.model.steps import STEP_ENDED, shown_step
from treadle.policy.history import end_of, step_metadata
from treadle.store.sql.queries import Query
from treadle.store.sql.scripts.common import numbers
from treadle.store.values import Checkpoint, StepWrite

# A statement for so many rows at most: SQLite keeps one prepared for each number.
ROWS = 64
_EACH = re.compile(r"/\*each\*/(.*?)/\*end\*/", re.S)


def checkpoint(
    db: sqlite3.Connection, queries: dict[str, Query], lease: int, checkpoints: Sequence[Checkpoint]
) -> bool:
    """Each job once. False, and no step is written, if any of them is lost."""
    held = db.execute(queries["keep_lease"].sql, (to_json([{"lease": lease}]).decode(),)).fetchone()
    if held is None:
        return False
    now: int = held[1]
    for first in range(0, len(checkpoints), ROWS):
        if not _touch(db, queries, checkpoints[first : first + ROWS], lease, now):
            return False
    if new := [one.n for one in checkpoints if not one.flagged]:
        db.execute(queries["flag_steps"].sql, (to_json(numbers(new)).decode(),))
    newest = {(one.n, step.name, step.key): step for one in checkpoints for step in one.steps}
    rows = [(n, step) for (n, _, _), step in newest.items()]
    for first in range(0, len(rows), ROWS):
        _write(db, queries, rows[first : first + ROWS], now)
    return True


def _touch(
    db: sqlite3.Connection, queries: dict[str, Query], checkpoints: Sequence[Checkpoint], lease: int, now: int
) -> bool:
    """Whether all of these jobs are still there."""
    values: list[Any] = [now, now]
    for one in checkpoints:
        values += (one.n, one.token, one.ran_ms, one.progress, one.message, one.grace_ms)
    sql = _repeated(queries["touch_checkpoints"].sql, len(checkpoints))
    return db.execute(sql, (*values, lease)).rowcount == len(checkpoints)


def _write(db: sqlite3.Connection, queries: dict[str, Query], steps: Sequence[tuple[int, StepWrite]], now: int) -> None:
    values: list[Any] = []
    told: list[Any] = []
    for n, step in steps:
        values += _values(n, step, now)
        if step.told:
            told += (n, shown_step(step.name, step.key), _metadata(step), now)
    db.execute(_repeated(queries["write_steps"].sql, len(steps)), values)
    if told:
        db.execute(_repeated(queries["tell_steps"].sql, len(told) // 4), told)


def _values(n: int, step: StepWrite, now: int) -> tuple[Any, ...]:
    """The parameters of `write_steps`. The results are small."""
    ago, wait_ms = step.started_ago_ms, step.until_ms
    return (
        n,
        step.name,
        step.key,
        step.place,
        step.state,
        step.attempt,
        step.progress,
        step.message,
        None if ago is None else now - ago,
        n,  # whose start is looked up
        now if step.state in STEP_ENDED else None,
        step.ran_ms,
        None if wait_ms is None else now + wait_ms,
        None if step.error is None else end_of(step.error),
        step.error_type,
        step.result,
        step.result_size,
        step.input_hash,
        step.title,
        step.schema,
        step.item,
    )


def _metadata(step: StepWrite) -> str:
    return to_json(step_metadata(step.name, step.key, step.attempt, step.started_ago_ms, None)).decode()


@cache
def _repeated(sql: str, count: int) -> str:
    """The statement for so many rows."""
    return _EACH.sub(lambda row: ", ".join([row[1].strip()] * count), sql)
