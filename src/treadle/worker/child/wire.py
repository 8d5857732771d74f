"""Messages between a worker and its child processes: length-prefixed JSON objects."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import to_jsonable_python

from treadle.model import errors
from treadle.model.job import EPOCH, Job
from treadle.model.status import Status
from treadle.queue.handlers.children import ChildRequest
from treadle.queue.handlers.steps import StepRecord

_LENGTH = struct.Struct("!I")
Message = dict[str, Any]


def encode(message: Message) -> bytes:
    # ASCII: a lone surrogate in a log line survives as an escape.
    body = json.dumps(message).encode("ascii")
    return _LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> Message:
    """The next message; IncompleteReadError at the end."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    message: Message = json.loads(await reader.readexactly(length))
    return message


def receive(connection: socket.socket) -> Message | None:
    """The next message, blocking; None at the end."""
    head = _exactly(connection, _LENGTH.size)
    body = _exactly(connection, _LENGTH.unpack(head)[0]) if head else None
    return json.loads(body) if body else None


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    parts = []
    while count:
        part = connection.recv(min(count, 65536))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


# -- enqueue from a child ------------------------------------------------------------------------------


def enqueue_with_outcome_request(
    topic: str, payload: Any, options: dict[str, Any], step: tuple[str, str] | None
) -> Message:
    return enqueue_request(topic, payload, options) | {"for": "enqueue with outcome", "step": step}


def enqueue_request(topic: str, payload: Any, options: dict[str, Any]) -> Message:
    if options.get("connection") is not None:
        raise errors.InvalidInput(
            "connection: a handler in a process enqueues through its worker, which can't join the transaction; "
            "enqueue after the commit, or run the handler in a thread",
            field="connection",
        )
    plain = {name: _packed(value) for name, value in options.items()}
    return {"for": "enqueue", "topic": topic, "payload": to_jsonable_python(payload), "options": plain}


def enqueue_options(request: Message) -> dict[str, Any]:
    return {name: _unpacked(value) for name, value in request["options"].items()}


def job_message(job: Job) -> Message:
    return {name: _packed(getattr(job, name)) for name in Job.__slots__ if name != "queue"}


def job_from(message: Message) -> Job:
    fields = {name: _unpacked(value) for name, value in message.items()}
    return Job(**{**fields, "status": Status(fields["status"])})


def _packed(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime) and value.tzinfo:
        return {"$at": (value - EPOCH).total_seconds()}
    return to_jsonable_python(value)


def _unpacked(value: Any) -> Any:
    return EPOCH + timedelta(seconds=value["$at"]) if isinstance(value, dict) and set(value) == {"$at"} else value


# -- steps -------------------------------------------------------------------------------------------


def recall_request(name: str, key: str, finish_ms: int | None, item: int | None) -> Message:
    return {"for": "recall", "name": name, "key": key, "finish_ms": finish_ms, "item": item}


def begin_map_request(name: str, total: int, declared: bool) -> Message:
    return {"for": "begin map", "name": name, "total": total, "declared": declared}


def record_map_request(record: StepRecord | None, name: str, declared: bool) -> Message:
    return {"for": "record map", "record": record and list(record), "name": name, "declared": declared}


def items_request(name: str, first: int, last: int) -> Message:
    return {"for": "items", "name": name, "first": first, "last": last}


def record_request(record: StepRecord | None, name: str, key: str) -> Message:
    return {"for": "record", "record": record and list(record), "name": name, "key": key}


def children_request(request: ChildRequest) -> Message:
    packed = request._replace(
        options={name: _packed(value) for name, value in request.options.items()},
        items=[(key, place, to_jsonable_python(payload)) for key, place, payload in request.items],
    )
    return {"for": "children", "request": list(packed)}


def child_request(message: list[Any]) -> ChildRequest:
    request = ChildRequest(*message)
    options = {name: _unpacked(value) for name, value in request.options.items()}
    return request._replace(options=options, items=[(key, place, payload) for key, place, payload in request.items])


# -- errors ------------------------------------------------------------------------------------------


def error_message(error: BaseException) -> Message:
    data = to_jsonable_python(getattr(error, "data", {}), fallback=str)
    return {"name": type(error).__name__, "message": str(error), "data": data}


def error_from(message: Message) -> BaseException:
    """The same exception class if it is one of Treadle's, so that `except KeyReused` works in a child too."""
    kind = getattr(errors, message["name"], None)
    if isinstance(kind, type) and issubclass(kind, errors.TreadleError):
        return kind(message["message"], **message["data"])
    if kind is errors.FollowUpRefused:
        return errors.FollowUpRefused(message["message"])
    if message["name"] in ("JobCancelled", "TimeoutError"):
        return (errors.JobCancelled if message["name"] == "JobCancelled" else TimeoutError)(message["message"])
    return RuntimeError(f"{message['name']}: {message['message']}")
