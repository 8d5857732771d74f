"""Request bodies: limited in size before parsing, parsed strictly, validated by a model."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from treadle.http.errors import MOST_FIELDS, ApiError, bad_field, from_validation, not_known
from treadle.model.errors import InvalidPayload, TreadleError
from treadle.model.payload import check_plain

MAX_BODY = 4 * 1024 * 1024
# A larger body is still read up to this size, and dropped: most clients send all of it before they read the answer, and
# if the connection closes before that, they report a broken connection.
MAX_DROPPED = 3 * MAX_BODY
# Larger bodies are parsed in a thread.
QUICK = 64 * 1024
# Items in a list of the body itself. Looking at a million of them, each a byte or two, would take seconds.
MOST_ITEMS = 10_000
# The scope entry that caches the request's body.
BODY = "treadle.body"
# The scope entry of a request whose body is too long to work on in one go.
LARGE = "treadle.large"
M = TypeVar("M", bound="Body")


class Bounds(NamedTuple):
    """How much a caller may send."""

    most: int = MAX_BODY
    gzip: bool = True
    items: int = MOST_ITEMS
    """In a list of the body itself."""


SIGNED_IN = Bounds()
ANYBODY = Bounds(64 * 1024, gzip=False, items=100)
"""For callers that are not authenticated yet."""
STRANGERS = Bounds(2 * 1024 * 1024, gzip=False, items=100)
"""For callers without an account that a rule lets in: a payload of the largest size, but not many jobs."""


class Body(BaseModel):
    """A JSON object sent by a client: no unknown fields, no type conversions."""

    model_config = ConfigDict(extra="forbid", strict=True)


def body_of(model: type[M], bounds: Bounds = SIGNED_IN) -> Callable[[Request], Awaitable[M]]:
    """A dependency that returns the request's body as this model."""

    async def read(request: Request) -> M:
        return await read_body(request, model, bounds)

    return read


async def read_body(request: Request, model: type[M], bounds: Bounds = SIGNED_IN) -> M:
    body = await json_object(request, bounds)
    _check_names(model, body)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise from_validation(error, body) from None


async def json_object(request: Request, bounds: Bounds = SIGNED_IN) -> dict[str, Any]:
    """The body as a JSON object, read once and cached. A bad body raises the same error at every call."""
    kept = request.scope
    if BODY not in kept:
        try:
            kept[BODY] = await _read(request, bounds)
        except (ApiError, TreadleError) as error:
            kept[BODY] = error
    found: dict[str, Any] | ApiError | TreadleError = kept[BODY]
    if isinstance(found, Exception):
        raise found
    return found


async def _read(request: Request, bounds: Bounds) -> dict[str, Any]:
    body, kind = await _bytes(request, bounds), header_of(request, b"content-type")
    if len(body) <= QUICK:
        return _parsed(kind, body, bounds)
    request.scope[LARGE] = True
    return await asyncio.to_thread(_parsed, kind, body, bounds)


def is_large(request: Request) -> bool:
    """Whether to work on its body in a thread."""
    return LARGE in request.scope


def _parsed(content_type: str, body: bytes, bounds: Bounds) -> dict[str, Any]:
    """A missing body counts as `{}`."""
    if not body:
        return {}
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError(415, "unsupported_media_type", "Send JSON with Content-Type: application/json.")
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise ApiError(400, "invalid_json", f"The body is not JSON: {str(error)[:200]}.") from None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", "The body must be a JSON object.")
    _check_lists(value, bounds.items)
    try:
        check_plain(value, "body")
    except InvalidPayload as error:
        field, message = (text.removeprefix("body.") for text in (str(error.data["field"]), error.message))
        raise ApiError(400, error.code, message, {field: {"code": error.code, "message": message}}) from None
    return value


def _check_lists(body: Mapping[str, Any], most: int) -> None:
    for name, value in body.items():
        if isinstance(value, list) and len(value) > most:
            hint = "" if most == MOST_ITEMS else "; sign in to send more"
            raise bad_field(name[:100], f"at most {most:,} items are allowed, not {len(value):,}{hint}")


# -- names -----------------------------------------------------------------------------------------


def _check_names(model: type[Body], body: Mapping[str, Any]) -> None:
    """Runs before the model, which would report an error for each of a million names."""
    if model.model_config.get("extra") != "forbid":
        return
    unknown = list(islice(_unknown(model, body, ""), MOST_FIELDS))
    if unknown:
        known = dict.fromkeys(name for _, where in unknown for name in where.model_fields)
        raise not_known([path for path, _ in unknown], list(known), "field")


def _unknown(model: type[Body], body: Mapping[str, Any], path: str) -> Iterator[tuple[str, type[Body]]]:
    """The path of each unknown name, and the model that does not have it."""
    known, inner = model.model_fields, _inner(model)
    for name, value in body.items():
        if name not in known:
            yield f"{path}{name}", model
        elif name in inner:
            items = enumerate(value) if isinstance(value, list) else [(None, value)]
            for i, item in items:
                if isinstance(item, dict):
                    yield from _unknown(inner[name], item, f"{path}{name}." + ("" if i is None else f"{i}."))


@lru_cache(maxsize=256)
def _inner(model: type[Body]) -> dict[str, type[Body]]:
    """The fields that contain bodies or lists of bodies."""
    found = {}
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Body):
                found[name] = kind
    return found


# -- bytes -----------------------------------------------------------------------------------------


def header_of(request: Request, name: bytes) -> str:
    """The first header with this lower-case name, or "". Three times as fast as the framework's lookup."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


async def _bytes(request: Request, bounds: Bounds) -> bytes:
    length = header_of(request, b"content-length")
    promised = int(length) if length.isdigit() else 0
    chunks: list[bytes] = []
    size, more = 0, promised <= MAX_DROPPED
    while more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ApiError(400, "incomplete_body", "The body is shorter than its Content-Length.")
        chunk = message.get("body", b"")
        size += len(chunk)
        if max(size, promised) <= bounds.most:
            chunks.append(chunk)
        more = message.get("more_body", False) and size <= MAX_DROPPED
    if max(size, promised) > bounds.most:
        raise too_large(bounds.most)
    body = b"".join(chunks)
    encoding = header_of(request, b"content-encoding").strip().lower()
    if encoding in ("identity", ""):
        return body
    if encoding == "gzip" and bounds.gzip:
        return _unzipped(body, bounds.most)
    allowed = ", or with Content-Encoding: gzip" if bounds.gzip else ""
    raise ApiError(415, "unsupported_encoding", f"Send the body unencoded{allowed}.")


def _unzipped(body: bytes, most: int) -> bytes:
    """Decompress up to the size limit and no further."""
    unzip = zlib.decompressobj(wbits=31)
    try:
        found = unzip.decompress(body, most + 1)
    except zlib.error:
        raise ApiError(400, "invalid_encoding", "The body is not valid gzip.") from None
    if len(found) > most:
        raise too_large(most)
    if not unzip.eof:
        raise ApiError(400, "invalid_encoding", "The gzip body is truncated.")
    return found


def too_large(most: int) -> ApiError:
    # The server reads the rest of the body and drops it. If it closed the connection instead, a client that is still
    # sending would report a broken pipe and not this answer.
    return ApiError(413, "body_too_large", f"The body is larger than {most:,} bytes.")
