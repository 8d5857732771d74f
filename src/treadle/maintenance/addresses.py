"""Connects to the addresses that were checked, and to no others.

A name can resolve to another address a moment later (DNS rebinding), so one look-up serves both the check and the
connection. Each origin has a client session of its own, whose resolver knows nothing but these addresses. While the
look-ups agree, the session keeps its connections for the next delivery; when they differ, a new session takes over.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from types import SimpleNamespace

import aiohttp
from aiohttp import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult

from treadle.policy.addresses import Address, Exempt, is_localhost, is_public, literal, plain_host
from treadle.policy.webhook_urls import WebhookUrl

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host and port; OSError if there are none."""

MOST_ORIGINS = 128
# Servers close idle connections after 2 seconds at the earliest. A request that meets such a close is lost.
KEEP_IDLE_S = 1.0
# Of the socket: a receiver can't make the event loop parse more than this in one turn.
RECEIVE_BUFFER = 8_192


class AddressRefused(Exception):
    """A name resolves to an address that webhooks may not be sent to."""


async def look_up(host: str, port: int) -> Sequence[str]:
    """The system's resolver, in a thread of its own: it can hang for longer than a try may last, and nobody should
    have to wait for it then, neither other deliveries nor the end of the process."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Sequence[str]] = loop.create_future()
    threading.Thread(target=_look_up, args=(host, port, loop, found), name="treadle-look-up", daemon=True).start()
    return await found


def _look_up(host: str, port: int, loop: asyncio.AbstractEventLoop, found: asyncio.Future[Sequence[str]]) -> None:
    answer: Sequence[str] | OSError
    try:
        answer = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except UnicodeError as error:
        answer = OSError(str(error))
    except OSError as error:
        answer = error
    with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
        loop.call_soon_threadsafe(_tell, found, answer)


def _tell(found: asyncio.Future[Sequence[str]], answer: Sequence[str] | OSError) -> None:
    if found.done():
        return
    if isinstance(answer, OSError):
        found.set_exception(answer)
    else:
        found.set_result(answer)


async def checked_addresses(url: WebhookUrl, exempt: Exempt, resolve: Resolve = look_up) -> frozenset[Address]:
    """What the URL's host resolves to. AddressRefused if a single one of these addresses may not be used."""
    address = literal(url.host)
    found = {address} if address else {ip_address(text) for text in await resolve(url.host, url.port)}
    if not found:
        raise OSError("it has no addresses")
    if exempt.name(url.host):
        return frozenset(found)
    if is_localhost(url.host):  # often both 127.0.0.1 and ::1, and only one of them listed
        found = {one for one in found if exempt.address(one)} or found
    for one in sorted(found, key=str):
        if not (exempt.address(one) or is_public(one)):
            name = "" if address else f"{url.host} resolves to "
            raise AddressRefused(f"{name}{one}, which is not a public address and not in TREADLE_WEBHOOK_ALLOW")
    return frozenset(found)


class _Pinned(AbstractResolver):
    """Answers with the addresses that were checked, for the host that they were checked for."""

    def __init__(self, host: str, addresses: frozenset[Address]) -> None:
        self._host = plain_host(host)
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        if plain_host(host) != self._host:
            raise OSError(errno.EACCES, f"{host} was not checked")
        return [_result(host, port, one) for one in self._addresses]

    async def close(self) -> None:
        pass


def _result(host: str, port: int, address: Address) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=str(address),
        port=port,
        family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
        proto=0,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )


class _Session:
    def __init__(self, host: str, addresses: frozenset[Address], tls: ssl.SSLContext | bool) -> None:
        self.addresses = addresses
        self.users = 0
        connector = aiohttp.TCPConnector(
            resolver=_Pinned(host, addresses),
            use_dns_cache=False,
            family=socket.AF_UNSPEC,
            keepalive_timeout=KEEP_IDLE_S,
            limit=0,  # the sender has its own
            ssl=tls,
            socket_factory=partial(_socket, addresses),
        )
        self.client = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            trace_configs=[_reuse_traced()],
        )


def _socket(addresses: frozenset[Address], info: AddrInfoType) -> socket.socket:
    """The last look at where a connection goes."""
    family, kind, protocol, _, address = info
    if ip_address(address[0]) not in addresses:
        raise OSError(errno.EACCES, f"{address[0]} was not checked")
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    made.setblocking(False)
    return made


@dataclass(slots=True)
class ConnectionUse:
    """Given as `trace_request_ctx` with a request."""

    reused: bool = False
    """It got a connection that had been used before, which its receiver may be about to close."""


def _reuse_traced() -> aiohttp.TraceConfig:
    async def reused(session: aiohttp.ClientSession, request: SimpleNamespace, params: object) -> None:
        request.trace_request_ctx.reused = True

    traced = aiohttp.TraceConfig()
    traced.on_connection_reuseconn.append(reused)
    return traced


class PinnedSessions:
    """Client sessions by origin, each bound to the addresses that its origin had at the latest try."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = True if tls is None else tls
        self._current: OrderedDict[str, _Session] = OrderedDict()
        self._retired: list[_Session] = []

    @contextlib.asynccontextmanager
    async def to(
        self, url: WebhookUrl, addresses: frozenset[Address], *, new: bool = False
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """A session that connects to these addresses of the URL's host, and to nothing else. A `new` one has no open
        connections."""
        session = self._session(url, addresses, new)
        session.users += 1
        try:
            yield session.client
        finally:
            session.users -= 1
            await self._close_unused()

    def _session(self, url: WebhookUrl, addresses: frozenset[Address], new: bool) -> _Session:
        session = self._current.pop(url.origin, None)
        if session is None or new or session.addresses != addresses:
            self._retired += [session] if session else []
            session = _Session(url.host, addresses, self._tls)
        self._current[url.origin] = session
        if len(self._current) > MOST_ORIGINS:
            self._retired.append(self._current.popitem(last=False)[1])
        return session

    async def _close_unused(self) -> None:
        unused = [one for one in self._retired if not one.users]
        self._retired = [one for one in self._retired if one.users]
        for one in unused:
            await one.client.close()

    async def close(self) -> None:
        """Close all, also those in use."""
        sessions = [*self._current.values(), *self._retired]
        self._current.clear()
        self._retired.clear()
        for one in sessions:
            await one.client.close()
