"""The fields of a job, one line each: all that Python, JSON, OpenAPI, filters, sorts, rules and stores need.

What a job is given when it is made and keeps unchanged is a line of `Given`, and a line of `JOB_FIELDS` if people see
it. Stores make their columns, parameters and filters from these two. The other fields follow from what happened to the
job; each store computes them (`store/sql/rows.py` and `where.py`), and tests compare that with this table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from treadle.model.status import Status


class Given(NamedTuple):
    """What a new job is given and keeps unchanged: a column of the same name each, null if it has none.

    The first ones travel on the short way of plain jobs, so each of them costs every enqueue a little.
    """

    template_version: int | None = None
    scope: str | None = None
    scope_id: str | None = None
    created_by: str | None = None
    release: str | None = None
    """Of the code that enqueued it."""

    idempotency_key: str | None = None
    """From here on: a job that has one of these is not plain."""
    schedule_id: str | None = None
    scheduled_at: int | None = None
    """Times are milliseconds since the epoch."""
    parent_id: str | None = None
    """The job that it is a child of, for a step with a key, in a generation: how often that job began anew."""
    parent_step: str | None = None
    parent_key: str | None = None
    parent_generation: int | None = None
    webhook_url: str | None = None
    track_hash: str | None = None
    """The hash of a token that may follow this job. No API shows it."""


NOTHING_GIVEN = Given()
PLAIN = Given._fields.index("idempotency_key")
"""How many of them a plain job may have."""


class FieldKind(Enum):
    TEXT = "text"
    """Absent means the empty text, as in a PocketBase column."""
    DATE = "date"
    """RFC 3339 text, UTC, milliseconds. Absent means the empty text, which sorts before every date."""
    NUMBER = "number"
    """Includes true and false as 1 and 0. Absent means null."""
    DOCUMENT = "document"
    """JSON, reached by paths."""


class Field(NamedTuple):
    name: str
    """The name in Python."""
    kind: FieldKind
    type: Any = str
    """The type of its JSON value, if it has one."""
    always: bool = False
    """Never null."""
    new: Any = None
    """The value in a job that is about to be created; None if the request, its template or the clock determines it."""
    attribute: str = ""
    """The attribute of `Job`, if it differs from the name."""
    later: bool = False
    """A column that a new job leaves empty."""

    @property
    def json(self) -> str:
        return camel(self.name)


def camel(name: str) -> str:
    """The JSON name of a field."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


_TEXT, _DATE, _NUMBER, _DOCUMENT = FieldKind.TEXT, FieldKind.DATE, FieldKind.NUMBER, FieldKind.DOCUMENT

# In the most readable order.
JOB_FIELDS: Sequence[Field] = (
    Field("id", _TEXT, always=True, new="new"),
    Field("topic", _TEXT, always=True),
    Field("status", _TEXT, Status, always=True, new=Status.PENDING.value),
    Field("stale_at", _DATE),
    Field("priority", _NUMBER, int, always=True),
    Field("payload", _DOCUMENT, dict[str, Any], always=True),
    Field("result", _DOCUMENT, Any, attribute="result_value"),
    Field("last_error", _TEXT),
    Field("error_type", _TEXT),
    Field("progress", _NUMBER, int, always=True, new=0),
    Field("progress_message", _TEXT),
    Field("step", _TEXT),
    Field("steps", _DOCUMENT, list[dict[str, Any]], always=True, new=[]),
    Field("attempt", _NUMBER, int, always=True, new=0),
    Field("max_attempts", _NUMBER, int, always=True),
    Field("retries", _NUMBER, int, always=True, new=0),
    Field("max_retries", _NUMBER, int, always=True),
    Field("run_at", _DATE, always=True),
    Field("expires_at", _DATE),
    Field("created_at", _DATE, always=True),
    Field("updated_at", _DATE, always=True),
    Field("scheduled_at", _DATE),
    Field("claimed_at", _DATE),
    Field("started_at", _DATE),
    Field("ended_at", _DATE),
    Field("completed_at", _DATE),
    Field("failed_at", _DATE),
    Field("cancelled_at", _DATE),
    Field("last_heartbeat_at", _DATE),
    Field("last_worker", _TEXT),
    Field("locked_by", _TEXT),
    Field("locked_until", _DATE),
    Field("events_count", _NUMBER, int, always=True, new=1),
    Field("cancel_requested_at", _DATE),
    Field("cancel_reason", _TEXT),
    Field("error_group", _TEXT),
    Field("scope", _TEXT),
    Field("scope_id", _TEXT),
    Field("created_by", _TEXT),
    Field("idempotency_key", _TEXT),
    Field("capability", _TEXT),
    Field("template_version", _NUMBER, int),
    Field("schedule_id", _TEXT),
    Field("parent_id", _TEXT),
    Field("webhook_url", _TEXT),
    Field("webhook_sent", _NUMBER, bool, later=True),
)

JSON_NAMES = frozenset(field.json for field in JOB_FIELDS)
FIELDS: Mapping[str, FieldKind] = {
    field.json: field.kind for field in JOB_FIELDS if field.kind is not FieldKind.DOCUMENT
}
"""Single-value fields by JSON name, for filters, rules and sorting."""
DERIVED: Mapping[str, FieldKind] = {"ranMs": FieldKind.NUMBER, "waitedMs": FieldKind.NUMBER}
"""Values that searches compare and no answer shows: how long the last attempt ran, and how long it was waited for."""
DOCUMENTS: Sequence[str] = tuple(field.json for field in JOB_FIELDS if field.kind is FieldKind.DOCUMENT)
NEW_JOB: Mapping[str, Any] = {field.json: field.new for field in JOB_FIELDS}
"""A job that is about to be created, with the values that all new jobs share."""
GIVEN_FIELDS: Sequence[Field] = tuple(field for field in JOB_FIELDS if field.name in Given._fields)
"""What people see of a job that it was given."""
KEPT_FIELDS: Sequence[Field] = tuple(field for field in JOB_FIELDS if field in GIVEN_FIELDS or field.later)
"""What is a column of the job's row and read as it is kept."""
