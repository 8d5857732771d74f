"""A worker's options, validated and in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    slots: int
    topics: tuple[str, ...] | None
    """None means all topics with a handler when the worker starts."""
    capabilities: tuple[str, ...]
    lease_ms: int
    poll_ms: int
    reap_ms: int
    drain_ms: int
    maintenance: bool
    immediate: bool
    burst: bool
    prefetch: int | None
    """The maximum number of jobs claimed beyond the free slots; None means as many as start within 100 ms."""
