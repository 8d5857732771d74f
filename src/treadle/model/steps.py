"""Steps of a job: their states, their limits, and what a template says about the declared ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from treadle.model.durations import seconds, shown
from treadle.model.errors import InvalidInput, TooManySteps

MAX_NAMES = 200
MAX_ROWS = 100_000
MAX_NAME = 255
MAX_KEY = 255
# A larger result is kept apart, so that lists and a job's document don't carry it.
LARGE_RESULT_BYTES = 65_536
STEP_TIMEOUT_MS = 600_000
# A step's retry that is due sooner is waited for in its slot.
WAIT_IN_PLACE_MS = 30_000
PYTHON = "python"
SLEEP = "sleep"
"""The name of the steps that `ctx.sleep` makes."""


class StepState(StrEnum):
    PENDING = "pending"
    PROCESSING = "processing"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


DONE = frozenset({StepState.COMPLETED, StepState.SKIPPED})
"""Never run again, unless a requeue says so."""
STEP_ENDED = DONE | {StepState.FAILED, StepState.CANCELLED}


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A declared step, as the template keeps it."""

    name: str
    title: str = ""
    external: bool = False
    """It has no code here: it waits for an answer."""
    timeout_ms: int | None = STEP_TIMEOUT_MS
    """None: an answer is waited for as long as it takes."""
    cancelable: bool = True
    result_schema: Mapping[str, Any] | None = None
    answer_schema: Mapping[str, Any] | None = None
    answer_rule: str | None = None
    """Who may answer; None: everybody who may manage the job."""
    after: tuple[str, ...] | None = None
    """The steps that it comes after; None: the one declared before it."""
    map: str | None = None
    """It runs once for each item of the list that this step returned."""
    limit: int | None = None
    """How many of the items run at the same time at most."""

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "name": self.title or self.name,
            "workerType": None if self.external else PYTHON,
            "timeoutSeconds": None if self.timeout_ms is None else seconds(self.timeout_ms / 1000),
            "cancelable": self.cancelable,
            "resultSchema": self.result_schema,
            "answerSchema": self.answer_schema,
            "answerRule": self.answer_rule,
            "after": None if self.after is None else list(self.after),
            "map": self.map,
            "limit": self.limit,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepSpec:
        limit_s = data.get("timeoutSeconds")
        return cls(
            name=data["id"],
            title=data["name"],
            external=data.get("workerType") is None,
            timeout_ms=None if limit_s is None else round(limit_s * 1000),
            cancelable=data.get("cancelable", True),
            result_schema=data.get("resultSchema"),
            answer_schema=data.get("answerSchema"),
            answer_rule=data.get("answerRule"),
            after=None if data.get("after") is None else tuple(data["after"]),
            map=data.get("map"),
            limit=data.get("limit"),
        )


def checked_name(name: Any) -> str:
    """The name of a step; nested ones are `outer/inner`."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
        raise InvalidInput(
            f"step: {shown(name)!r} is not a step's name; use 1 to {MAX_NAME} printable characters", field="step"
        )
    return name


MAX_PATH_BYTES = 1500
"""Of a nested name as a whole: an index entry of PostgreSQL has room for it beside the longest key."""


def checked_path(path: Any) -> str:
    """The name of a step with those of the steps around it."""
    if not isinstance(path, str) or not path or not path.isprintable() or len(path.encode()) > MAX_PATH_BYTES:
        message = f"step: {shown(path)!r} is not a step's name, or it is nested too deep for a name of 1,500 bytes"
        raise InvalidInput(message, field="step")
    return path


_ESCAPES = re.compile("%(?=2F|25)")


def escaped(name: str) -> str:
    """A name in which a slash stands for nothing: `outer/inner` is the step inner in the step outer."""
    return _ESCAPES.sub("%25", name).replace("/", "%2F")


def is_sleep(name: str) -> bool:
    """Whether `ctx.sleep` made this step, unless a template declares it."""
    return name.rpartition("/")[2] == SLEEP


def checked_key(key: Any) -> str:
    """The key of one run of a step: a text or a whole number."""
    if isinstance(key, int) and not isinstance(key, bool):
        key = shown(key)
    if not isinstance(key, str) or len(key) > MAX_KEY or (key and not key.isprintable()):
        raise InvalidInput(
            f"key: {shown(key)!r} is not a step's key; use a number or at most {MAX_KEY} printable characters",
            field="key",
        )
    return key


def check_count(names: int, rows: int) -> None:
    if names > MAX_NAMES:
        raise TooManySteps(f"a job has at most {MAX_NAMES} steps; tell runs of one step apart by key=")
    if rows > MAX_ROWS:
        raise TooManySteps(f"a job has at most {MAX_ROWS:,} runs of steps; split the work into several jobs")


def pending_step(name: str, title: str) -> dict[str, Any]:
    """A declared step of a new job, as people see it."""
    return {
        "id": name,
        "name": title,
        "status": StepState.PENDING.value,
        "progress": 0,
        "message": None,
        "attempt": 0,
        "startedAt": None,
        "completedAt": None,
        "error": None,
        "result": None,
        "resultSize": None,
        "key": None,
        "items": None,
    }


def find(steps: Sequence[StepSpec], name: str) -> StepSpec | None:
    return next((one for one in steps if one.name == name), None)


def shown_step(name: str, key: str = "") -> str:
    """A step in a message."""
    return f"{name} ({key})" if key else name
