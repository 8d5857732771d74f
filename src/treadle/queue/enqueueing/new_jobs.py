"""Converts between what callers ask for and what the store keeps: all about a new job that needs no store.

What the jobs of a batch share (the topic's template, the options) is checked once, in a `JobMaker`. Only the payload
and the id differ from job to job.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from pydantic_core import from_json, to_json
from uuid_utils import uuid7

from treadle.model import tracking
from treadle.model.durations import Duration, Priority, duration_ms, priority_value
from treadle.model.errors import InvalidInput, InvalidPayload, TemplateDisabled
from treadle.model.fields import GIVEN_FIELDS, Given
from treadle.model.handler import Handler
from treadle.model.job import Job, from_ms, reads, short_text, to_ms
from treadle.model.keys import WHOLE_PAYLOAD, evaluate_key
from treadle.model.payload import dumps_object
from treadle.model.secrets import HIDDEN, Path, hide, is_hidden, secret_paths
from treadle.model.status import Status
from treadle.model.steps import pending_step
from treadle.model.template import Template, checked_capability
from treadle.policy.admission import Limit
from treadle.queue.on_behalf import may_replace
from treadle.store.values import NewJob, NewStep

if TYPE_CHECKING:
    from treadle.queue import Queue


class EnqueueOptions(TypedDict, total=False):
    """The options of every `enqueue`."""

    run_at: datetime | None
    delay: Duration | None
    priority: Priority | None
    max_attempts: int | None
    max_retries: int | None
    """The same number under its name in the HTTP API: the job fails for good after this many failures."""
    idempotency_key: str | None
    key_owner: str | None
    """The owner of the idempotency key. Equal keys of different owners don't collide."""
    scope: str | None
    scope_id: str | None
    created_by: str | None
    capability: str | None
    expires_at: datetime | None
    expires: Duration | None
    track: bool | None
    """Make a token that lets others follow this one job: `job.track_token`."""
    webhook_url: str | None
    """Is told of the job's end and retries, in place of the queue's URL."""
    parent_id: str | None
    """The job that it is a child of; `ctx.enqueue` sets it."""
    connection: Any


# Names from other queues.
_OTHER_NAMES = {
    "countdown": "delay",
    "eta": "run_at",
    "retries": "max_attempts",
    "ttl": "expires",
    "job_id": "idempotency_key",
    "task_id": "idempotency_key",
    "worker_capability": "capability",
    "user_id": "scope_id",
}
# What the enqueue of another queue takes, and a job here has from elsewhere.
ELSEWHERE = {
    **dict.fromkeys(("timeout", "job_timeout", "time_limit", "soft_time_limit"), "use @queue.job(timeout=…)"),
    **dict.fromkeys(("retry", "retry_policy"), "use @queue.job(retry=Retry(…))"),
    **dict.fromkeys(("on_success", "on_failure"), "use @queue.job(on_failure=…)"),
    **dict.fromkeys(("depends_on", "link", "chain"), "use the steps of a flow, queue.flow(…)"),
    **dict.fromkeys(("args", "kwargs"), "give the arguments themselves"),
}


class TopicOwner:
    """A task or a flow: it can be given in place of its topic."""

    topic: str


def topic_of(topic: str | TopicOwner) -> str:
    if isinstance(topic, TopicOwner):
        return topic.topic
    if callable(topic):
        name = getattr(topic, "__name__", repr(topic))
        raise InvalidInput(f"topic: {name} is a function, not a task; put @queue.job on it", field="topic")
    return topic


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One entry of a mixed `enqueue_many`: a topic, a task or a flow, a payload, and any option of `enqueue`."""

    topic: str | TopicOwner
    payload: Any = None
    options: Mapping[str, Any] | None = None


class JobMaker:
    """One set of options for any number of payloads of one topic."""

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
        key_owner: str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        created_by: str | None = None,
        capability: str | None = None,
        expires_at: datetime | None = None,
        expires: Duration | None = None,
        track: bool | None = None,
        webhook_url: str | None = None,
        parent_id: str | None = None,
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
        self._timeless: tuple[Any, ...] = ()
        self._common: tuple[Any, ...] = ()
        """Of jobs that are stored at `_made_at`."""
        self._made_at = -1
        self._tokens: dict[str, str] | None = {} if checked_flag(track, "track") else None
        """The track tokens of the new jobs, by id. Only their hashes are stored."""
        self._secret = secret_paths(template.secret)
        self._text = _writer(template, handler, self._secret)
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
            key_owner=key_owner,
            secret=self._secret,
            given=Given(
                template_version=version,
                scope=short_text(scope, "scope"),
                scope_id=short_text(scope_id, "scope_id"),
                created_by=short_text(created_by, "created_by"),
                idempotency_key=short_text(idempotency_key, "idempotency_key"),
                webhook_url=webhook_url,
                parent_id=short_text(parent_id, "parent_id"),
            ),
            steps=tuple(NewStep(step.name, step.title or step.name, step.after) for step in template.steps),
        )
        self._other_fields = self._shared[3:-1]
        """All but id, topic, payload and trace."""

    def text(self, payload: Any) -> str:
        """A payload as stored, validated."""
        return self._text(payload)

    def again(self, job: Job, payload: Any) -> NewJob:
        """An existing job with another payload, which brings its own keys. A key that its caller chose stays."""
        made = NewJob(job.id, self._shared.topic, self._text(payload), *self._other_fields)
        key = None if self._template.idempotency_key else job.idempotency_key
        made = made._replace(
            given=made.given._replace(
                scope=job.scope, scope_id=job.scope_id, created_by=job.created_by, idempotency_key=key
            )
        )
        return _with_keys(made, self._template) if self._keyed else made

    def jobs(self, payloads: Iterable[Any]) -> list[NewJob]:
        topic, shared, text = self._shared.topic, self._other_fields, self._text
        made = [NewJob(str(uuid7()), topic, text(payload), *shared) for payload in payloads]
        if self._tokens is not None:
            made = [_tracked(job, self._tokens) for job in made]
        return [_with_keys(job, self._template) for job in made] if self._keyed else made

    def made(self, job: NewJob, at: int, queue: Queue) -> Job:
        """A new job as users see it, stored at that time; what the jobs of a maker share is worked out once."""
        if self._made_at != at:
            self._common, self._made_at = self._common_at(at, queue), at
        payload = from_json(job.payload)
        shown = hide(payload, self._secret) if self._secret else payload
        made = Job(job.id, job.topic, Status.PENDING, shown, *self._common)
        if self._keyed:
            made.idempotency_key = job.given.idempotency_key
        if job.steps:
            made.steps = _pending(job)
        if self._tokens is not None:
            made.track_token = self._tokens.pop(job.id)
        return made

    def _common_at(self, at: int, queue: Queue) -> tuple[Any, ...]:
        """All arguments of `Job` from `run_at` on."""
        if not self._timeless or self._shared.expires_in_ms is not None:
            self._timeless = _timeless(_as_job(self._shared, at, queue))
        created, due = from_ms(at), self._shared.due(at)
        return (created if due == at else from_ms(due), created, created, *self._timeless)


def _tracked(job: NewJob, tokens: dict[str, str]) -> NewJob:
    token = tokens[job.id] = tracking.new_token()
    return job._replace(given=job.given._replace(track_hash=tracking.hash_of(token)))


def _pending(job: NewJob) -> list[dict[str, Any]]:
    return [pending_step(step.name, step.title) for step in job.steps]


_given = attrgetter(*(field.name for field in GIVEN_FIELDS))
_shown = reads(GIVEN_FIELDS)
# The arguments of `Job` after the three times.
_timeless = attrgetter(*(field.name for field in fields(Job)[7:]))


class ReadyMaker(NamedTuple):
    """The job maker of a topic without options, valid while the handler and its saved version stay the same."""

    maker: JobMaker
    handler: Handler | None
    own_version: int | None


def _as_job(job: NewJob, at: int, queue: Queue) -> Job:
    """Everything except id and payload."""
    created = from_ms(at) or datetime.now(UTC)
    due = job.due(at)
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
        capability=job.capability or None,
        steps=_pending(job),
        queue=queue,
        **_shown(_given(job.given)),
    )


def _writer(template: Template, handler: Handler | None, secret: Sequence[Path]) -> Callable[[Any], str]:
    """Converts a payload to the stored text, validated by the handler's type or by the saved schema."""
    write = _plain_writer(template, handler, secret)
    return _with_secrets(write, secret) if secret else write


def _plain_writer(template: Template, handler: Handler | None, secret: Sequence[Path]) -> Callable[[Any], str]:
    if handler is not None:
        return handler.payload_text
    if template.payload_schema is None:
        return dumps_object
    from treadle.model.schema import payload_writer  # not needed, and not loaded, in processes that have the handlers

    return payload_writer(template.topic, template.payload_schema, secret)


def _with_secrets(write: Callable[[Any], str], secret: Sequence[Path]) -> Callable[[Any], str]:
    """Refuses a payload that was read from a job, in which asterisks stand for the secrets."""

    def checked(payload: Any) -> str:
        text = write(payload)
        for path in secret:
            if is_hidden(from_json(text), path):
                named = ".".join(("payload", *path))
                raise InvalidPayload(f"{named}: {HIDDEN} stands for a secret; give its value", field=named)
        return text

    return checked


# -- checks --------------------------------------------------------------------------------------


class UnknownOption(InvalidInput, TypeError):
    """An unknown option, with the message that Python would give."""


def checked_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse unknown names: a misspelled option that is ignored would go unnoticed for a long time."""
    for name in options:
        if name not in EnqueueOptions.__annotations__:
            hint = hint_for(name)
            raise UnknownOption(f"{name}: enqueue has no such option{hint and f'; {hint}'}", field=name)
    return options


def hint_for(name: str) -> str:
    """What to use in the place of an unknown option; empty if that is unknown, too."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    near = _OTHER_NAMES.get(name) or "".join(difflib.get_close_matches(name, EnqueueOptions.__annotations__, 1))
    return near and f"use {near}="


def option_named(name: str) -> str | None:
    """The option with this name here or in another queue."""
    return name if name in EnqueueOptions.__annotations__ else _OTHER_NAMES.get(name)


def merged(first: EnqueueOptions, then: EnqueueOptions) -> EnqueueOptions:
    return cast(EnqueueOptions, {**first, **checked_options(then)}) if then else first


def _attempts(template: Template, max_attempts: int | None, max_retries: int | None) -> int:
    if max_attempts is not None and max_retries is not None:
        raise InvalidInput("give max_attempts or max_retries, not both: they mean the same", field="max_retries")
    if max_attempts is not None:
        return checked_attempts(max_attempts, "max_attempts")
    if max_retries is not None:
        return checked_attempts(max_retries, "max_retries")
    return template.retry.max_attempts


def checked_flag(given: Any, field: str) -> bool:
    if given is not None and not isinstance(given, bool):
        raise InvalidInput(f"{field}: {str(given)[:40]!r} is not true or false", field=field)
    return bool(given)


def checked_attempts(given: int, field: str = "max_attempts") -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= 1_000_000:
        hint = "; it counts failures until the job has failed for good, so 1 is one run" if given == 0 else ""
        raise InvalidInput(f"{field}: {str(given)[:40]!r} is not between 1 and 1,000,000{hint}", field=field)
    return given


# -- keys ----------------------------------------------------------------------------------------

# Clients make keys like this only to repeat a request safely; the template's own key says more about the job.
ONCE = "once:"


def _with_keys(job: NewJob, template: Template) -> NewJob:
    """Evaluate the template's key expressions on the payload."""
    payload = from_json(job.payload)
    given = job.given

    def values(expressions: Iterable[str]) -> str:
        found = [evaluate_key(one, payload, given.scope, given.scope_id) for one in expressions]
        return to_json([job.topic, *found]).decode()

    key = given.idempotency_key
    if template.idempotency_key and (key is None or key.startswith(ONCE)):
        key = _idempotency_key(template.idempotency_key, payload, job)
    limit = None
    if template.concurrency and template.concurrency.policy != "allow":
        expressions = template.concurrency.keys or ("scope", "scope_id")
        limit = Limit(_hashed(values(expressions)), template.concurrency.policy, template.concurrency.limit)
    return job._replace(
        given=given if key is None else given._replace(idempotency_key=key),
        dedupe_key=_hashed(values(template.dedupe_keys)) if template.dedupe_keys else None,
        repeatable=template.repeatable,
        limit=limit,
        cancelable=template.cancel.supported,
        may_replace=may_replace() if limit else True,
    )


def _idempotency_key(expression: str, payload: dict[str, Any], job: NewJob) -> str:
    if expression == WHOLE_PAYLOAD:  # the order of its members does not matter
        return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()
    value = evaluate_key(expression, payload, job.given.scope, job.given.scope_id)
    if value is None:  # distinct from the text "null"
        return hashlib.sha256(b"\0null").hexdigest()
    text = value if isinstance(value, str) else to_json(value).decode()
    return text if 1 <= len(text) <= 255 and text.isprintable() else hashlib.sha256(text.encode()).hexdigest()


def _hashed(text: str) -> str:
    """Hash long keys so that they fit in an index entry; short ones stay readable."""
    return text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest()
