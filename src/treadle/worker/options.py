"""A worker's options, checked and in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    slots: int
    topics: tuple[str, ...] | None
    """None: all that have a handler when the worker starts."""
    capabilities: tuple[str, ...]
    lease_ms: int
    poll_ms: int
    reap_ms: int
    drain_ms: int
    maintenance: bool
    immediate: bool
