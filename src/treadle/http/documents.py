"""Response bodies: what clients get, as described in OpenAPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from treadle.model.fields import JOB_FIELDS, FieldKind
from treadle.model.fields import Field as JobField
from treadle.model.status import Status
from treadle.model.steps import StepState


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
    result: Any = Field(description="null above 64 KiB; read it at /api/jobs/{id}/steps/{step}")
    resultSize: int | None = Field(description="in bytes")
    key: str | None
    items: StepItems | None = Field(description="the runs of a step that has keys")


class StepRunDocument(StepDocument):
    answerSchema: dict[str, Any] | None = Field(description="of a waiting step: the JSON schema of its answer")
    waitsUntil: Time | None
    childId: str | None = Field(description="the job that this run waits for, or has its result from")


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

    class ForeignJob(Document): ...
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
    EnqueuedDocument = create_model(
        "EnqueuedDocument",
        __base__=JobDocument,
        __cls_kwargs__={"json_schema_serialization_defaults_required": False},
        deduplicated=(bool, ...),
        trackToken=(
            str | None,
            Field(None, description="there if the request has track; null if an existing job stands for the new one"),
        ),
    )
    ForeignJob = create_model(
        "ForeignJob",
        __base__=Document,
        __doc__="A live job that stands for the new one, and that the caller may not see.",
        __cls_kwargs__={"json_schema_serialization_defaults_required": False},
        **{field.json: (None, ...) for field in JOB_FIELDS},
        deduplicated=(Literal[True], ...),
        trackToken=(None, Field(None, description="there if the request has track")),
    )
    ClaimedDocument = create_model("ClaimedDocument", __base__=JobDocument, token=(str, ...))


class ListedJob(JobDocument):
    """A job of a list. Once the payloads and results of a page have 8 MiB, the others come without theirs."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)
    payload: dict[str, Any] | None
    truncated: bool = Field(False, description="there and true if payload and result were left out")


class JobPage(Document):
    items: list[ListedJob]
    totalItems: int
    totalCapped: bool = Field(description="there are more matches than totalItems")
    searched: int | None = Field(
        description="payload, result or steps were only searched in this many of the newest jobs; null: in all"
    )
    limit: int
    offset: int
    page: int
    perPage: int
    totalPages: int


class AnsweredStep(Document):
    """For callers who may answer a step but not see its job."""

    id: str
    status: Status
    step: str


class SignalAnswer(RootModel[JobDocument | AnsweredStep]): ...


class EnqueuedAnswer(RootModel[EnqueuedDocument | ForeignJob]): ...


class EnqueuedList(Document):
    items: list[EnqueuedDocument | ForeignJob]


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
    totalItems: int
    limit: int
    offset: int


class ChannelDocument(Document):
    channel: str
    values: int = Field(description="how many it has; the number of the last one")
    bytes: int = Field(description="of their JSON")


class ChannelList(Document):
    items: list[ChannelDocument]


class OutputValueDocument(Document):
    id: int = Field(description="its number in the channel, from 1")
    attempt: int = Field(description="the attempt that emitted it")
    reset: bool = Field(description="a new attempt began to write: the values before are out of date")
    value: Any


class OutputPageDocument(Document):
    items: list[OutputValueDocument]
    next: int = Field(description="send it as `after` for the next page")
    more: bool = Field(description="there are more values already")
    ended: bool = Field(description="the job has ended, so no further values come after these")


class StreamEvent(Document):
    """One server-sent event: `job:…` {event, at, job}, `snapshot` {jobs}, `resync` {event, at} or `ping` {at}. Of an
    output: `value` with the value, `reset` {attempt} or `end` {status}."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)
    event: str
    data: Annotated[str, Field(json_schema_extra={"contentMediaType": "application/json"})]
    id: str = Field("", description="increases with every event; send it as Last-Event-ID to resume")
    retry: int = Field(0, description="milliseconds until an EventSource connects again; at the end of an output")


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


class TemplateRetentionDocument(Document):
    staleAfterSeconds: float | None
    deleteAfterSeconds: float | None


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
    secret: list[str] = Field(description="payload fields that only handlers see")
    stepResultLimit: int | None = Field(description="bytes that a step's result may have; null: as many as a payload")
    retention: TemplateRetentionDocument | None = Field(
        description="how long ended jobs are kept; null: by the settings"
    )
    finalStates: list[Status] = Field(description="in which a job of this topic has ended; always the same")
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


class AgesDocument(Document):
    stale_after: str | None
    delete_after: str | None


class RetentionDocument(Document):
    stale_after: str
    delete_after: str
    output_after: str
    by_status: dict[str, AgesDocument]
    by_topic: dict[str, AgesDocument]


class EndpointEventDocument(Document):
    at: str
    type: Literal["warned", "disabled", "enabled"]
    message: str


class EndpointDocument(Document):
    id: str
    url: str | None = Field(description="null: it reads its events itself")
    events: list[str]
    topics: list[str] = Field(description="empty: all")
    enabled: bool
    description: str
    disabledReason: str | None = Field(description="why it was disabled, if nobody did it on purpose")
    failingSince: Time | None
    lastDeliveredAt: Time | None
    lastFailedAt: Time | None
    previousSecretUntil: Time | None = Field(description="until then both secrets sign")
    warnings: list[EndpointEventDocument] = Field(description="the newest, oldest first")
    version: int
    createdAt: Time
    updatedAt: Time


class NewEndpointDocument(EndpointDocument):
    secret: str = Field(description="shown only here")
    key: str | None = Field(description="reads the events of an endpoint without a URL; shown only here")
    hints: list[str] = Field(description="what may be a mistake")


class EndpointList(Document):
    items: list[EndpointDocument]


class AttemptDocument(Document):
    at: str
    status: int | None = Field(description="of the answer; null: there was none, and error says why")
    error: str | None
    durationMs: int
    answer: str = Field(description="how its body begins")


class DeliveryDocument(Document):
    id: str
    webhookId: str
    endpointId: str | None = Field(description="null: the URL that the job names")
    jobId: str | None = Field(description="null: a test")
    topic: str | None
    event: str
    url: str | None
    status: Literal["pending", "delivered", "failed"]
    createdAt: str
    finishedAt: Time | None
    nextTryAt: Time | None
    attempts: list[AttemptDocument]


class DeliveryList(Document):
    items: list[DeliveryDocument]
    next: str | None = Field(description="`after` for the next page; null: there are no more")


class RedeliveredDocument(Document):
    redelivered: int


class PolledEventDocument(Document):
    id: str
    type: str
    timestamp: str
    data: dict[str, Any]


class PolledEventList(Document):
    items: list[PolledEventDocument]
    next: int = Field(description="`after` for the next call, which acknowledges these")


class WebhooksSettingsDocument(Document):
    job_urls: bool


class SettingsDocument(Document):
    jobs: JobsSettingsDocument
    retention: RetentionDocument
    webhooks: WebhooksSettingsDocument
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
