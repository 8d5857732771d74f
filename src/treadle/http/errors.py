"""Every answer that is not a success: `{status, code, message, data}`, and which error becomes which."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json
from starlette.responses import Response

from treadle import errors
from treadle.job import camel

NOT_FOUND = "The requested resource wasn't found."


class ApiError(Exception):
    """An answer other than success, raised wherever it is noticed."""

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
    """The same bytes for what is not there and for what is somebody else's."""
    return ApiError(404, "not_found", NOT_FOUND)


def wrong_method(method: str, possible: Collection[str]) -> ApiError:
    allowed = {*possible, *(["HEAD"] if "GET" in possible else [])}
    message = f"{method[:20]} is not possible here; see the Allow header."
    return ApiError(405, "method_not_allowed", message, headers={"Allow": ", ".join(sorted(allowed))})


def bad_field(field: str, message: str, code: str = "invalid_input") -> ApiError:
    """One field is at fault."""
    return ApiError(400, code, f"{field}: {message}", {field: {"code": code, "message": message}})


# The first that fits counts, so subclasses stand before their base.
_STATUS: list[tuple[type[errors.TreadleError], int]] = [
    (errors.JobNotFound, 404),
    (errors.InvalidInput, 400),
    (errors.KeyReused, 422),
    (errors.Refused, 409),
    (errors.WrongState, 409),
    (errors.LeaseLost, 409),
    (errors.StoreUnavailable, 503),
    (errors.SchemaMismatch, 503),
]
_SNAKE = re.compile(r"\b(?:run|expires)_at\b|\bmax_(?:attempts|retries)\b|^[a-z]+(?:_[a-z]+)+(?=:)")


def from_treadle(error: errors.TreadleError) -> ApiError:
    """What an error of the queue is over HTTP, its fields by the names that HTTP has for them."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    if status == 404:
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
    name = camel(str(field))
    return ApiError(status, error.code, message, {name: {"code": error.code, "message": message}})


def from_validation(error: ValidationError, body: Any) -> ApiError:
    """Every field of the body that a model refused, by its path."""
    data: dict[str, dict[str, str]] = {}
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        path = ".".join(_path(one["loc"], body, missing=one["type"] == "missing"))[:200] or "body"
        message = "Input should be an object" if one["type"] == "model_type" else one["msg"]
        data.setdefault(path, {"code": _codes.get(one["type"], "invalid_input"), "message": message})
    field, first = next(iter(data.items()))
    return ApiError(400, "invalid_input", f"{field}: {first['message']}", data)


def _path(parts: Sequence[int | str], body: Any, *, missing: bool) -> Iterator[str]:
    """As far as the body goes: behind that a model only names the types that it tried."""
    for part in parts:
        within = (isinstance(body, dict) and part in body) or (isinstance(body, list) and isinstance(part, int))
        if within:
            body = body[part]
        elif not (missing and isinstance(body, dict)):
            return
        yield str(part)


_codes = {
    "missing": "validation_required",
    "string_too_short": "validation_required",
    "extra_forbidden": "validation_unknown_field",
}


def internal() -> ApiError:
    return ApiError(500, "internal_error", "Something went wrong here; the server's log says what.")
