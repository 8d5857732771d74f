"""Request bodies: what clients send, as described in OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    JsonValue,
    PlainValidator,
    WithJsonSchema,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from treadle.http.bodies import MOST_ITEMS, Body
from treadle.model.durations import INT32, MAX_DURATION_MS, PRIORITIES, duration_ms
from treadle.model.errors import InvalidInput
from treadle.model.job import FOREIGN_TOPIC_PATTERN, TOPIC_PATTERN
from treadle.model.output import DEFAULT_CHANNEL
from treadle.model.webhooks import WEBHOOK_EVENTS

MOST_SUBSCRIPTIONS = 100
TopicGroup = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:*]+$", max_length=255)]
"""A topic, or a group of topics such as `mail.*`."""
TopicName = Annotated[str, Field(pattern=f"^({TOPIC_PATTERN}|{FOREIGN_TOPIC_PATTERN})$", max_length=255)]
ShortText = Annotated[str, Field(min_length=1, max_length=255)]
Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"}, max_length=64)]
# Validated in `policy`, which gives better messages; this is only the description for clients.
_DURATION = WithJsonSchema(
    {
        "description": '"30s", "5m", "2h", "1000ms", or seconds as a number; at most 100 years',
        "examples": ["15m"],
        "anyOf": [
            {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?(ms|s|m|h|d)\s*$"},
            {"type": "number", "minimum": 0, "maximum": MAX_DURATION_MS // 1000},
        ],
    }
)
DurationText = Annotated[str | int | float, _DURATION]
PriorityText = Annotated[
    str | int,
    WithJsonSchema(
        {
            "description": "a name, or a 32-bit integer",
            "examples": ["high", 75],
            "anyOf": [
                {"type": "string", "enum": list(PRIORITIES)},
                {"type": "integer", "minimum": -INT32 - 1, "maximum": INT32},
            ],
        }
    ),
]
Attempts = Annotated[int, Field(ge=1, le=1_000_000)]


Token = Annotated[
    str,
    Field(min_length=1, max_length=255),
    BeforeValidator(lambda token: str(token) if type(token) is int else token),  # a wrong token, not a wrong type
    WithJsonSchema({"description": "the job's token from the claim", "type": "string", "maxLength": 255}),
]
Object = dict[str, JsonValue]


class JobOptions(Body):
    runAt: Instant | None = None
    delay: DurationText | None = None
    expiresAt: Instant | None = None
    maxRetries: Attempts | None = Field(None, description="the job has failed for good after this many failures")
    maxAttempts: Attempts | None = Field(None, description="the same as maxRetries")
    priority: PriorityText | None = None
    capability: ShortText | None = None
    idempotencyKey: ShortText | None = None
    scope: ShortText | None = None
    scopeId: ShortText | None = None
    webhookUrl: str | None = Field(None, max_length=2000)
    track: bool | None = Field(None, description="answer a trackToken, with which anybody may follow this one job")


class EnqueueBody(JobOptions):
    topic: TopicName
    payload: Object = Field(default_factory=dict)


class DispatchBody(JobOptions):
    args: Object = Field(default_factory=dict)


class EnqueueManyBody(Body):
    # One bad job is enough to refuse the request; the others are not checked.
    jobs: Annotated[list[EnqueueBody], FailFast()] = Field(max_length=MOST_ITEMS)


class RealtimeBody(Body):
    """PocketBase's clients send more than this."""

    model_config = ConfigDict(extra="ignore")
    clientId: str = Field(min_length=1, max_length=255)
    subscriptions: list[str] = Field(
        default_factory=list,
        max_length=MOST_SUBSCRIPTIONS,
        description="jobs/* or jobs/ID; they replace the ones before",
    )


class NoBody(Body):
    """Takes no fields, so that a field sent by mistake is refused and not ignored."""


class CancelBody(Body):
    reason: str = Field("", max_length=1000)


class RequeueBody(Body):
    mode: Literal["unfinished", "all", "from"] | None = Field(None, description="unfinished by default")
    step: ShortText | None = None
    force: bool | None = Field(None, description="also requeue a completed job")
    dryRun: bool | None = Field(
        None, description="change nothing; only say whether it can be requeued, and which steps would run"
    )
    payload: dict[str, Any] | None = Field(None, description="run everything again with this payload")


class SignalBody(Body):
    step: ShortText
    key: Annotated[str, Field(max_length=255)] = Field("", description="the key of one run of the step")
    result: Any = Field(None, description="the answer; null is a valid one")
    error: Annotated[str, Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="instead of a result: the step fails with this"
    )


class DeleteBody(Body):
    force: bool | None = Field(None, description="also delete a completed job; for superusers")


class JobPatch(Body):
    runAt: Instant | None = None
    priority: PriorityText | None = None
    maxRetries: Attempts | None = None
    maxAttempts: Attempts | None = None


class BulkBody(Body):
    action: Literal["cancel", "requeue", "delete", "release", "patch"]
    filter: str = Field(min_length=1, max_length=3500)
    dryRun: bool | None = Field(None, description="only count the jobs")
    asOf: Instant | None = Field(None, description="only jobs created until then; default: now")
    background: bool = Field(False, description="answer immediately and run as an operation")
    reason: str = Field("", max_length=1000, description="for cancel")
    force: bool | None = Field(None, description="for requeue and delete: include completed jobs")
    runAt: Instant | None = Field(None, description="for patch")
    priority: PriorityText | None = Field(None, description="for patch")
    maxRetries: Attempts | None = Field(None, description="for patch")
    maxAttempts: Attempts | None = Field(None, description="the same as maxRetries")


class PauseBody(Body):
    until: Instant | None = None


# Validated by `policy/cron`, which has error codes for it.
CronText = Annotated[
    str,
    WithJsonSchema({"type": "string", "description": "five or six fields, or @daily", "examples": ["0 9 * * *"]}),
]
ZoneText = Annotated[str, WithJsonSchema({"type": "string", "examples": ["UTC", "Asia/Taipei"]})]
Jitter = Annotated[float, Field(ge=0, le=86_400, description="each job is delayed by a random time up to this")]
ScheduleId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=100)]


class ScheduleOptions(Body):
    cron: CronText | None = Field(None, description="or `every`")
    every: DurationText | None = Field(None, description="an interval of at least a second")
    startAt: Instant | None = None
    endAt: Instant | None = None
    scope: ShortText | None = None
    scopeId: ShortText | None = None


class ScheduleBody(ScheduleOptions):
    id: ScheduleId | None = Field(None, description="generated if omitted")
    topic: TopicName
    timezone: ZoneText = "UTC"
    payload: Object = Field(
        default_factory=dict, description="strings in it may contain {{scheduledAt}}, {{previousAt}} and {{scheduleId}}"
    )
    enabled: bool = True
    missed: Literal["skip", "one", "all"] = Field(
        "one", description="what to do with slots that passed while no scheduler ran"
    )
    overlap: Literal["allow", "skip", "queue"] = Field(
        "allow", description="what to do with a slot while earlier jobs have not ended"
    )
    jitterSeconds: Jitter = 0


class SchedulePatch(ScheduleOptions):
    """Omitted fields keep their value. Null clears a start, an end or a scope; elsewhere it changes nothing."""

    version: int | None = Field(None, description="the version you read; 409 if it has changed since")
    topic: TopicName | None = None
    timezone: ZoneText | None = None
    payload: Object | None = None
    enabled: bool | None = None
    missed: Literal["skip", "one", "all"] | None = None
    overlap: Literal["allow", "skip", "queue"] | None = None
    jitterSeconds: Jitter | None = None


class TemplatePatch(Body):
    """Omitted fields keep their value."""

    version: int | None = Field(None, description="the version you read; 409 if another one is current")
    enabled: bool | None = Field(None, description="kept across restarts and deploys")
    useVersion: int | None = Field(None, description="a saved version that becomes the current one")


class ClaimBody(Body):
    workerId: ShortText
    topics: list[TopicName] = Field(min_length=1, max_length=1000)
    capabilities: list[ShortText] = Field(default_factory=list, max_length=100)
    limit: int = Field(1, description="from 1 to 100")
    wait: DurationText = Field(0, description="how long to wait for a job, at most a minute")
    lease: DurationText | None = Field(None, description="5 s to 1 h; default: the server's lease")


class TokenBody(Body):
    token: Token


class HeartbeatBody(TokenBody):
    lease: DurationText | None = Field(None, description="5 s to 1 h; default: as long as the last one")


class ProgressBody(TokenBody):
    percent: float = Field(ge=0, le=100)
    message: str | None = Field(None, max_length=1000)


class OutputBody(TokenBody):
    channel: str = Field(DEFAULT_CHANNEL, max_length=100)
    values: list[JsonValue] = Field(min_length=1, max_length=10_000)


class CompleteBody(TokenBody):
    result: JsonValue = None


class FailBody(TokenBody):
    error: str = Field(min_length=1, max_length=32_000)
    fatal: bool = False


class ReleaseBody(TokenBody):
    reason: str = Field("", max_length=1000)


class SignInBody(Body):
    model_config = ConfigDict(extra="ignore")  # PocketBase's clients send more fields than this

    identity: str = Field(min_length=1, max_length=255)
    password: str = Field(min_length=1, max_length=1000)
    identityField: SkipJsonSchema[str | None] = None


class SetupBody(Body):
    token: str = Field(min_length=1, max_length=200)
    email: str = Field(min_length=3, max_length=255)
    password: str = Field(min_length=8, max_length=1000)


class JobsSettingsPatch(Body):
    enqueue_rule: str | None = Field(None, max_length=10_000)
    manage_rule: str | None = Field(None, max_length=10_000)
    access_rule: str | None = Field(None, max_length=10_000, description="sets both rules")
    http_enabled: bool | None = None
    allowed_topics: list[TopicName] | None = Field(None, max_length=1000)


def _milliseconds(value: Any) -> int:
    try:
        return duration_ms(value)
    except InvalidInput as error:
        reason = error.message.removeprefix("duration: ")
        raise PydanticCustomError("invalid_input", "{reason}", {"reason": reason}) from None


Milliseconds = Annotated[int, PlainValidator(_milliseconds), _DURATION]


class AgesPatch(Body):
    """Omitted ages keep their value; null removes one."""

    stale_after: Milliseconds | None = None
    delete_after: Milliseconds | None = None


EndedStatus = Literal["completed", "failed", "cancelled", "expired"]


class RetentionPatch(Body):
    stale_after: Milliseconds | None = Field(None, description="an ended job is stale after this time")
    delete_after: Milliseconds | None = Field(None, description="a stale job is deleted after this time")
    by_status: dict[EndedStatus, AgesPatch | None] | None = Field(
        None, description="exceptions for jobs that ended this way; null removes one"
    )
    by_topic: dict[TopicName, AgesPatch | None] | None = Field(
        None, description="exceptions for the jobs of topics, before those for statuses; null removes one"
    )
    output_after: Milliseconds | None = Field(None, description="after a job's end, its output is deleted")


_EVENTS = WithJsonSchema({"type": "array", "items": {"type": "string", "enum": list(WEBHOOK_EVENTS)}, "minItems": 1})


class EndpointPatch(Body):
    url: str | None = Field(None, max_length=2000, description="null: the endpoint reads its events itself")
    events: Annotated[list[str], _EVENTS] | None = Field(None, max_length=100, description="null: the default ones")
    topics: list[TopicName] | None = Field(None, max_length=1000, description="empty or null: all topics")
    enabled: bool | None = None
    description: str | None = Field(None, max_length=255)
    version: int | None = Field(None, description="the version you read; 409 if it has changed since")


class EndpointBody(Body):
    url: str | None = Field(max_length=2000, description="null: the endpoint reads its events itself")
    id: str | None = Field(None, pattern=r"^[a-z0-9][a-z0-9_\-]{0,62}$", description="a new one by default")
    events: Annotated[list[str], _EVENTS] | None = Field(None, max_length=100, description="null: the default ones")
    topics: list[TopicName] | None = Field(None, max_length=1000, description="empty or null: all topics")
    enabled: bool = True
    description: str = Field("", max_length=255)
    secret: str | None = Field(
        None, max_length=255, description="whsec_ and 24 to 64 bytes in base64; a new one by default"
    )


class RotateBody(Body):
    keep: DurationText | None = Field(None, description="how long the old secret signs, too; 24h by default")


class RedeliverSinceBody(Body):
    since: Instant
    undelivered: bool = Field(False, description="only what was not delivered")


class WebhooksPatch(Body):
    job_urls: bool | None = Field(None, description="users may name a webhookUrl for their jobs, too")


class SettingsPatch(Body):
    """Omitted settings keep their value; null resets a setting to its default."""

    jobs: JobsSettingsPatch | None = None
    retention: RetentionPatch | None = None
    webhooks: WebhooksPatch | None = None
    version: int | None = Field(None, description="the version you read; 409 if it has changed since")
