"""Limits on connections, below HTTP: how many there are, how long a request may take to arrive, and how large its head
may be. Without them a client that sends nothing, or never stops, costs a connection or memory for ever.

The limits are enforced in the server's protocol, because an application sees a request only once its head is complete.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from http import HTTPStatus
from typing import Any, NamedTuple

from treadle.http.errors import ApiError

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError:  # httptools has no wheels for this Python, and uvicorn uses its other parser
    HttpToolsProtocol = None  # type: ignore[assignment,misc]

log = logging.getLogger("treadle.http")

# Files that the rest of the process needs: the database, worker processes, log files.
RESERVED_FILES = 224
MOST_CONNECTIONS = 10_000
TOLD_EVERY_S = 10.0
LINGER_S = 2.0
MOST_SOCKET_LINE = 8000
MOST_SOCKET_HEADERS = 120


class Limits(NamedTuple):
    head_bytes: int = 64 * 1024
    head_s: float = 10.0
    """From the connection, or the first byte of a further request, to the end of the headers."""
    body_s: float = 30.0
    connections: int = MOST_CONNECTIONS
    per_address: int = MOST_CONNECTIONS // 2
    """Half of all: a proxy has one address, and one address can't keep all others out."""


def limits() -> Limits:
    """The limits of a process with this many file descriptors."""
    files = _most_files()
    connections = MOST_CONNECTIONS if files is None else min(MOST_CONNECTIONS, max(files - RESERVED_FILES, files // 2))
    return Limits(connections=connections, per_address=max(connections // 2, 1))


def _most_files() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


class Doorkeeper:
    """Counts the open connections of a server, and tells the log about those that were refused or closed."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: Counter[str] = Counter()
        self._total = 0
        self._untold: Counter[str] = Counter()
        self._told_at = float("-inf")

    def enter(self, address: str) -> bool:
        """False: there are too many."""
        if self._total >= self.limits.connections:
            self.tell(f"refused: all {self.limits.connections:,} connections are in use", address)
            return False
        if self._open[address] >= self.limits.per_address:
            self.tell(f"refused: {self.limits.per_address:,} connections of one address are open", address)
            return False
        self._total += 1
        self._open[address] += 1
        return True

    def leave(self, address: str) -> None:
        self._total -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def tell(self, what: str, address: str) -> None:
        """One line for many, so that a flood of connections is no flood of lines."""
        self._untold[what] += 1
        now = time.monotonic()
        if now - self._told_at >= TOLD_EVERY_S:
            for one, count in self._untold.items():
                log.warning("connections %s (%d times; the last from %s)", one, count, address)
            self._untold.clear()
            self._told_at = now


class _Phase(Enum):
    NEW = "new"
    HEAD = "head"
    BODY = "body"
    DONE = "done"


def websocket_options() -> dict[str, Any]:
    """For `uvicorn.Config`: small messages from clients, and no compression, which would cost memory per connection."""
    logging.getLogger("uvicorn.error").addFilter(_names_no_query)
    return {"ws": "websockets-sansio", "ws_max_size": 64 * 1024, "ws_per_message_deflate": False}


def _names_no_query(record: logging.LogRecord) -> bool:
    """Uvicorn tells the path of each WebSocket with its query, which may hold a token."""
    return not str(record.msg).startswith('%s - "WebSocket ')


def limited_protocol(limits: Limits) -> type[Any] | str:
    """The protocol for `uvicorn.Config(http=…)`. Without httptools it is "auto", and only heads are limited."""
    if HttpToolsProtocol is None:
        return "auto"
    keeper = Doorkeeper(limits)

    class LimitedConnection(_LimitedConnection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.keeper = keeper

    return LimitedConnection


if HttpToolsProtocol is not None:

    class _LimitedConnection(HttpToolsProtocol):
        keeper: Doorkeeper

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._phase = _Phase.NEW
            self._head_bytes = 0
            self._named_bytes = 0
            self._began = False
            self._admitted = False
            self._upgraded = False
            self._refused = False
            self._timer: asyncio.TimerHandle | None = None

        # -- the connection ------------------------------------------------------------------------

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._admitted = self.keeper.enter(self._address)
            if self._admitted:
                self._arm(self.keeper.limits.head_s, self._late_head)
            else:
                self._refuse(ApiError(503, "too_many_connections", "The server has too many connections; try again."))

        def connection_lost(self, exc: Exception | None) -> None:
            self._leave()
            super().connection_lost(exc)

        def _leave(self) -> None:
            self._disarm()
            if self._admitted:
                self._admitted = False
                self.keeper.leave(self._address)

        @property
        def _address(self) -> str:
            return self.client[0] if self.client else ""

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing() or self._refused:
                return
            phase, self._began = self._phase, False
            super().data_received(data)
            if self._refused:
                return
            if self.transport.is_closing() or self._upgraded:
                self._disarm()
                return
            if self._phase in (_Phase.NEW, _Phase.HEAD) and phase is not _Phase.BODY:
                self._head_bytes += len(data)
                if self._head_bytes > self.keeper.limits.head_bytes:
                    self._large_head()
                    return
            self._watch(phase)

        def _watch(self, before: _Phase) -> None:
            """Time what is missing. A request that comes in one piece, as most do, needs no timer."""
            if self._phase is _Phase.DONE and (self._began or before is _Phase.BODY):
                self._disarm()
            elif self._phase is _Phase.BODY and (self._began or before is not _Phase.BODY):
                self._disarm()
                self._arm(self.keeper.limits.body_s, self._late_body)
            elif self._phase is not _Phase.BODY and self._timer is None and self._answered:
                self._arm(self.keeper.limits.head_s, self._late_head)

        def handle_websocket_upgrade(self) -> None:
            """From here on another protocol has the connection; it still counts as one."""
            self._upgraded = True
            refusal = _unreadable(self.url, list(self.scope["headers"]))
            if refusal is not None:
                self._refuse(refusal)
                return
            super().handle_websocket_upgrade()
            protocol: Any = self.transport.get_protocol()
            protocol.connection_lost = self._after(protocol.connection_lost)

        def _after(self, lost: Callable[[Exception | None], None]) -> Callable[[Exception | None], None]:
            def left(error: Exception | None) -> None:
                self._leave()
                lost(error)

            return left

        # -- what the parser finds -----------------------------------------------------------------

        def on_message_begin(self) -> None:
            self._phase, self._began = _Phase.HEAD, True
            self._head_bytes = self._named_bytes = 0
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

        def _count(self, size: int) -> None:
            self._named_bytes += size
            if self._named_bytes > self.keeper.limits.head_bytes:
                raise ValueError("the head is too large")  # becomes the parser's error, and a 431

        def on_headers_complete(self) -> None:
            self._phase = _Phase.BODY
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._phase = _Phase.DONE
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            if self._named_bytes > self.keeper.limits.head_bytes:
                self._large_head()
            else:
                error = ApiError(400, "invalid_request", "This is not a valid HTTP request.")
                self._refuse(error, linger=self._phase is not _Phase.BODY)

        # -- limits --------------------------------------------------------------------------------

        @property
        def _answered(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _large_head(self) -> None:
            most = self.keeper.limits.head_bytes
            self.keeper.tell(f"closed: more than {most:,} bytes before the end of the headers", self._address)
            message = f"The request line and the headers have more than {most:,} bytes."
            self._refuse(ApiError(431, "headers_too_large", message), linger=True)

        def _late_head(self) -> None:
            self.keeper.tell(f"closed: no complete headers after {self.keeper.limits.head_s:g} s", self._address)
            self._refuse(ApiError(408, "request_timeout", "The headers took too long to arrive."))

        def _late_body(self) -> None:
            if self.flow.read_paused:  # it is the application that takes its time
                self._timer = None
                self._arm(self.keeper.limits.body_s, self._late_body)
                return
            self.keeper.tell(f"closed: no complete body after {self.keeper.limits.body_s:g} s", self._address)
            self._refuse(ApiError(408, "request_timeout", "The body took too long to arrive."))

        def _refuse(self, error: ApiError, linger: bool = False) -> None:
            """Answer, unless another answer has begun, and close the connection. `linger`: the client may still be
            sending."""
            if self._refused:
                return
            self._disarm()
            if self.transport.is_closing():
                return
            self._refused = True
            if self._answered or not self.cycle.response_started:
                self.transport.write(_bytes_of(error))
            if linger and self._answered and self.transport.can_write_eof():
                self._linger()
            else:
                self.transport.close()

        def _linger(self) -> None:
            """Say that the answer is complete, and close a while later. Closing a socket with unread bytes resets the
            connection, which can take the answer from the client before it has read it. Nothing more is read: it waits
            in the sockets, which are soon full."""
            self.transport.pause_reading()
            self.transport.write_eof()
            self._arm(LINGER_S, self.transport.close)

        def _arm(self, seconds: float, late: Callable[[], None]) -> None:
            self._timer = self.loop.call_later(seconds, late)

        def _disarm(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None


def _unreadable(url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> ApiError | None:
    """The parser of WebSockets has lower limits, and beyond them it leaves a request without an answer."""
    if len(headers) > MOST_SOCKET_HEADERS:
        message = f"A request for a WebSocket may have {MOST_SOCKET_HEADERS} headers."
        return ApiError(431, "headers_too_large", message)
    if len(url) > MOST_SOCKET_LINE or any(len(name) + len(value) > MOST_SOCKET_LINE for name, value in headers):
        message = f"The address and each header of a request for a WebSocket may have {MOST_SOCKET_LINE:,} bytes."
        return ApiError(400, "invalid_input", message)
    return None


def _bytes_of(error: ApiError) -> bytes:
    answer = error.response()
    head = [f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}", "connection: close"]
    head += [f"{name}: {value}" for name, value in answer.headers.items()]
    return "\r\n".join([*head, "", ""]).encode() + bytes(answer.body)
