"""Error responses `{status, code, message, data}`, and the mapping from exceptions to them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, to_json
from starlette.responses import Response

from treadle.model import errors
from treadle.model.fields import camel
from treadle.model.other_names import RIGHT_WORDS

# Report at most this many fields per response; the rest show up once these are fixed.
MOST_FIELDS = 20
UNKNOWN = "unknown_parameter"
REQUIRED = "validation_required"
NOT_FOUND = "The requested resource wasn't found."


class ApiError(Exception):
    """An error response, raised by any layer of the HTTP API."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        data: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.data = dict(data or {})
        self.headers = dict(headers or {})

    def response(self) -> Response:
        body = {"status": self.status, "code": self.code, "message": self.message, "data": self.data}
        return Response(to_json(body), self.status, self.headers, media_type="application/json")


def not_found() -> ApiError:
    """The same bytes for a job that does not exist and for one that the caller may not see."""
    return ApiError(404, "not_found", NOT_FOUND)


def wrong_method(method: str, possible: Collection[str]) -> Response:
    """The answer to a method that no route of the path has. OPTIONS asks for nothing but the Allow header."""
    headers = {"Allow": ", ".join(sorted({*possible, *(["HEAD"] if "GET" in possible else [])}))}
    if method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    message = f"{method[:20]} is not allowed here; see the Allow header."
    return ApiError(405, "method_not_allowed", message, headers=headers).response()


def bad_field(field: str, message: str, code: str = "invalid_input") -> ApiError:
    """An error about a single field."""
    return ApiError(400, code, f"{field}: {message}", {field: {"code": code, "message": message}})


def not_known(names: Sequence[str], known: Collection[str], what: str) -> ApiError:
    """Unknown names, each with the likely right one if there is one."""
    data = {}
    for name in names[:MOST_FIELDS]:
        right = _right_word(name.rpartition(".")[2], known)
        message = f"there is no such {what}" + (f"; write {right}" if right else "")
        data[name[:200]] = {"code": UNKNOWN, "message": message}
    name, first = next(iter(data.items()))
    listed = (
        f" (there are {', '.join(known)})" if known and len(known) <= 20 and "; write" not in first["message"] else ""
    )
    return ApiError(400, UNKNOWN, f"{name}: {first['message']}{listed}", data)


def _right_word(name: str, known: Collection[str]) -> str | None:
    right = RIGHT_WORDS.get(name)
    if right is None or (right.isidentifier() and right not in known):
        right = camel(name) if camel(name) in known else None
    return right


# The first match counts, so subclasses come before their base class.
_STATUS: list[tuple[type[errors.TreadleError], int]] = [
    (errors.JobNotFound, 404),
    (errors.ScheduleNotFound, 404),
    (errors.TemplateNotFound, 404),
    (errors.EndpointNotFound, 404),
    (errors.DeliveryNotFound, 404),
    (errors.UnknownStep, 404),
    (errors.StepEnded, 409),
    (errors.InvalidInput, 400),
    (errors.KeyReused, 422),
    (errors.Refused, 409),
    (errors.WrongState, 409),
    (errors.VersionConflict, 409),
    (errors.CodeDefined, 409),
    (errors.LeaseLost, 409),
    (errors.QueryTooSlow, 400),
    (errors.StoreUnavailable, 503),
    (errors.SchemaMismatch, 503),
]
_SNAKE = re.compile(r"\b(?:run|expires)_at\b|\bmax_(?:attempts|retries)\b|^[a-z]+(?:_[a-z]+)+(?=:)")


def from_treadle(error: errors.TreadleError) -> ApiError:
    """Translate an error of the queue, with the HTTP names of its fields."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    if status == 404 and not isinstance(error, errors.UnknownStep):
        return not_found()
    if status == 500:
        return internal()
    if status == 503:
        message = "The database can't be reached just now; try again."
        return ApiError(503, error.code, message, headers={"Retry-After": "1"})
    message = error.message
    if isinstance(error, errors.InvalidInput) and not isinstance(error, errors.InvalidPayload):
        message = _SNAKE.sub(lambda found: camel(found[0]), message)
    field = error.data.get("field")
    if field is None:
        return ApiError(status, error.code, message, error.data)
    # The names inside a payload or an answer are the client's, and settings have names with underscores.
    as_it_is = isinstance(error, errors.InvalidPayload | errors.InvalidAnswer) or str(field).startswith("retention.")
    name = str(field) if as_it_is else camel(str(field))
    return ApiError(status, error.code, message, {name: {"code": error.code, "message": message}})


def from_validation(error: ValidationError, body: Any) -> ApiError:
    """Every field of the body that the model refused, by its path."""
    data: dict[str, dict[str, str]] = {}
    for one in error.errors(include_url=False, include_input=False, include_context=False)[:MOST_FIELDS]:
        path = ".".join(_path(one["loc"], body, missing=one["type"] == "missing"))[:200] or "body"
        data.setdefault(path, {"code": _codes.get(one["type"], "invalid_input"), "message": in_words(one)})
    field, first = next(iter(data.items()))
    return ApiError(400, "invalid_input", f"{field}: {first['message']}", data)


def _path(parts: Sequence[int | str], body: Any, *, missing: bool) -> Iterator[str]:
    """The part of the path that is in the body; after it the model only lists the types that it tried."""
    for part in parts:
        within = (isinstance(body, dict) and part in body) or (isinstance(body, list) and isinstance(part, int))
        if within:
            body = body[part]
        elif not (missing and isinstance(body, dict)):
            return
        yield str(part)


def in_words(error: ErrorDetails) -> str:
    """Pydantic's message, without Python's types and regular expressions."""
    if error["type"] in ("model_type", "dict_type"):
        return "Input should be an object"
    names = [part for part in error["loc"] if isinstance(part, str)]
    if error["type"] == "string_pattern_mismatch" and names and names[-1] in _FORMS:
        return _FORMS[names[-1]]
    return error["msg"]


_FORMS = {
    "topic": "use lower-case letters, digits, _ and dots",
    "topics": "use lower-case letters, digits, _ and dots",
    "id": "use letters, digits, _, - and dots",
}
_codes = {
    "missing": REQUIRED,
    "string_too_short": REQUIRED,
}


def internal() -> ApiError:
    return ApiError(500, "internal_error", "Something went wrong on the server; its log says what.")
