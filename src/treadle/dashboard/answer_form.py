"""The form that answers a waiting step, made from the schema of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic_core import from_json

from treadle.dashboard import words
from treadle.dashboard.schema_fields import (
    PREFIX,
    SchemaField,
    example_payload,
    field_choices,
    form_fields,
    form_problems,
    payload_of,
    start_value,
)
from treadle.model.errors import InvalidInput
from treadle.model.job import Job
from treadle.model.payload import check_plain
from treadle.model.schema import schema_problems
from treadle.model.status import Status
from treadle.model.steps import DONE, StepSpec, StepState

# The name of an answer that is not an object.
ANSWER = "answer"
WHOLE = "json"
ERROR = "error"


@dataclass(frozen=True, slots=True)
class Ask:
    """A step that waits, and what it wants to know."""

    step: str
    key: str
    title: str
    schema: Mapping[str, Any] | None
    rule: str | None
    until: datetime | None
    after: str
    """The step that comes next."""
    before: Mapping[str, Any] | None
    """The last step that completed: what to decide on."""

    @property
    def schema_name(self) -> str:
        return str((self.schema or {}).get("title", ""))[:100]

    @property
    def object_schema(self) -> dict[str, Any] | None:
        """The schema of an object: an answer that is none becomes its only field."""
        if self.schema is None or form_fields(self.schema):
            return None if self.schema is None else dict(self.schema)
        inner = {name: value for name, value in self.schema.items() if name != "$defs"}
        wanted = [] if _allows_null(self.schema) else [ANSWER]
        defined = self.schema.get("$defs", {})
        return {"type": "object", "properties": {ANSWER: inner}, "required": wanted, "$defs": defined}

    @property
    def wrapped(self) -> bool:
        return self.schema is not None and not form_fields(self.schema)

    @property
    def fields(self) -> list[SchemaField]:
        return form_fields(self.object_schema)

    @property
    def example(self) -> Any:
        """An answer of the right shape."""
        if self.schema is None:
            return True
        example = example_payload(self.object_schema)
        return example.get(ANSWER) if self.wrapped else example


@dataclass(frozen=True, slots=True)
class AnswerForm:
    ask: Ask
    fields: Sequence[tuple[SchemaField, str, Sequence[tuple[str, str]]]]
    """Empty: the answer is written as JSON."""
    given: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""

    @property
    def whole(self) -> str:
        return self.given.get(WHOLE, "")

    @property
    def error(self) -> str:
        return self.given.get(ERROR, "")


def _allows_null(schema: Mapping[str, Any]) -> bool:
    try:
        return not schema_problems(dict(schema), None)
    except InvalidInput:
        return False


def asks(job: Job, specs: Sequence[StepSpec], runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Ask]:
    """What a waiting job wants to know. `runs` are those of its waiting steps."""
    if job.status is not Status.WAITING:
        return []
    known = {spec.name: spec for spec in specs}
    found = []
    for place, step in enumerate(job.steps):
        spec = known.get(step["id"])
        waits = [run for run in runs.get(step["id"], ()) if run["status"] == StepState.WAITING and not run["childId"]]
        found += [_ask(job, place, spec, run) for run in waits]
    return found


def _ask(job: Job, place: int, spec: StepSpec | None, run: Mapping[str, Any]) -> Ask:
    schema = run["answerSchema"] or (spec.answer_schema if spec else None)
    until = None if run["waitsUntil"] is None else datetime.fromisoformat(run["waitsUntil"])
    after = next((step["id"] for step in job.steps[place + 1 :] if step["status"] not in DONE), "")
    ended = [step for step in job.steps if step["completedAt"] and step["status"] == StepState.COMPLETED]
    before = max(ended, key=lambda step: step["completedAt"], default=None)
    rule = spec.answer_rule if spec else None
    return Ask(run["id"], run["key"] or "", run["name"], schema, rule, until, after, before)


def fresh_form(ask: Ask, *, as_json: bool) -> AnswerForm:
    fields = [] if as_json else [(one, start_value(one), field_choices(one)) for one in ask.fields]
    return AnswerForm(ask, fields)


def refused_form(ask: Ask, given: Mapping[str, str], problems: Mapping[str, str], refused: str) -> AnswerForm:
    """The form as it was filled in, with what was wrong."""
    form = fresh_form(ask, as_json=WHOLE in given)
    fields = [(one, given.get(one.id, ""), choices) for one, _, choices in form.fields]
    return replace(form, fields=fields, given=given, problems=problems, refused=refused)


class RefusedAnswer(Exception):
    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__()
        self.problems = problems

    @property
    def message(self) -> str:
        count = sum(name.startswith(PREFIX) for name in self.problems)
        if not count:
            return "The answer does not fit the step's schema. Nothing was stored."
        verb = "does" if count == 1 else "do"
        return f"{words.plural(count, 'field')} {verb} not fit the step's schema. Nothing was stored."


def answer_of(ask: Ask, given: Mapping[str, str]) -> Any:
    """The value that was filled in; RefusedAnswer names the fields that are wrong."""
    if WHOLE in given or not ask.fields:
        return _written(ask, given.get(WHOLE, ""))
    payload, problems = payload_of(ask.fields, given)
    refused = form_problems(ask.object_schema, payload)
    if problems or refused:
        raise RefusedAnswer({**refused, **problems})
    return payload.get(ANSWER) if ask.wrapped else payload


def _written(ask: Ask, text: str) -> Any:
    if not text:
        raise RefusedAnswer({WHOLE: "Write the answer as JSON, such as true or null"})
    try:
        value = from_json(text, allow_inf_nan=False)
        check_plain(value, "answer")
    except ValueError as error:
        raise RefusedAnswer({WHOLE: f"Not JSON: {str(error)[:200]}"}) from None
    for path, message in schema_problems(dict(ask.schema), value) if ask.schema else []:
        place = ".".join(map(str, path))
        raise RefusedAnswer({WHOLE: f"{place}: {message}" if place else message})
    return value
