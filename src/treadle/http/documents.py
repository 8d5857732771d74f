"""Request and response bodies, as described in OpenAPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    JsonValue,
    PlainValidator,
    WithJsonSchema,
    create_model,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from treadle.http.bodies import MOST_ITEMS, Body
from treadle.model.durations import INT32, MAX_DURATION_MS, PRIORITIES, duration_ms
from treadle.model.errors import InvalidInput
from treadle.model.fields import JOB_FIELDS, FieldKind
from treadle.model.fields import Field as JobField
from treadle.model.status import Status
from treadle.model.steps import StepState

# -- what clients send ---------------------------------------------------------------------------

TopicName = Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$", max_length=100)]
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


def _number(token: Any) -> Any:
    return int(token) if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 20 else token


# Strings in responses, because JavaScript numbers would lose digits.
Token = Annotated[
    int,
    Field(ge=1, lt=2**63),
    BeforeValidator(_number),
    WithJsonSchema(
        {
            "description": "what the claim gave for this job",
            "anyOf": [
                {"type": "string", "pattern": "^[1-9][0-9]{0,17}$"},
                {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
            ],
        }
    ),
]
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
    # One bad job is enough to refuse the request; the others are not checked.
    jobs: Annotated[list[EnqueueBody], FailFast()] = Field(max_length=MOST_ITEMS)


class NoBody(Body):
    """Takes no fields, so that a field sent by mistake is refused and not ignored."""


class CancelBody(Body):
    reason: str = Field("", max_length=1000)


class RequeueBody(Body):
    mode: Literal["unfinished", "all", "from"] | None = Field(None, description="unfinished by default")
    step: ShortText | None = None
    force: bool | None = Field(None, description="a completed job too")
    dryRun: bool | None = Field(None, description="only say whether it could be, and which steps would run")
    payload: dict[str, Any] | None = Field(None, description="run everything again with this payload")


class SignalBody(Body):
    step: ShortText
    key: Annotated[str, Field(max_length=255)] = Field("", description="of one run of the step")
    result: Any = Field(None, description="the answer; null is one, too")
    error: Annotated[str, Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="instead of a result: the step fails with this"
    )


class DeleteBody(Body):
    force: bool | None = Field(None, description="a completed job too, for superusers")


class JobPatch(Body):
    runAt: Instant | None = None
    priority: PriorityText | None = None
    maxRetries: Attempts | None = None
    maxAttempts: Attempts | None = None


class BulkBody(Body):
    action: Literal["cancel", "requeue", "delete", "release", "patch"]
    filter: str = Field(min_length=1, max_length=3500)
    dryRun: bool | None = Field(None, description="only count them")
    asOf: Instant | None = Field(None, description="only jobs that were created until then; now if it is not given")
    background: bool = Field(False, description="answer immediately and run as an operation")
    reason: str = Field("", max_length=1000, description="for cancel")
    force: bool | None = Field(None, description="for requeue and delete: completed jobs too")
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
Jitter = Annotated[int, Field(ge=0, le=86_400, description="jobs are delayed by up to so many seconds")]
ScheduleId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=100)]


class ScheduleOptions(Body):
    cron: CronText | None = Field(None, description="or `every`")
    every: DurationText | None = Field(None, description="an interval of at least a second")
    startAt: Instant | None = None
    endAt: Instant | None = None
    scope: ShortText | None = None
    scopeId: ShortText | None = None


class ScheduleBody(ScheduleOptions):
    id: ScheduleId | None = Field(None, description="made up if none is given")
    topic: TopicName
    timezone: ZoneText = "UTC"
    payload: Object = Field(
        default_factory=dict, description="texts in it may hold {{scheduledAt}}, {{previousAt}} and {{scheduleId}}"
    )
    enabled: bool = True
    missed: Literal["skip", "one", "all"] = Field("one", description="slots that passed while no scheduler ran")
    overlap: Literal["allow", "skip", "queue"] = Field("allow", description="a slot while earlier jobs have not ended")
    jitterSeconds: Jitter = 0


class SchedulePatch(ScheduleOptions):
    """Omitted fields keep their value. Null clears a start, an end or a scope; elsewhere it changes nothing."""

    version: int | None = Field(None, description="the one that was read; 409 if it is another one by now")
    topic: TopicName | None = None
    timezone: ZoneText | None = None
    payload: Object | None = None
    enabled: bool | None = None
    missed: Literal["skip", "one", "all"] | None = None
    overlap: Literal["allow", "skip", "queue"] | None = None
    jitterSeconds: Jitter | None = None


class TemplatePatch(Body):
    """Omitted fields keep their value."""

    version: int | None = Field(None, description="the one that was read; 409 if another one is current by now")
    enabled: bool | None = Field(None, description="stands over restarts and deploys")
    useVersion: int | None = Field(None, description="a saved version that becomes the current one")


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


class RetentionPatch(Body):
    stale_after: Milliseconds | None = None
    delete_after: Milliseconds | None = None


class WebhooksPatch(Body):
    """Empty for now; it lets clients send back what GET returned."""


class SettingsPatch(Body):
    """Omitted settings keep their value; null resets a setting to its default."""

    jobs: JobsSettingsPatch | None = None
    retention: RetentionPatch | None = None
    webhooks: WebhooksPatch | None = None
    version: int | None = Field(None, description="the one that was read; 409 if it is another one by now")


# -- what they get -------------------------------------------------------------------------------


class Document(BaseModel):
    """All fields are always present."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


_BOUNDS: dict[str, Any] = {"progress": Annotated[int, Field(ge=0, le=100)]}


def _of_table(field: JobField) -> Any:
    if field.name == "steps":
        return list[StepDocument]
    found = _BOUNDS.get(field.name, Time if field.kind is FieldKind.DATE else field.type)
    return found if field.always else found | None


class StepItems(Document):
    total: int
    done: int
    failed: int


class StepDocument(Document):
    id: str = Field(description="the declared name")
    name: str = Field(description="its title")
    status: StepState
    progress: int
    message: str | None
    attempt: int
    startedAt: Time | None
    completedAt: Time | None
    error: str | None
    result: Any = Field(description="null above 64 KiB: read it at /api/jobs/{id}/steps/{step}")
    resultSize: int | None = Field(description="in bytes")
    key: str | None
    items: StepItems | None = Field(description="the runs of a step that has keys")


class StepRunDocument(StepDocument):
    answerSchema: dict[str, Any] | None = Field(description="of a step that waits: what an answer has to look like")
    waitsUntil: Time | None


class StepPageDocument(Document):
    items: list[StepRunDocument]
    totalItems: int
    limit: int
    offset: int


if TYPE_CHECKING:

    class JobDocument(Document): ...

    class RequeuedDocument(JobDocument): ...

    class EnqueuedDocument(JobDocument): ...

    class ClaimedDocument(JobDocument): ...
else:
    _FIELDS = {field.json: (_of_table(field), ...) for field in JOB_FIELDS}
    JobDocument = create_model("JobDocument", __base__=Document, **_FIELDS)
    RequeuedDocument = create_model(
        "RequeuedDocument",
        __base__=JobDocument,
        wouldRun=(
            list[str] | None,
            Field(..., description="with dryRun: the steps that would run again; null otherwise"),
        ),
    )
    EnqueuedDocument = create_model("EnqueuedDocument", __base__=JobDocument, deduplicated=(bool, ...))
    ClaimedDocument = create_model("ClaimedDocument", __base__=JobDocument, token=(str, ...))


class JobPage(Document):
    items: list[JobDocument]
    totalItems: int
    totalCapped: bool = Field(description="there are more than totalItems")
    searched: int | None = Field(
        description="only so many jobs were looked into for payload, result or steps, the newest; null: all of them"
    )
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
    operationId: str | None


class OperationDocument(Document):
    id: str
    action: str
    filter: str
    asOf: Time
    state: Literal["running", "done", "stopped"]
    expected: int
    changed: int
    refused: int
    percent: int
    createdBy: str
    createdAt: Time
    updatedAt: Time


class OperationList(Document):
    items: list[OperationDocument]


class TopicDocument(Document):
    topic: str
    paused: bool
    pausedUntil: Time | None
    pending: int
    processing: int


class TopicList(Document):
    items: list[TopicDocument]


class ScheduleDocument(Document):
    id: str
    topic: str
    cron: str | None
    every: str | None
    startAt: Time | None
    endAt: Time | None
    timezone: str
    payload: dict[str, Any]
    scope: str | None
    scopeId: str | None
    createdBy: str | None
    createdAt: Time
    updatedAt: Time
    version: int
    enabled: bool
    missed: str
    overlap: str
    jitterSeconds: float
    nextRunAt: Time | None
    lastRunAt: Time | None
    lastJobId: str | None
    description: str = Field(description="when it runs, in words")
    next: list[Time] = Field(description="the next five runs")
    source: str | None = Field(description="the file of the code that defines it")
    problem: str | None = Field(description="why it makes no jobs")


class ScheduleList(Document):
    items: list[ScheduleDocument]


class ScheduleEventDocument(Document):
    type: str
    message: str
    createdAt: Time


class ScheduleEventList(Document):
    items: list[ScheduleEventDocument]


class CancelPolicyDocument(Document):
    supported: bool
    mode: Literal["cooperative", "kill"]
    graceSeconds: float


class RetryPolicyDocument(Document):
    maxAttempts: int
    backoffSeconds: list[float]


class TemplateRateDocument(Document):
    n: int
    perSeconds: float


class TemplateDocument(Document):
    topic: str
    version: int
    name: str = Field(description="the title")
    description: str
    enabled: bool
    repeatable: bool
    concurrencyPolicy: Literal["allow", "reject_same_scope", "queue_same_scope", "replace_same_scope"]
    concurrencyKeys: list[str]
    concurrencyLimit: int | None
    rate: TemplateRateDocument | None
    dedupeKeys: list[str]
    idempotencyKey: str | None
    capability: str | None
    priority: int
    timeoutSeconds: float
    expiresSeconds: float | None
    cancelPolicy: CancelPolicyDocument
    retryPolicy: RetryPolicyDocument
    steps: list[dict[str, Any]]
    payloadSchema: dict[str, Any] | None
    resultSchema: dict[str, Any] | None
    schedulable: bool
    createdAt: Time
    updatedAt: Time


class TemplateList(Document):
    items: list[TemplateDocument]


class TemplateVersionDocument(TemplateDocument):
    current: bool = Field(description="whether new jobs get this version")


class TemplateVersionList(Document):
    items: list[TemplateVersionDocument]


class WorkerDocument(Document):
    name: str
    topics: list[str]
    capabilities: list[str]
    slots: int
    running: int
    lockedUntil: Time
    draining: bool
    host: str
    version: str


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
    version: int


class AccountDocument(BaseModel):
    """A user or superuser; a user's extra fields are at the same level."""

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
