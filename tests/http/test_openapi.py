"""The OpenAPI document: valid, complete, and what `test_fuzz` holds the server to."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import jsonschema_rs
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from tests.http.api import Api
from treadle import Queue
from treadle.http import create_app
from treadle.http.app import ROUTES

HIDDEN = {
    ("GET", "/api/jobs/{id}/steps/{step}/{nested}"),
    ("GET", "/api/openapi.json"),
    ("POST", "/_api/jobs/{topic}/dispatch"),  # the same as /api/jobs/{topic}/dispatch
}


@cache
def app() -> FastAPI:
    return create_app(Queue("sqlite:///nowhere.db"))


def document() -> dict[str, Any]:
    return app().openapi()


def operations() -> list[tuple[str, str]]:
    return [(method, path) for path, methods in document()["paths"].items() for method in methods]


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from references(one)


def resolved(reference: str) -> dict[str, Any]:
    found: Any = document()
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    assert isinstance(found, dict)
    return found


def schema_of(response: dict[str, Any]) -> dict[str, Any]:
    """The schema of an answer in JSON."""
    assert list(response["content"]) in (["application/json"], ["application/json", "text/event-stream"])
    schema: dict[str, Any] = response["content"]["application/json"]["schema"]
    return resolved(schema["$ref"])


# -- the document ------------------------------------------------------------------------------


def test_it_is_valid() -> None:
    assert document()["openapi"].startswith("3.1.")
    OPENAPI_31_VALIDATOR.validate(document())


def test_its_schemas_are_valid_and_all_are_used() -> None:
    used = set(references(document()))
    for name, schema in document()["components"]["schemas"].items():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
        assert f"#/components/schemas/{name}" in used
    for reference in used:
        resolved(reference)


def test_every_route_is_in_it_except_hidden_ones() -> None:
    found = [route for route in ROUTES if isinstance(route, APIRoute)]
    routes = {(method, route.path_format) for route in found for method in route.methods or ()}
    assert {(method.upper(), path) for method, path in operations()} == routes - HIDDEN
    assert routes >= HIDDEN


def test_operations_have_names_of_their_own() -> None:
    names = [document()["paths"][path][method]["operationId"] for method, path in operations()]
    assert len(set(names)) == len(names)
    assert {"enqueue", "enqueueMany", "getJob", "listJobs"} < set(names)
    assert all(name.isalpha() for name in names), names


async def test_it_is_public(sqlite_api: Api) -> None:
    answer = await sqlite_api.get("/api/openapi.json", as_=None)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {**document(), "servers": [{"url": "/"}]}


async def test_mounted_it_says_where(sqlite_api: Api) -> None:
    outer = FastAPI()
    outer.mount("/queue", sqlite_api.queue.asgi())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://queue.test") as client:
        answer = await client.get("/queue/api/openapi.json")
    assert answer.json()["servers"] == [{"url": "/queue"}]


# -- each operation ----------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), operations())
def test_every_error_has_the_same_shape(method: str, path: str) -> None:
    responses = document()["paths"][path][method]["responses"]
    errors = {code: response for code, response in responses.items() if code >= "400"}
    assert {"400", "401", "403", "503"} <= set(errors)
    for response in errors.values():
        schema = schema_of(response)
        assert schema == document()["components"]["schemas"]["ErrorDocument"]
        assert set(schema["required"]) == {"status", "code", "message", "data"}
        assert schema["additionalProperties"] is False


@pytest.mark.parametrize(("method", "path"), operations())
def test_a_path_with_a_jobs_id_may_lead_nowhere(method: str, path: str) -> None:
    if "{id}" in path:
        assert "404" in document()["paths"][path][method]["responses"]


OPTIONAL = {"trackToken"}  # only those who ask for it get it


@pytest.mark.parametrize(("method", "path"), operations())
def test_an_answer_has_all_its_fields_and_no_others(method: str, path: str) -> None:
    responses = document()["paths"][path][method]["responses"]
    (answer,) = [response for code, response in responses.items() if code == "200"] or [{}]
    if "application/json" not in answer.get("content", {}):
        assert "204" in responses or set(answer["content"]) <= {"text/event-stream", "text/plain"}
        return
    schema = schema_of(answer)
    for one in [resolved(one["$ref"]) for one in schema.get("anyOf", ())] or [schema]:
        assert one["additionalProperties"] is False
        assert set(one["required"]) == set(one["properties"]) - OPTIONAL


@pytest.mark.parametrize(("method", "path"), operations())
def test_a_body_is_a_json_object_without_unknown_fields(method: str, path: str) -> None:
    operation = document()["paths"][path][method]
    if "requestBody" not in operation:
        assert method != "patch"
        return
    schema = schema_of(operation["requestBody"])
    # PocketBase's clients send more than we know of.
    lenient = "/collections/" in path or path == "/api/realtime"
    assert (schema["type"], schema.get("additionalProperties", True)) == ("object", lenient)
    assert operation["requestBody"]["required"] is bool(schema.get("required"))
    assert {"413", "415"} <= set(operation["responses"])


@pytest.mark.parametrize(("method", "path"), operations())
def test_every_operation_is_described(method: str, path: str) -> None:
    operation = document()["paths"][path][method]
    assert operation["description"].endswith((".", "?")), operation
    assert operation["tags"]
    assert all(response["description"] for response in operation["responses"].values())


@pytest.mark.parametrize(("method", "path"), operations())
def test_every_answer_says_its_headers(method: str, path: str) -> None:
    for code, response in document()["paths"][path][method]["responses"].items():
        assert ("Retry-After" in response["headers"]) is (code in ("429", "503"))
        assert "X-Request-ID" in response["headers"]
