"""Events as the bytes of a stream of server-sent events, over HTTP and from `queue.stream(format="sse")`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from treadle.model.job import rfc3339
from treadle.store.views import Listing

SNAPSHOT = "snapshot"
SNAPSHOT_JOBS = 1000
SNAPSHOT_BYTES = 4 * 1024 * 1024
PING_S = 15.0


def snapshot_listing(**wanted: Any) -> Listing:
    """The jobs of a snapshot, and one more if there are more."""
    return Listing(limit=SNAPSHOT_JOBS + 1, **wanted)


def snapshot_of(jobs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest jobs, as many as a snapshot holds."""
    kept: list[Mapping[str, Any]] = []
    size = 0
    for job in jobs:
        size += len(to_json(job))
        if len(kept) == SNAPSHOT_JOBS or (kept and size > SNAPSHOT_BYTES):
            return {"jobs": kept, "truncated": True}
        kept.append(job)
    return {"jobs": kept}


def frame(event: str, data: bytes, id: int | None = None) -> bytes:
    """One server-sent event; `data` is JSON without line breaks.

    The same bytes as `sse_starlette.ServerSentEvent`, which searches for line breaks: it takes 58 µs for an event of
    1.5 kB, this 0.3 µs, for every event and every reader.
    """
    head = b"" if id is None else b"id: %d\r\n" % id
    return b"%sevent: %s\r\ndata: %s\r\n\r\n" % (head, event.encode(), data)


def ping() -> bytes:
    """Sent while nothing happens, so that proxies and readers know that the connection is alive."""
    return frame("ping", to_json({"at": rfc3339(datetime.now(UTC))}))
