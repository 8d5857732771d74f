"""The OpenAPI document, assembled from the description of each route."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode

from treadle.http import documents, request_models
from treadle.http.bodies import Body
from treadle.http.documents import Document, ErrorDocument, StreamEvent
from treadle.http.request_models import JobOptions, ScheduleOptions
from treadle.model.fields import camel

REFERENCE = "#/components/schemas/{model}"
# Errors that any route may return: from rules, the server or the database.
ALWAYS = (400, 401, 403, 503)
WITH_BODY = (413, 415)
EVENT_STREAM = "text/event-stream"
# Base models that never appear in a request or response themselves.
BASES = (BaseModel, Body, Document, JobOptions, ScheduleOptions)

HEADERS: dict[str, dict[str, Any]] = {
    "X-Request-ID": {
        "required": True,
        "description": "identifies the request in the server's log; a request may send its own",
        "schema": {"type": "string", "minLength": 1, "maxLength": 100},
    },
    "Retry-After": {
        "required": True,
        "description": "seconds to wait before trying again",
        "schema": {"type": "integer", "minimum": 1},
    },
}


def spec(
    answer: type[BaseModel] | None = None,
    *,
    body: type[Body] | None = None,
    errors: Iterable[int] = (),
    status: int = 200,
    open_to_all: bool = False,
    kind: str = "application/json",
    or_nothing: bool = False,
    or_stream: bool = False,
) -> dict[str, Any]:
    """Arguments for a route's decorator: its body, its response (`or_stream`: or server-sent events if the request
    accepts them; `or_nothing`: or 204) and its errors."""
    codes = sorted({*ALWAYS, *errors, *(WITH_BODY if body else ())})
    extra: dict[str, Any] = {"security": [] if open_to_all else [{"token": []}, {"cookie": []}, {}]}
    if body:
        schema = {"$ref": REFERENCE.format(model=body.__name__)}
        required = any(field.is_required() for field in body.model_fields.values())
        extra["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
    responses: dict[int | str, dict[str, Any]] = {code: _failure(code) for code in codes}
    responses[status] = _response(status)
    if or_nothing:
        responses[204] = _response(204)
    if status != 204:
        kinds = [kind, *([EVENT_STREAM] if or_stream else [])]
        responses[status]["content"] = {
            one: {"schema": _answer_schema(answer if one == kind else None, one)} for one in kinds
        }
    return {"status_code": status, "response_model": None, "responses": responses, "openapi_extra": extra}


def _answer_schema(answer: type[BaseModel] | None, kind: str) -> dict[str, Any]:
    """The schema of the whole response, or of each event of a stream."""
    if answer is None and kind == EVENT_STREAM:
        answer = StreamEvent
    return {"type": "string"} if answer is None else {"$ref": REFERENCE.format(model=answer.__name__)}


def _failure(code: int) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(model=ErrorDocument.__name__)}
    return {**_response(code), "content": {"application/json": {"schema": schema}}}


def _response(code: int) -> dict[str, Any]:
    names = ["X-Request-ID", *(["Retry-After"] if code in (429, 503) else [])]
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    return {"description": HTTPStatus(code).phrase, "headers": headers}


def describe(app: FastAPI) -> dict[str, Any]:
    for route in app.routes:
        if isinstance(route, APIRoute):
            route.unique_id = camel(route.name)  # generated clients use these as function names
    document = get_openapi(
        title="Treadle",
        version=app.version,
        description="A durable job queue: enqueue, inspect and control jobs, and run them in workers of any language.",
        routes=app.routes,
    )
    components = document.setdefault("components", {})
    components["schemas"] = _schemas()
    components["headers"] = HEADERS
    components["securitySchemes"] = {
        "token": {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": "A token from auth-with-password or an API key, bare or after Bearer.",
        },
        "cookie": {"type": "apiKey", "in": "cookie", "name": "treadle_auth"},
    }
    for path in document["paths"].values():
        for operation in path.values():
            _take_out_what_is_not_so(operation["responses"])
    return document


def _take_out_what_is_not_so(responses: dict[str, dict[str, Any]]) -> None:
    """Remove the 422 responses that FastAPI adds (ours are 400), and JSON from responses of other types."""
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]
    for response in responses.values():
        kinds = response.get("content", {})
        if len(kinds) > 1 and not kinds.get("application/json", {}).get("schema", True):
            del kinds["application/json"]


def _schemas() -> dict[str, Any]:
    """Request bodies as input schemas, responses as output schemas."""
    found: dict[str, Any] = {}
    for model in (*vars(request_models).values(), *vars(documents).values()):
        if isinstance(model, type) and issubclass(model, BaseModel) and model not in BASES:
            mode: JsonSchemaMode = "validation" if issubclass(model, Body) else "serialization"
            schema = model.model_json_schema(ref_template=REFERENCE, mode=mode, by_alias=True)
            found |= schema.pop("$defs", {})
            found[model.__name__] = schema
    return found
