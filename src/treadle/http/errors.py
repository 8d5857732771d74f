"""Every answer that is not a success: `{status, code, message, data}`, and which error becomes which."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
_SNAKE = re.compile(r"^([a-z]+(?:_[a-z]+)+):")


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
    message = _SNAKE.sub(lambda found: f"{camel(found[1])}:", error.message)
    field = error.data.get("field")
    if field is None:
        return ApiError(status, error.code, message, error.data)
    name = camel(str(field))
    return ApiError(status, error.code, message, {name: {"code": error.code, "message": message}})


def from_validation(error: ValidationError) -> ApiError:
    """Every field that a model refused, by its path."""
    data: dict[str, dict[str, str]] = {}
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        path = ".".join(str(part) for part in one["loc"])[:200] or "body"
        data.setdefault(path, {"code": _codes.get(one["type"], "invalid_input"), "message": one["msg"]})
    field, first = next(iter(data.items()))
    return ApiError(400, "invalid_input", f"{field}: {first['message']}", data)


_codes = {"missing": "validation_required", "extra_forbidden": "validation_unknown_field"}


def internal() -> ApiError:
    return ApiError(500, "internal_error", "Something went wrong here; the server's log says what.")
