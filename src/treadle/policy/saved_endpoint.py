"""Endpoints of webhooks as they are saved: what their owners edit in one record, how they have answered in another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from pydantic_core import from_json, to_json

from treadle.model.webhooks import (
    COUNTS_AFTER_MS,
    QUEUE_ENDPOINT,
    Circuit,
    Endpoint,
    EndpointEvent,
    EndpointState,
    Subscriber,
)

KIND = "webhook"
STATE_KIND = "webhook_state"
CIRCUIT_KIND = "webhook_host"
READER_KIND = "webhook_reader"
"""The number of the last event that an endpoint has read itself."""

_KEPT = frozenset(one.name for one in fields(Endpoint)) - {"id", "version", "created_ms", "updated_ms"}


def body_of(endpoint: Endpoint) -> str:
    return to_json({name: getattr(endpoint, name) for name in sorted(_KEPT)}).decode()


def endpoint_from(id: str, body: str, version: int, created_ms: int, updated_ms: int) -> Endpoint:
    """Of the parts of its record; newer servers may have stored more."""
    found: Mapping[str, Any] = {name: value for name, value in from_json(body).items() if name in _KEPT}
    lists = {name: tuple(found[name]) for name in ("events", "topics") if name in found}
    return Endpoint(**{**found, **lists}, id=id, version=version, created_ms=created_ms, updated_ms=updated_ms)


def state_body(state: EndpointState) -> str:
    return to_json(state._asdict()).decode()


def state_from(body: str | None) -> EndpointState:
    if body is None:
        return EndpointState()
    found = {name: value for name, value in from_json(body).items() if name in EndpointState._fields}
    return EndpointState(**{**found, "events": tuple(EndpointEvent(*one) for one in found.get("events", ()))})


def circuit_body(circuit: Circuit) -> str:
    return to_json(circuit._asdict()).decode()


def circuit_from(body: str | None) -> Circuit:
    return Circuit() if body is None else Circuit(**from_json(body))


def subscribers_of(endpoints: Iterable[Endpoint]) -> list[Subscriber]:
    """The enabled ones, and from when on each is told of events."""
    return [
        Subscriber(
            one.id,
            one.url,
            frozenset(one.events),
            frozenset(one.topics),
            0 if one.id == QUEUE_ENDPOINT else one.created_ms + COUNTS_AFTER_MS,
        )
        for one in endpoints
        if one.enabled
    ]
