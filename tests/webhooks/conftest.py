"""Receivers, dispatchers and a canary that nobody may connect to."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.webhooks.receiver import SECRET, Receiver
from treadle.maintenance.dispatcher import WebhookDispatcher

LOOPBACK = "127.0.0.0/8"
Dispatch = Callable[..., WebhookDispatcher]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def dispatcher() -> AsyncIterator[WebhookDispatcher]:
    """One that may send to this machine."""
    async with WebhookDispatcher(allow=LOOPBACK, secret=SECRET) as dispatcher:
        yield dispatcher


@pytest.fixture
async def dispatch() -> AsyncIterator[Dispatch]:
    """Make a dispatcher with other options."""
    async with AsyncExitStack() as stack:
        made: list[WebhookDispatcher] = []

        def make(**options: Any) -> WebhookDispatcher:
            made.append(WebhookDispatcher(**options))
            stack.push_async_callback(made[-1].close)
            return made[-1]

        yield make


class Canary:
    """Listens on all addresses of this machine, and counts who connects."""

    port: int
    connections = 0


@pytest.fixture
async def canary() -> AsyncIterator[Canary]:
    canary = Canary()

    async def touched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        canary.connections += 1
        writer.close()

    listening = listening_socket()
    canary.port = listening.getsockname()[1]
    async with await asyncio.start_server(touched, sock=listening):
        yield canary


def listening_socket() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", 0))
