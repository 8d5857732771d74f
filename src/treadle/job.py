"""The job as users see it: in Python with snake_case and datetimes, in JSON with camelCase and RFC 3339."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from treadle.errors import InvalidInput
from treadle.lifecycle import ENDED, Status
from treadle.policy import Duration

if TYPE_CHECKING:
    from typing import Protocol

    class JobActions(Protocol):
        """What a job can ask its queue to do."""

        async def get(self, job_id: str) -> Job: ...
        async def cancel(self, job_id: str, reason: str = "") -> Job: ...
        async def result(self, job_id: str, timeout: Duration | None = None) -> Any: ...


_TOPIC = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The last instant that every store and JSON reader agrees on; "year 9999" stands for mistakes.
LATEST = datetime(9000, 1, 1, tzinfo=UTC)


def checked_topic(topic: str) -> str:
    if not isinstance(topic, str) or len(topic) > 100 or not _TOPIC.fullmatch(topic):
        raise InvalidInput(
            f"topic: {str(topic)[:60]!r} is not a topic; use lower-case letters, digits, _ and dots, "
            "at most 100 characters",
            field="topic",
        )
    return topic


def short_text(value: str | None, field: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= 255 or not value.isprintable():
        raise InvalidInput(f"{field}: 1 to 255 printable characters, please", field=field)
    return value


def is_job_id(value: str) -> bool:
    """Every other text is the id of no job; asking the database would be an error or a waste."""
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def to_ms(when: datetime, field_name: str = "run_at") -> int:
    """Milliseconds since the epoch; a time without a zone is refused, because it means another instant elsewhere."""
    if not isinstance(when, datetime):
        raise InvalidInput(f"{field_name}: {type(when).__name__} is not a datetime", field=field_name)
    if when.utcoffset() is None:
        raise InvalidInput(
            f"{field_name}: {when.isoformat()} has no time zone; write datetime.now(UTC) + …",
            field=field_name,
        )
    if not EPOCH <= when < LATEST:
        raise InvalidInput(f"{field_name}: {when.isoformat()} is out of range", field=field_name)
    return (when - EPOCH) // timedelta(milliseconds=1)


def from_ms(ms: int | None) -> datetime | None:
    return None if ms is None else EPOCH + timedelta(milliseconds=ms)


def rfc3339(when: datetime | None) -> str | None:
    if when is None:
        return None
    if when.tzinfo is not UTC:
        when = when.astimezone(UTC)
    return when.isoformat(timespec="milliseconds")[:-6] + "Z"


class _Twin:
    """What is missing in a twin is what its original has: a thousand jobs of one batch share what they share."""

    __slots__ = ("_original",)
    _original: Job

    if not TYPE_CHECKING:  # every name would be known

        def __getattr__(self, name: str) -> Any:
            if name not in FIELD_NAMES:
                raise AttributeError(f"a job has no {name}")
            value = [] if name == "steps" else getattr(self._original, name)
            setattr(self, name, value)
            return value


@dataclass(slots=True)
class Job(_Twin):
    """One request to run something, as it was when it was read. `refresh()` reads it again."""

    id: str
    topic: str
    status: Status
    payload: dict[str, Any]
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    stale_at: datetime | None = None
    priority: int = 50
    result_value: Any = None
    """The stored result (`result` in JSON); `await job.result()` waits for it."""
    last_error: str | None = None
    error_type: str | None = None
    progress: int = 0
    progress_message: str | None = None
    step: str | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    attempt: int = 0
    max_attempts: int = 3
    retries: int = 0
    expires_at: datetime | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    cancelled_at: datetime | None = None
    last_heartbeat_at: datetime | None = None
    locked_by: str | None = None
    locked_until: datetime | None = None
    events_count: int = 0
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    scope: str | None = None
    scope_id: str | None = None
    created_by: str | None = None
    idempotency_key: str | None = None
    capability: str | None = None
    template_version: int | None = None
    schedule_id: str | None = None
    parent_id: str | None = None
    webhook_url: str | None = None
    webhook_sent: bool | None = None
    deduplicated: bool = False
    """True on the answer to an enqueue that found this job instead of making one."""
    queue: JobActions | None = field(default=None, repr=False, compare=False)

    @property
    def max_retries(self) -> int:
        return self.max_attempts

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    async def refresh(self) -> Job:
        """The same job as it is now."""
        return await self._bound().get(self.id)

    async def cancel(self, reason: str = "") -> Job:
        return await self._bound().cancel(self.id, reason)

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait until the job has ended and return its result; JobFailed if it did not complete."""
        return await self._bound().result(self.id, timeout)

    def like(self, job_id: str, payload: dict[str, Any]) -> Job:
        """A job that differs only in id and payload. Costs a tenth of making one from all its fields."""
        twin = object.__new__(Job)
        twin.id, twin.payload = job_id, payload
        twin._original = self  # type: ignore[misc]  # its base has the slot
        return twin

    def _bound(self) -> JobActions:
        if self.queue is None:
            raise InvalidInput("this job was not read through a queue; use queue.get(job.id)")
        return self.queue

    def as_json(self) -> dict[str, Any]:
        """The job in JSON: every field there, null where there is nothing."""
        found: dict[str, Any] = dict(zip(_JSON_KEYS, _json_values(self), strict=True))
        for name in _JSON_TIMES:
            if found[name] is not None:
                found[name] = rfc3339(found[name])
        return found


def camel(name: str) -> str:
    """The name that JSON has for it."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


# The order in which a job reads best; `result` and `maxRetries` have other names in Python.
_JSON_ORDER = (
    "id topic status stale_at priority payload result last_error error_type progress progress_message step steps "
    "attempt max_attempts retries max_retries run_at expires_at created_at updated_at claimed_at started_at "
    "completed_at failed_at cancelled_at last_heartbeat_at locked_by locked_until events_count cancel_requested_at "
    "cancel_reason scope scope_id created_by idempotency_key capability template_version schedule_id parent_id "
    "webhook_url webhook_sent"
).split()
_JSON_FIELDS = [(camel(name), "result_value" if name == "result" else name) for name in _JSON_ORDER]
_JSON_KEYS = [name for name, _ in _JSON_FIELDS]
_JSON_TIMES = [name for name in _JSON_KEYS if name.endswith("At")] + ["lockedUntil"]
# All at once: several times as fast as one by one.
_json_values = attrgetter(*(attribute for _, attribute in _JSON_FIELDS))
JSON_NAMES = frozenset(_JSON_KEYS)
FIELD_NAMES = frozenset(one.name for one in fields(Job))
