"""Around a request: its id, its time, its trace."""

import logging
from collections.abc import Iterable, MutableMapping
from typing import Any

import pytest

from treadle.telemetry import HttpMetrics, Observed, request_id
from treadle.telemetry.log_context import new_request_id

Message = MutableMapping[str, Any]


class Route:
    path = "/api/jobs/{id}"


class Asked:
    """An app that answers with a status, and what it saw of the request."""

    def __init__(self, status: int | None = 200, error: Exception | None = None) -> None:
        self.status = status
        self.error = error
        self.request_id: str | None = None
        self.sent: list[Message] = []
        self.metrics = HttpMetrics()

    async def app(self, scope: Message, receive: Any, send: Any) -> None:
        self.request_id = request_id.get()
        scope["route"] = Route()
        if self.error:
            raise self.error
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def ask(
        self, headers: Iterable[tuple[bytes, bytes]] = (), kind: str = "http", path: str = "/api/jobs/7"
    ) -> None:
        async def send(message: Message) -> None:
            self.sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request"}

        scope = {"type": kind, "method": "GET", "path": path, "query_string": b"token=secret", "headers": list(headers)}
        await Observed(self.app, self.metrics)(scope, receive, send)


async def test_a_request_gets_an_id_that_its_answer_names() -> None:
    asked = Asked()
    await asked.ask()
    assert asked.request_id
    assert asked.sent[0]["headers"] == [(b"a", b"b"), (b"x-request-id", asked.request_id.encode())]
    assert request_id.get() is None


async def test_the_callers_own_id_is_kept() -> None:
    asked = Asked()
    await asked.ask([(b"x-request-id", b"abc-123")])
    assert asked.request_id == "abc-123"


@pytest.mark.parametrize("bad", ["", "a b", "a\r\nset-cookie: x", "a\x1b[2J", "x" * 129, "é", '"'])
def test_an_id_that_could_do_harm_is_replaced(bad: str) -> None:
    assert new_request_id(bad) not in ("", bad)


async def test_it_is_counted_by_its_route_not_by_its_path() -> None:
    asked = Asked(404)
    await asked.ask()
    await asked.ask(path="/api/jobs/8")
    assert asked.metrics.requests == {("GET", "/api/jobs/{id}", 404): 2}
    assert sum(asked.metrics.seconds["/api/jobs/{id}"].counts) == 2


async def test_an_app_that_fails_without_an_answer_counts_as_500() -> None:
    asked = Asked(error=ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await asked.ask()
    assert asked.metrics.requests == {("GET", "/api/jobs/{id}", 500): 1}
    assert request_id.get() is None


async def test_a_stream_is_counted_when_its_answer_starts() -> None:
    asked = Asked()

    async def stream(scope: Message, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert asked.metrics.requests == {("GET", "other", 200): 1}
        await send({"type": "http.response.body", "body": b""})

    asked.app = stream  # type: ignore[method-assign]
    await asked.ask()
    assert asked.metrics.requests.total() == 1


async def test_a_web_socket_has_an_id_too() -> None:
    asked = Asked()
    await asked.ask([(b"x-request-id", b"w-1")], kind="websocket")
    assert asked.request_id == "w-1"
    assert not asked.metrics.requests


async def test_the_start_of_the_server_is_no_request() -> None:
    asked = Asked()
    await asked.ask(kind="lifespan")
    assert asked.request_id is None


async def test_log_lines_never_have_the_query(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "treadle.http")
    await Asked(503).ask()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "GET /api/jobs/7: 503" in record.getMessage()
    assert "secret" not in record.getMessage()
