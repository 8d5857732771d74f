"""Events as the bytes of a stream of server-sent events, over HTTP and from `queue.stream(format="sse")`."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic_core import to_json

from treadle.model.job import rfc3339

SNAPSHOT = "snapshot"
SNAPSHOT_JOBS = 1000
PING_S = 15.0


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
