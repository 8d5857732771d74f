"""One template: its schema, steps and versions, and a form made from the schema to enqueue a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.forms import object_of, priority_of, problem_of
from treadle.dashboard.page import Page
from treadle.dashboard.pages.enqueue import enqueued
from treadle.dashboard.schema_fields import (
    PREFIX,
    SchemaField,
    example_payload,
    field_choices,
    form_fields,
    form_problems,
    payload_of,
    refused_field,
    schema_fields,
    start_value,
)
from treadle.dashboard.snippets import enqueue_snippets
from treadle.dashboard.step_graph import template_graph
from treadle.dashboard.template_rows import differences, facts
from treadle.model.errors import InvalidInput, InvalidPayload, TreadleError
from treadle.policy.saved_template import SavedTemplate, changed_fields

OPTIONS = ("delay", "priority", "idempotencyKey", "scope", "scopeId")
WHOLE = "payload"


async def template(page: Page) -> Response:
    saved = await page.state.queue.templates.get(page.request.path_params["topic"])
    fields = form_fields(saved.as_json()["payloadSchema"])
    given = {field.id: start_value(field) for field in fields} | dict.fromkeys(OPTIONS, "") | {WHOLE: "{}"}
    return await _show(page, saved, given)


async def _show(
    page: Page,
    saved: SavedTemplate,
    given: Mapping[str, str],
    problems: Mapping[str, str] | None = None,
    refused: str = "",
) -> Response:
    shown = saved.as_json()
    versions = await page.state.queue.templates.versions(saved.topic)
    fields = form_fields(shown["payloadSchema"])
    return await page.render(
        "template",
        400 if refused else 200,
        section="Templates",
        title=saved.topic,
        saved=saved,
        shown=shown,
        facts=facts(shown),
        graph=template_graph(saved.template.steps),
        payload_fields=schema_fields(shown["payloadSchema"]),
        result_fields=schema_fields(shown["resultSchema"]),
        versions=_versions(versions),
        difference=_difference(page, versions),
        fields=[(field, given.get(field.id, ""), field_choices(field)) for field in fields],
        given=given,
        problems=problems or {},
        refused=refused,
        whole=WHOLE,
        snippets=enqueue_snippets(saved.topic, _shown_payload(shown["payloadSchema"], fields, given), page.address),
    )


def _shown_payload(
    schema: Mapping[str, Any] | None, fields: Sequence[SchemaField], given: Mapping[str, str]
) -> dict[str, Any]:
    """What was filled in, and an example for what is required and was not."""
    return {**example_payload(schema), **payload_of(fields, given)[0]}


def _versions(versions: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    older: list[dict[str, Any] | None] = [*versions[1:], None]
    return [
        (one, "first version" if before is None else ", ".join(changed_fields(before, one)) or "nothing")
        for one, before in zip(versions, older, strict=True)
    ]


def _difference(page: Page, versions: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Between the two chosen versions; by default the current one and the one before it."""
    if len(versions) < 2:
        return None
    by_number = {str(one["version"]): one for one in versions}
    current = next(place for place, one in enumerate(versions) if one["current"])
    before = versions[current + 1] if current + 1 < len(versions) else versions[0]
    old = by_number.get(page.query("before"), before)
    new = by_number.get(page.query("after"), versions[current])
    lines = differences(old, new)
    counts = [(word, sum(one.word == word for one in lines)) for word in ("added", "removed", "changed")]
    told = ", ".join(f"{count} {word}" for word, count in counts if count)
    return {"old": old["version"], "new": new["version"], "lines": lines, "words": told or "no difference"}


# -- enqueue ---------------------------------------------------------------------------------------


async def enqueue(page: Page) -> Response:
    topic = page.request.path_params["topic"]
    saved = await page.state.queue.templates.get(topic)
    schema = saved.as_json()["payloadSchema"]
    fields = form_fields(schema)
    given = {name: await page.field(name) for name in (*(field.id for field in fields), *OPTIONS, WHOLE)}
    try:
        payload = _payload(schema, fields, given)
        made = await page.state.queue.enqueue(topic, payload, **_options(page, given))
    except _Refused as error:
        return await _show(page, saved, given, error.problems, _counted(error.problems))
    except InvalidPayload as error:
        problems = refused_field(error, fields)
        return await _show(page, saved, given, problems, _counted(problems))
    except TreadleError as error:
        problems = problem_of(error) if isinstance(error, InvalidInput) else {}
        return await _show(page, saved, given, problems, error.message)
    return await enqueued(page, made)


class _Refused(Exception):
    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__()
        self.problems = problems


def _payload(schema: Mapping[str, Any] | None, fields: Sequence[SchemaField], given: Mapping[str, str]) -> Any:
    if not fields:
        return object_of(given[WHOLE] or "{}")
    payload, problems = payload_of(fields, given)
    refused = {name: text for name, text in form_problems(schema, payload).items() if name not in problems}
    if problems or refused:
        raise _Refused({**refused, **problems})
    return payload


def _counted(problems: Mapping[str, str]) -> str:
    fields = sum(name.startswith(PREFIX) for name in problems)
    if not fields:
        return problems.get(WHOLE, "the payload does not fit the schema") + ". Nothing was stored."
    return f"{words.plural(fields, 'field')} {'does' if fields == 1 else 'do'} not fit the schema. Nothing was stored."


def _options(page: Page, given: Mapping[str, str]) -> dict[str, Any]:
    options = {
        "delay": given["delay"] or None,
        "priority": priority_of(given["priority"]),
        "idempotency_key": given["idempotencyKey"] or None,
        "scope": given["scope"] or None,
        "scope_id": given["scopeId"] or None,
        "created_by": page.caller.account_id if page.caller else None,
    }
    return {name: value for name, value in options.items() if value is not None}
