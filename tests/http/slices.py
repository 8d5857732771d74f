"""How long the event loop runs our Python between two of its turns."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pydantic_core
import pytest
from pydantic import BaseModel

T = TypeVar("T")


class LoopTurns:
    """The CPU time of this thread in each turn of the loop, without what C code parses and writes, and without the
    collector of garbage."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._apart = 0.0
        self._collecting = 0.0

    async def of(self, call: Awaitable[T]) -> tuple[T, float]:
        """The answer of a call, and the seconds of its longest turn."""
        await asyncio.sleep(0)  # in a turn of its own
        self.longest = 0.0
        answer = await call
        await asyncio.sleep(0)  # so that its last turn is over
        return answer, self.longest

    def counted_apart(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            begun = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                self._apart += time.thread_time() - begun

        return timed

    def turn(self, run_once: Callable[[Any], None]) -> Callable[[Any], None]:
        def timed(loop: Any) -> None:
            begun, self._apart = time.thread_time(), 0.0
            run_once(loop)
            self.longest = max(self.longest, time.thread_time() - begun - self._apart)

        return timed

    def collected(self, phase: str, _info: Any) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._apart += time.thread_time() - self._collecting


@contextlib.contextmanager
def loop_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopTurns]:
    turns = LoopTurns()
    loop: Any = asyncio.BaseEventLoop
    monkeypatch.setattr(loop, "_run_once", turns.turn(loop._run_once))
    for name in ("from_json", "to_json"):
        function = getattr(pydantic_core, name)
        timed = turns.counted_apart(function)
        for module in [one for path, one in sys.modules.items() if path.startswith("treadle")]:
            if getattr(module, name, None) is function:
                monkeypatch.setattr(module, name, timed)
    monkeypatch.setattr(json, "dumps", turns.counted_apart(json.dumps))
    validate = BaseModel.__dict__["model_validate"].__func__
    monkeypatch.setattr(BaseModel, "model_validate", classmethod(turns.counted_apart(validate)))
    gc.callbacks.append(turns.collected)
    try:
        yield turns
    finally:
        gc.callbacks.remove(turns.collected)


class Caller:
    """Calls an ASGI application with as little work of its own as possible."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(
        self, method: str, path: str, body: bytes = b"", token: str | None = None, query: str = ""
    ) -> tuple[int, int]:
        """The status, and the bytes of the answer."""
        headers = [(b"host", b"queue.test"), (b"content-type", b"application/json")]
        headers.append((b"content-length", b"%d" % len(body)))
        if token is not None:
            headers.append((b"authorization", token.encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method.upper(),
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 5000),
            "server": ("queue.test", 80),
        }
        given = [{"type": "http.request", "body": body, "more_body": False}]
        status = size = 0

        async def receive() -> Any:
            if given:
                return given.pop()
            await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            nonlocal status, size
            status = message.get("status", status)
            size += len(message.get("body", b""))

        await self._app(scope, receive, send)
        return status, size
