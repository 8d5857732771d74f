"""What steps have done, in one statement for many jobs: with a transaction of five, each step would cost twice as much."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from pydantic_core import to_json

from treadle.model.steps import LARGE_RESULT_BYTES, STEP_ENDED
from treadle.store.values import Checkpoint, StepWrite

MOST_OF_AN_ERROR = 8192
_BY_NUMBER = attrgetter("n")


def is_alike(one: Checkpoint) -> bool:
    """Whether the statement can write it: all but those that use answers or have large results."""
    return not one.consumed and all(step.result is None or len(step.result) * 4 <= LARGE_RESULT_BYTES for step in one.steps)


def checkpoint_values(lease: int, checkpoints: Sequence[Checkpoint]) -> list[Any]:
    """The parameters of `write_checkpoints`; each job once."""
    rising = sorted(checkpoints, key=_BY_NUMBER)
    messages = [one.message for one in rising]
    newest = {(one.n, step.name, step.key): step for one in rising for step in one.steps}
    return [
        lease,
        array([one.n for one in rising]),
        array([one.token for one in rising]),
        array([one.ran_ms for one in rising]),
        array([one.progress for one in rising]),
        array([one.grace_ms for one in rising]),
        messages if any(messages) else None,
        to_json([step_row(n, step) for (n, _, _), step in newest.items()]).decode(),
        array([one.n for one in rising if not one.flagged]),
    ]


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
        row["result_size"] = len(result) if result.isascii() else len(result.encode())
    if step.message is not None:
        row["message"] = step.message
    if step.until_ms is not None:
        row["wait_ms"] = step.until_ms
    if step.schema is not None:
        row["schema"] = step.schema
    if error is not None:
        row["error"] = error[-MOST_OF_AN_ERROR:]
        row["error_type"] = step.error_type
    return row


def array(values: Sequence[object]) -> str:
    """As text: the server parses it as fast as asyncpg's binary form, which takes five times as long to encode."""
    return "{" + ",".join(["null" if value is None else str(value) for value in values]) + "}"
