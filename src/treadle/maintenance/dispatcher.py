"""Sends a webhook once: checks where it goes, signs it, posts it, and reads the start of the answer.

The status decides, so a try is over when the headers are there. What follows is read for people to see, up to a small
size and time: a receiver that answers byte by byte, without end, or with less than it announced changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from treadle.maintenance.addresses import (
    AddressRefused,
    ConnectionUse,
    PinnedSessions,
    Resolve,
    checked_addresses,
    look_up,
)
from treadle.model.durations import Duration, duration_ms, format_ms
from treadle.model.errors import InvalidInput
from treadle.model.raised import MAX_CHARACTERS, one_line
from treadle.model.webhooks import ANSWER_CHARS, Try
from treadle.policy.addresses import Address, Exempt
from treadle.policy.webhook_signing import checked_secret, signed_headers
from treadle.policy.webhook_urls import WebhookUrl, check_url

TIMEOUT = "15s"
ANSWER_BYTES = 4 * ANSWER_CHARS
READ_ANSWER_S = 1.0
LONGEST_RETRY_AFTER_S = 10**9


class WebhookDispatcher:
    """Sends webhooks, signed, and only to public addresses.

    `allow` lists hosts and networks that are exempt from the address check, `http` permits unencrypted URLs, and
    `secret` signs what has no secret of its own. `resolve` replaces the system's look-up of names, `tls` its trusted
    certificates.
    """

    def __init__(
        self,
        *,
        allow: str = "",
        http: bool = False,
        secret: str | None = None,
        timeout: Duration = TIMEOUT,
        resolve: Resolve = look_up,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._exempt = Exempt.parse(allow)
        self._http = http
        self._secrets = (checked_secret(secret, "webhook_secret"),) if secret else ()
        self._timeout_ms = duration_ms(timeout, "timeout")
        self._resolve = resolve
        self._sessions = PinnedSessions(tls)
        self._agent = f"Treadle/{version('treadle')}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._sessions.close()

    async def send(
        self,
        url: str,
        body: str | bytes,
        webhook_id: str,
        *,
        secrets: Sequence[str] = (),
        timestamp: float | None = None,
    ) -> Try:
        """Send once, and return how it went; a failure is an answer too. `secrets` are the newest first.

        `timestamp` is the time of this try in seconds, by default this machine's.
        """
        began = time.monotonic()
        seconds = int(time.time() if timestamp is None else timestamp)
        try:
            content = body.encode() if isinstance(body, str) else body
            headers = signed_headers(webhook_id, seconds, content, tuple(secrets) or self._secrets)
            async with asyncio.timeout(self._timeout_ms / 1000) as limit:
                answer = await self._post(url, content, headers, limit)
        except TimeoutError:
            answer = Try(error=f"no answer within {format_ms(self._timeout_ms)}")
        except (InvalidInput, AddressRefused) as error:
            answer = Try(error=str(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            answer = Try(error=_why(error))
        return answer._replace(duration_ms=round((time.monotonic() - began) * 1000))

    async def _post(self, text: str, content: bytes, headers: Mapping[str, str], limit: asyncio.Timeout) -> Try:
        url = check_url(text, self._exempt, self._http)
        addresses = await self._addresses(url)
        headers = {**headers, **self._fixed_headers()}
        use = ConnectionUse()
        try:
            async with self._sessions.to(url, addresses) as session:
                return await _answer(session, url, content, headers, limit, use)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if not use.reused:
                raise
        # It closed the connection when the request was on its way; it may not even have seen it.
        async with self._sessions.to(url, addresses, new=True) as session:
            return await _answer(session, url, content, headers, limit, use)

    async def _addresses(self, url: WebhookUrl) -> frozenset[Address]:
        try:
            return await checked_addresses(url, self._exempt, self._resolve)
        except OSError as error:
            raise OSError(f"{url.host} could not be resolved: {error.strerror or error}") from None

    def _fixed_headers(self) -> Mapping[str, str]:
        return {"Content-Type": "application/json", "User-Agent": self._agent, "Accept-Encoding": "identity"}


async def _answer(
    session: aiohttp.ClientSession,
    url: WebhookUrl,
    content: bytes,
    headers: Mapping[str, str],
    limit: asyncio.Timeout,
    use: ConnectionUse,
) -> Try:
    async with session.post(
        URL(str(url), encoded=True), data=content, headers=headers, allow_redirects=False, trace_request_ctx=use
    ) as response:
        return Try(
            response.status,
            answer=await _start_of(response, limit),
            retry_after_ms=_retry_after_ms(response.headers.get("Retry-After")),
        )


async def _start_of(response: aiohttp.ClientResponse, limit: asyncio.Timeout) -> str:
    """As text for people. If there is more, the connection is closed, because what follows would be read in vain."""
    start = b""
    until = min(limit.when() or 0.0, asyncio.get_running_loop().time() + READ_ANSWER_S)
    limit.reschedule(None)  # the answer has come in time
    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout_at(until):
            while len(start) < ANSWER_BYTES and not response.content.at_eof():
                start += await response.content.read(ANSWER_BYTES - len(start))
    if not response.content.at_eof():
        response.close()
    if response.headers.get("Content-Encoding", "identity") != "identity":
        return ""
    return _printable(start.decode(errors="replace"))[:ANSWER_CHARS].strip()


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


def _retry_after_ms(text: str | None) -> int | None:
    """Seconds, or a date."""
    if text is None:
        return None
    if text.isascii() and text.isdecimal():
        return min(int(text[:10]), LONGEST_RETRY_AFTER_S) * 1000
    try:
        at = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(round((at - time.time()) * 1000), 0)


def _why(error: Exception) -> str:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the receiver hung up without an answer"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not valid: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientResponseError):  # its text has the URL, which may contain a secret
        return f"its answer is not HTTP: {_printable(error.message)}"[:MAX_CHARACTERS]
    return one_line(error)
