"""A job as its events tell of it: without results of steps, and with less of it if the event would be large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

MOST_EVENT_BYTES = 16 * 2**10
"""Of an event with all that it carries. Above this its job comes without payload and result, then with less of the
rest."""
MOST_ERROR_CHARACTERS = 2_000


def shortened(event: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
    """An event that is small enough, and its JSON text."""
    job = event.get("job")
    if job is None:
        return event, to_json(event)
    event = {**event, "job": without_step_results(job)}
    data = to_json(event)
    for truncated in _SMALLER:
        if len(data) <= MOST_EVENT_BYTES:
            break
        event = {**event, "job": truncated(event["job"]), "truncated": True}
        data = to_json(event)
    return event, data


def _without_documents(job: Mapping[str, Any]) -> dict[str, Any]:
    return {**job, "payload": None, "result": None, "truncated": True}


def without_step_results(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Results of steps may be many and large, so events and snapshots leave them out."""
    return {**job, "steps": [{**step, "result": None} for step in job["steps"]]} if job["steps"] else job


def _with_short_texts(job: Mapping[str, Any]) -> dict[str, Any]:
    error = job["lastError"] and job["lastError"][-MOST_ERROR_CHARACTERS:]
    return {**job, "lastError": error, "steps": [{**step, "error": None, "message": None} for step in job["steps"]]}


def _without_steps(job: Mapping[str, Any]) -> dict[str, Any]:
    return {**job, "steps": []}


_SMALLER: Sequence[Any] = (_without_documents, _with_short_texts, _without_steps)
