"""The job as users see it: snake_case and datetimes in Python, camelCase and RFC 3339 in JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from treadle.model.durations import Duration
from treadle.model.errors import InvalidInput
from treadle.model.fields import JOB_FIELDS, Field, FieldKind
from treadle.model.output import DEFAULT_CHANNEL
from treadle.model.status import ENDED, Status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
    from typing import Protocol

    from treadle.model.events import Event

    class JobActions(Protocol):
        """The methods of a queue that a job calls."""

        async def get(self, job_id: str) -> Job: ...
        async def cancel(self, job_id: str, reason: str = "") -> Job: ...
        async def requeue(self, job_id: str, *, force: bool = False) -> Job: ...
        async def signal(self, job_id: str, step: str, value: Any = None, *, error: str | None = None) -> Job: ...
        async def delete(self, job_id: str, *, force: bool = False) -> None: ...
        async def result(self, job_id: str, timeout: Duration | None = None) -> Any: ...
        async def events(self, job_id: str) -> Sequence[Event]: ...
        async def why(self, job_id: str) -> Sequence[str]: ...
        def watch(self, job_id: str) -> AsyncGenerator[Job]: ...
        def output(self, job_id: str, channel: str, *, after: int, latest: bool) -> AsyncGenerator[Any]: ...


ResultT = TypeVar("ResultT", default=Any)
JobT = TypeVar("JobT", bound="Job[Any]")

TOPIC_PATTERN = r"[a-z0-9_]+(\.[a-z0-9_]+)*"
# Integrations name topics after what their framework calls a task: `django:shop.tasks.SendMail`.
FOREIGN_TOPIC_PATTERN = r"[a-z][a-z0-9_]*:[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*"
_TOPIC = re.compile(f"(?=.{{1,100}}$){TOPIC_PATTERN}|(?=.{{1,255}}$){FOREIGN_TOPIC_PATTERN}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The last instant that every store and JSON reader supports; "year 9999" is usually a mistake.
LATEST = datetime(9000, 1, 1, tzinfo=UTC)


def checked_topic(topic: str) -> str:
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
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
        raise InvalidInput(f"{field}: use 1 to 255 printable characters", field=field)
    return value


def is_job_id(value: str) -> bool:
    """False for texts that can't be a job id; querying the database for them would fail or be wasted."""
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def to_ms(when: datetime, field_name: str = "run_at") -> int:
    """Milliseconds since the epoch. A time without a zone is refused, because it would depend on the machine."""
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


@dataclass(slots=True)
class Job(Generic[ResultT]):
    """A job at the time it was read. `refresh()` reads it again and brings this object up to date."""

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
    ended_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    cancelled_at: datetime | None = None
    last_heartbeat_at: datetime | None = None
    last_worker: str | None = None
    """The worker that ran it last; kept after the end."""
    locked_by: str | None = None
    locked_until: datetime | None = None
    events_count: int = 0
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    error_group: str | None = None
    """Equal for failures that look the same."""
    scope: str | None = None
    scope_id: str | None = None
    created_by: str | None = None
    idempotency_key: str | None = None
    capability: str | None = None
    template_version: int | None = None
    schedule_id: str | None = None
    scheduled_at: datetime | None = None
    """The slot of the schedule that created it."""
    parent_id: str | None = None
    webhook_url: str | None = None
    webhook_sent: bool | None = None
    waits_until: datetime | None = None
    """When a waiting job gives up; None: it waits as long as it takes. Not in JSON."""
    token: int | None = field(default=None, repr=False)
    """The token of its last claim; not in JSON."""
    track_hash: str | None = field(default=None, repr=False)
    """The hash of its track token; not in JSON."""
    track_token: str | None = field(default=None, repr=False, compare=False)
    """What lets others follow this job, if its enqueue had `track`. Only that enqueue returns it; not in JSON."""
    truncated: bool = False
    """True in a list whose payloads and results were too large together: this job comes without its own."""
    deduplicated: bool = False
    """True if an enqueue returned this existing job instead of creating one."""
    queue: JobActions | None = field(default=None, repr=False, compare=False)

    @property
    def max_retries(self) -> int:
        return self.max_attempts

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    async def refresh(self) -> Job[ResultT]:
        """Read the job again: this object shows its current state, and so does the returned one."""
        return self._updated(await self._bound().get(self.id))

    async def cancel(self, reason: str = "") -> Job[ResultT]:
        """See `Queue.cancel`."""
        return await self._bound().cancel(self.id, reason)

    async def requeue(self, *, force: bool = False) -> Job[ResultT]:
        """See `Queue.requeue`."""
        return await self._bound().requeue(self.id, force=force)

    async def signal(self, step: str, value: Any = None, *, error: str | None = None) -> Job[ResultT]:
        """See `Queue.signal`."""
        return await self._bound().signal(self.id, step, value, error=error)

    async def delete(self, *, force: bool = False) -> None:
        """See `Queue.delete`."""
        await self._bound().delete(self.id, force=force)

    async def result(self, timeout: Duration | None = None) -> ResultT:
        """Wait until the job has ended and return its result; JobFailed if it did not complete."""
        found: ResultT = await self._bound().result(self.id, timeout)
        return found

    async def events(self) -> Sequence[Event]:
        """See `Queue.events`."""
        return await self._bound().events(self.id)

    async def why(self) -> Sequence[str]:
        """See `Queue.why`."""
        return await self._bound().why(self.id)

    def watch(self) -> AsyncGenerator[Job[ResultT]]:
        """See `Queue.watch`."""
        return self._bound().watch(self.id)

    def output(self, channel: str = DEFAULT_CHANNEL, *, after: int = 0, latest: bool = False) -> AsyncGenerator[Any]:
        """See `Queue.output`."""
        return self._bound().output(self.id, channel, after=after, latest=latest)

    def _updated(self, now: JobT) -> JobT:
        for name in _READ:
            setattr(self, name, getattr(now, name))
        self.steps = [dict(step) for step in now.steps]
        return now

    def _bound(self) -> JobActions:
        if self.queue is None:
            raise InvalidInput("this job was not read through a queue; use queue.get(job.id)")
        return self.queue

    def as_json(self) -> dict[str, Any]:
        """The job in JSON, with every field; null if it has no value."""
        found: dict[str, Any] = dict(zip(_JSON_KEYS, _json_values(self), strict=True))
        for name in _JSON_TIMES:
            if found[name] is not None:
                found[name] = rfc3339(found[name])
        if self.truncated:
            found |= {"payload": None, "result": None, "truncated": True}
        return found

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job[ResultT]:
        """The inverse of `as_json`."""
        values: dict[str, Any] = {}
        for one in JOB_FIELDS:
            value, attribute = data[one.json], one.attribute or one.name
            if one.kind is FieldKind.DATE and value is not None:
                value = datetime.fromisoformat(value)
            if attribute in FIELD_NAMES:
                values[attribute] = value
        return cls(**{**values, "status": Status(values["status"])})


def reads(columns: Sequence[Field]) -> Callable[[Iterable[Any]], dict[str, Any]]:
    """How to read a job's attributes from the values that a store keeps of these fields."""
    names = [column.name for column in columns]
    converted = [(column.name, read) for column in columns if (read := _reader(column))]

    def read_all(values: Iterable[Any]) -> dict[str, Any]:
        found = dict(zip(names, values, strict=True))
        for name, read in converted:
            if found[name] is not None:
                found[name] = read(found[name])
        return found

    return read_all


def _reader(column: Field) -> Callable[[Any], Any] | None:
    """Converts a value that is not kept as people see it."""
    if column.kind is FieldKind.DATE:
        return from_ms
    return bool if column.type is bool else None


# All in one update: several times as fast as setting them one by one.
_JSON_KEYS = [field.json for field in JOB_FIELDS]
_JSON_TIMES = [field.json for field in JOB_FIELDS if field.kind is FieldKind.DATE]
_json_values = attrgetter(*(field.attribute or field.name for field in JOB_FIELDS))
FIELD_NAMES = frozenset(one.name for one in fields(Job))
# What a read tells; the others belong to the object.
_READ = FIELD_NAMES - {"steps", "deduplicated", "queue", "track_token"}
