"""From what a caller asks for to what the store keeps, and back: everything about a new job that needs no store.

What all jobs of a batch share (the topic's template, the options) is checked once, in an `Order`;
what differs from job to job is the payload and the id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json
from uuid_utils import uuid7

from treadle.errors import InvalidInput, TemplateDisabled
from treadle.handler import Handler
from treadle.job import Job, from_ms, short_text, to_ms
from treadle.lifecycle import Status
from treadle.payload import dumps_object
from treadle.policy import Duration, Priority, duration_ms, priority_value
from treadle.store.base import Gate, NewJob
from treadle.template import Template, checked_capability, evaluate_key

if TYPE_CHECKING:
    from treadle.queue import Queue


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One entry of a mixed `enqueue_many`: a topic, a payload, and any option of `enqueue`."""

    topic: str
    payload: Any = None
    options: Mapping[str, Any] | None = None


class Order:
    """The same options for any number of payloads of one topic."""

    def __init__(
        self,
        template: Template,
        handler: Handler | None,
        version: int | None,
        *,
        run_at: datetime | None = None,
        delay: Duration | None = None,
        priority: Priority | None = None,
        max_attempts: int | None = None,
        max_retries: int | None = None,
        idempotency_key: str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        created_by: str | None = None,
        capability: str | None = None,
        expires_at: datetime | None = None,
        expires: Duration | None = None,
    ) -> None:
        if not template.enabled:
            raise TemplateDisabled(f"the template of {template.topic} is disabled", topic=template.topic)
        if run_at is not None and delay is not None:
            raise InvalidInput("give run_at or delay, not both", field="run_at")
        if expires_at is not None and expires is not None:
            raise InvalidInput("give expires_at or expires, not both", field="expires_at")
        if expires is None and expires_at is None:
            expires = template.expires
        self._template = template
        self._keyed = bool(template.idempotency_key or template.dedupe_keys or template.concurrency)
        self._made: Job | None = None
        self._made_at = 0
        self._text = _writer(template, handler)
        self._shared = NewJob(
            id="",
            topic=template.topic,
            payload="",
            priority=priority_value(template.priority if priority is None else priority),
            capability=checked_capability(template.capability if capability is None else capability) or "",
            max_attempts=_attempts(template, max_attempts, max_retries),
            run_at=None if run_at is None else to_ms(run_at),
            delay_ms=0 if delay is None else duration_ms(delay, "delay"),
            expires_at=None if expires_at is None else to_ms(expires_at, "expires_at"),
            expires_in_ms=None if expires is None else duration_ms(expires, "expires"),
            scope=short_text(scope, "scope"),
            scope_id=short_text(scope_id, "scope_id"),
            created_by=short_text(created_by, "created_by"),
            idempotency_key=short_text(idempotency_key, "idempotency_key"),
            template_version=version,
        )

    def jobs(self, payloads: Iterable[Any]) -> list[NewJob]:
        topic, *shared = self._shared.shape
        text = self._text
        made = [NewJob(str(uuid7()), topic, text(payload), *shared) for payload in payloads]
        return [_with_keys(job, self._template) for job in made] if self._keyed else made

    def made_alone(self, job: NewJob, at: int, queue: Queue) -> Job:
        """The only one as users see it, made at that time."""
        made = _as_job(job, at, queue)
        made.id, made.payload = job.id, from_json(job.payload)
        return made

    def made(self, job: NewJob, at: int, queue: Queue) -> Job:
        """One of many as users see it: what they share is kept once."""
        if self._made is None or self._made_at != at:
            self._made, self._made_at = _as_job(self._shared, at, queue), at
        twin = self._made.like(job.id, from_json(job.payload))
        if self._keyed:
            twin.idempotency_key = job.idempotency_key
        return twin


def _as_job(job: NewJob, at: int, queue: Queue) -> Job:
    """All but id and payload."""
    created = from_ms(at) or datetime.now(UTC)
    due = at + job.delay_ms if job.run_at is None else job.run_at
    expires = job.expires_at if job.expires_in_ms is None else at + job.expires_in_ms
    return Job(
        id="",
        topic=job.topic,
        status=Status.PENDING,
        payload={},
        run_at=created if due == at else from_ms(due) or created,
        created_at=created,
        updated_at=created,
        priority=job.priority,
        max_attempts=job.max_attempts,
        expires_at=from_ms(expires),
        events_count=1,
        scope=job.scope,
        scope_id=job.scope_id,
        created_by=job.created_by,
        idempotency_key=job.idempotency_key,
        capability=job.capability or None,
        template_version=job.template_version,
        queue=queue,
    )


def _writer(template: Template, handler: Handler | None) -> Callable[[Any], str]:
    """From a payload to the text that is stored: checked by the handler's type, or by the schema that it saved."""
    if handler is not None:
        return handler.payload_text
    if template.payload_schema is None:
        return dumps_object
    from treadle.schema import payload_writer  # not needed, and not loaded, where the handlers are

    return payload_writer(template.topic, template.payload_schema)


# -- checks --------------------------------------------------------------------------------------


def _attempts(template: Template, max_attempts: int | None, max_retries: int | None) -> int:
    if max_attempts is not None and max_retries is not None:
        raise InvalidInput("give max_attempts or max_retries, not both: they say the same", field="max_retries")
    if max_attempts is not None:
        return checked_attempts(max_attempts, "max_attempts")
    if max_retries is not None:
        return checked_attempts(max_retries, "max_retries")
    return template.retry.max_attempts


def checked_attempts(given: int, field: str = "max_attempts") -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= 1_000_000:
        raise InvalidInput(f"{field}: {str(given)[:40]!r} is not between 1 and 1,000,000", field=field)
    return given


# -- keys ----------------------------------------------------------------------------------------


def _with_keys(job: NewJob, template: Template) -> NewJob:
    """Evaluate the template's key expressions on the payload."""
    payload = from_json(job.payload)

    def values(expressions: Iterable[str]) -> str:
        found = [evaluate_key(one, payload, job.scope, job.scope_id) for one in expressions]
        return to_json([job.topic, *found]).decode()

    key = job.idempotency_key
    if key is None and template.idempotency_key:
        key = _key_text(evaluate_key(template.idempotency_key, payload, job.scope, job.scope_id))
    gate = None
    if template.concurrency and template.concurrency.policy != "allow":
        expressions = template.concurrency.keys or ("scope", "scope_id")
        gate = Gate(_hashed(values(expressions)), template.concurrency.policy, template.concurrency.limit)
    return job._replace(
        idempotency_key=key,
        dedupe_key=_hashed(values(template.dedupe_keys)) if template.dedupe_keys else None,
        repeatable=template.repeatable,
        gate=gate,
    )


def _key_text(value: Any) -> str:
    text = value if isinstance(value, str) else to_json(value).decode()
    return text if 1 <= len(text) <= 255 and text.isprintable() else hashlib.sha256(text.encode()).hexdigest()


def _hashed(text: str) -> str:
    """Keys of any length fit an index entry; short ones stay readable."""
    return text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest()
