"""What steps have done, in one statement for many jobs. A transaction of five statements takes twice as long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from pydantic_core import to_json

from treadle.model.steps import STEP_ENDED, shown_step
from treadle.policy.history import end_of, step_metadata
from treadle.store.sql.queries import Query
from treadle.store.sql.scripts.times import times_of
from treadle.store.values import HAS_STEPS, Checkpoint, Settlement, StepWrite

_BY_NUMBER = attrgetter("n")


def statement(queries: Mapping[str, Query], name: str) -> str:
    """A statement with its parts."""
    sql = queries[name].sql
    for part in ("step_writes", "completions"):
        sql = sql.replace(f"/*{part}*/", queries[part].sql)
    return sql


def checkpoint_values(lease: int, checkpoints: Sequence[Checkpoint]) -> list[Any]:
    """The parameters of `write_checkpoints`; each job once."""
    rising = sorted(checkpoints, key=_BY_NUMBER)
    messages = [one.message for one in rising]
    return [
        lease,
        array([one.n for one in rising]),
        array([one.token for one in rising]),
        array([one.ran_ms for one in rising]),
        array([one.progress for one in rising]),
        _steps([(one.n, one.steps) for one in rising]),
        array([one.n for one in rising if not one.flagged]),
        array([one.grace_ms for one in rising]),
        messages if any(messages) else None,
    ]


def settlement_values(lease: int, settlements: Sequence[Settlement]) -> list[Any]:
    """The parameters of `settle_flows`; each job once, by rising number."""
    topics = list(dict.fromkeys([one.job.topic for one in settlements]))
    effects = [(one.job, one.effects.steps if one.effects else ()) for one in settlements]
    return [
        lease,
        array([one.job.n for one in settlements]),
        array([one.job.token for one in settlements]),
        array([one.ran_ms for one in settlements]),
        to_json(times_of(settlements, 0, lease)).decode(),  # the statement knows the minute
        _steps([(job.n, steps) for job, steps in effects]),
        array([job.n for job, steps in effects if steps and not job.flags & HAS_STEPS]),
        topics,
        array([topics.index(one.job.topic) + 1 for one in settlements]),
        to_json([one.transition.result for one in settlements]).decode(),
    ]


def _steps(writes: Sequence[tuple[int, Sequence[StepWrite]]]) -> str:
    newest = {(n, step.name, step.key): step for n, steps in writes for step in steps}
    return to_json([step_row(n, step) for (n, _, _), step in newest.items()]).decode()


def step_row(n: int, step: StepWrite) -> dict[str, Any]:
    """Without what it does not have. Times are counted from the statement's clock."""
    result, error = step.result, step.error
    row: dict[str, Any] = {
        "n": n,
        "name": step.name,
        "key": step.key,
        "place": step.place,
        "state": step.state,
        "attempt": step.attempt,
        "progress": step.progress,
        "ago": step.started_ago_ms,
        "ended": step.state in STEP_ENDED,
        "ran_ms": step.ran_ms,
        "input_hash": step.input_hash,
        "title": step.title,
    }
    if result is not None:
        row["result"] = result
        row["result_size"] = step.result_size
    if step.message is not None:
        row["message"] = step.message
    if step.until_ms is not None:
        row["wait_ms"] = step.until_ms
    if step.schema is not None:
        row["schema"] = step.schema
    if step.item is not None:
        row["item"] = step.item
    if error is not None:
        row["error"] = end_of(error)
        row["error_type"] = step.error_type
    if step.told:
        row["told"] = shown_step(step.name, step.key)
        row["facts"] = step_metadata(step.name, step.key, step.attempt, step.started_ago_ms, None)
    return row


def array(values: Sequence[object]) -> str:
    """As text: the server parses it as fast as asyncpg's binary form, which takes five times as long to encode."""
    return "{" + ",".join(["null" if value is None else str(value) for value in values]) + "}"
