"""What goes over the wire: the bodies that clients send and the answers that they get, as OpenAPI tells them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PlainValidator, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from treadle.errors import InvalidInput
from treadle.http.bodies import Body
from treadle.lifecycle import Status
from treadle.policy import INT32, MAX_DURATION_MS, PRIORITIES, duration_ms

# -- what clients send ---------------------------------------------------------------------------

TopicName = Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$", max_length=100)]
ShortText = Annotated[str, Field(min_length=1, max_length=255)]
Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"}, max_length=64)]
# Checked where they are understood (`policy`), which also says better what is wrong; this is what clients are told.
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
            "description": "a name, or an integer of 32 bits",
            "examples": ["high", 75],
            "anyOf": [
                {"type": "string", "enum": list(PRIORITIES)},
                {"type": "integer", "minimum": -INT32 - 1, "maximum": INT32},
            ],
        }
    ),
]
Attempts = Annotated[int, Field(ge=1, le=1_000_000)]
Token = Annotated[int, Field(ge=1, lt=2**63, description="what the claim gave for this job")]
Object = dict[str, JsonValue]


class JobOptions(Body):
    runAt: Instant | None = None
    delay: DurationText | None = None
    expiresAt: Instant | None = None
    maxRetries: Attempts | None = Field(None, description="the job is dead at so many failures")
    maxAttempts: Attempts | None = Field(None, description="the same as maxRetries")
    priority: PriorityText | None = None
    capability: ShortText | None = None
    idempotencyKey: ShortText | None = None
    scope: ShortText | None = None
    scopeId: ShortText | None = None
    webhookUrl: str | None = Field(None, max_length=2000)


class EnqueueBody(JobOptions):
    topic: TopicName
    payload: Object = Field(default_factory=dict)


class DispatchBody(JobOptions):
    args: Object = Field(default_factory=dict)


class EnqueueManyBody(Body):
    jobs: list[EnqueueBody] = Field(max_length=10_000)


class CancelBody(Body):
    reason: str = Field("", max_length=1000)


class RequeueBody(Body):
    mode: Literal["unfinished", "all", "from"] = "unfinished"
    step: ShortText | None = None


class JobPatch(Body):
    runAt: Instant | None = None
    priority: PriorityText | None = None
    maxRetries: Attempts | None = None
    maxAttempts: Attempts | None = None


class BulkBody(Body):
    action: Literal["cancel", "requeue", "delete", "release", "patch"]
    filter: str = Field(min_length=1, max_length=3500)
    dryRun: bool = False
    reason: str = Field("", max_length=1000, description="for cancel")
    force: bool = Field(False, description="for requeue and delete: completed jobs too")
    runAt: Instant | None = Field(None, description="for patch")
    priority: PriorityText | None = Field(None, description="for patch")
    maxRetries: Attempts | None = Field(None, description="for patch")


class PauseBody(Body):
    until: Instant | None = None


class ClaimBody(Body):
    workerId: ShortText
    topics: list[TopicName] = Field(min_length=1, max_length=1000)
    capabilities: list[ShortText] = Field(default_factory=list, max_length=100)
    limit: int = Field(1, description="from 1 to 100")
    wait: DurationText = Field(0, description="how long to wait for a job, at most a minute")


class TokenBody(Body):
    token: Token


class ProgressBody(TokenBody):
    percent: float = Field(ge=0, le=100)
    message: str | None = Field(None, max_length=1000)


class CompleteBody(TokenBody):
    result: JsonValue = None


class FailBody(TokenBody):
    error: str = Field(min_length=1, max_length=32_000)
    fatal: bool = False


class ReleaseBody(TokenBody):
    reason: str = Field("", max_length=1000)


class SignInBody(Body):
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
    http_enabled: bool | None = None
    allowed_topics: list[TopicName] | None = Field(None, max_length=1000)


def _milliseconds(value: Any) -> int:
    try:
        return duration_ms(value)
    except InvalidInput as error:
        reason = error.message.removeprefix("duration: ")
        raise PydanticCustomError("invalid_input", "{reason}", {"reason": reason}) from None


Milliseconds = Annotated[int, PlainValidator(_milliseconds), _DURATION]


class RetentionPatch(Body):
    stale_after: Milliseconds | None = None
    delete_after: Milliseconds | None = None


class WebhooksPatch(Body):
    """Nothing yet; here so that what GET answers can be sent back."""


class SettingsPatch(Body):
    """What is not given stays as it is; null for a setting goes back to its default."""

    jobs: JobsSettingsPatch | None = None
    retention: RetentionPatch | None = None
    webhooks: WebhooksPatch | None = None


# -- what they get -------------------------------------------------------------------------------


class Document(BaseModel):
    """All its fields are always there."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class JobDocument(Document):
    id: str
    topic: str
    status: Status
    staleAt: Time | None
    priority: int
    payload: dict[str, Any]
    result: Any
    lastError: str | None
    errorType: str | None
    progress: int = Field(ge=0, le=100)
    progressMessage: str | None
    step: str | None
    steps: list[dict[str, Any]]
    attempt: int
    maxAttempts: int
    retries: int
    maxRetries: int
    runAt: Time
    expiresAt: Time | None
    createdAt: Time
    updatedAt: Time
    claimedAt: Time | None
    startedAt: Time | None
    completedAt: Time | None
    failedAt: Time | None
    cancelledAt: Time | None
    lastHeartbeatAt: Time | None
    lockedBy: str | None
    lockedUntil: Time | None
    eventsCount: int
    cancelRequestedAt: Time | None
    cancelReason: str | None
    scope: str | None
    scopeId: str | None
    createdBy: str | None
    idempotencyKey: str | None
    capability: str | None
    templateVersion: int | None
    scheduleId: str | None
    parentId: str | None
    webhookUrl: str | None
    webhookSent: bool | None


class EnqueuedDocument(JobDocument):
    deduplicated: bool


class ClaimedDocument(JobDocument):
    token: int


class JobPage(Document):
    items: list[JobDocument]
    totalItems: int
    totalCapped: bool
    limit: int
    offset: int
    page: int
    perPage: int
    totalPages: int


class EnqueuedList(Document):
    items: list[EnqueuedDocument]


class ClaimedList(Document):
    items: list[ClaimedDocument]


class StatsDocument(Document):
    pending: int
    processing: int
    waiting: int
    cancelling: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    successRate: float | None
    avgExecutionTime: float | None
    topics: dict[str, dict[str, int]]


class EventDocument(Document):
    id: int | None
    jobId: str
    type: str
    from_: str | None = Field(alias="from")
    to: str | None
    message: str
    metadata: dict[str, Any]
    createdAt: Time


class EventList(Document):
    items: list[EventDocument]


class StreamEvent(Document):
    """One server-sent event: `job:…` {event, at, job}, `snapshot` {jobs}, `resync` {event, at} or `ping` {at}."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)
    event: str
    data: Annotated[str, Field(json_schema_extra={"contentMediaType": "application/json"})]
    id: str = Field("", description="rises; Last-Event-ID takes it")


class WhyDocument(Document):
    id: str
    status: Status
    reasons: list[str]


class BulkDocument(Document):
    action: str
    dryRun: bool
    matched: int
    changed: int
    refused: int


class TopicDocument(Document):
    topic: str
    paused: bool
    pausedUntil: Time | None
    pending: int
    processing: int


class TopicList(Document):
    items: list[TopicDocument]


class WorkerDocument(Document):
    name: str
    topics: list[str]
    capabilities: list[str]
    slots: int
    running: int
    lockedUntil: Time


class WorkerList(Document):
    items: list[WorkerDocument]


class HoldDocument(Document):
    lockedUntil: Time
    cancelRequested: bool


class JobsSettingsDocument(Document):
    enqueue_rule: str
    manage_rule: str
    http_enabled: bool
    allowed_topics: list[str]


class RetentionDocument(Document):
    stale_after: str
    delete_after: str


class SettingsDocument(Document):
    jobs: JobsSettingsDocument
    retention: RetentionDocument
    webhooks: dict[str, Any]


class AccountDocument(BaseModel):
    """A user or superuser; a user's own fields stand beside these."""

    model_config = ConfigDict(extra="allow")
    id: str
    collectionId: str
    collectionName: str
    email: str
    emailVisibility: bool
    verified: bool
    created: str
    updated: str


class SignedIn(Document):
    token: str
    record: AccountDocument


class Health(Document):
    message: str
    code: int
    data: dict[str, Any]


class ErrorDocument(Document):
    status: int
    code: str
    message: str
    data: dict[str, Any]
