"""Sending a webhook once: what a receiver gets, and what its answers do."""

import asyncio
import gzip
import json
import ssl
import time
from email.utils import formatdate

import pytest
import trustme
from standardwebhooks import Webhook

from tests.waiting import for_ever, until
from tests.webhooks.conftest import Dispatch
from tests.webhooks.receiver import SECRET, Answer, Received, Receiver, answer
from treadle.maintenance.dispatcher import WebhookDispatcher
from treadle.model.errors import InvalidInput
from treadle.policy.webhook_signing import secret_of

BODY = json.dumps({"type": "job:completed", "data": {"job": "\N{SNOWMAN}"}}, ensure_ascii=False)
QUICK = "300ms"


async def test_a_receiver_gets_the_body_and_can_verify_it(dispatcher: WebhookDispatcher, receiver: Receiver) -> None:
    receiver.answer = answer(200, b"thank you")
    tried = await dispatcher.send(f"{receiver.url}?a=%2F&b=1#top", BODY, "msg_1")
    assert (tried.status, tried.error, tried.answer) == (200, None, "thank you")
    (received,) = receiver.received
    assert received.body == BODY.encode()
    assert received.target == "/hook?a=%2F&b=1"
    assert received.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["user-agent"].startswith("Treadle/")
    assert received.id == "msg_1"
    assert Webhook(SECRET).verify(received.body, received.headers) == json.loads(BODY)


async def test_own_secrets_sign_in_place_of_the_general_one(dispatcher: WebhookDispatcher, receiver: Receiver) -> None:
    own = [secret_of(bytes(24)), secret_of(bytes(32))]
    await dispatcher.send(receiver.url, BODY, "msg_1", secrets=own)
    for secret in own:
        Webhook(secret).verify(receiver.received[0].body, receiver.received[0].headers)


async def test_the_time_of_a_try_can_be_another_clocks(dispatcher: WebhookDispatcher, receiver: Receiver) -> None:
    await dispatcher.send(receiver.url, BODY, "msg_1", timestamp=1_700_000_000.9)
    assert receiver.received[0].headers["webhook-timestamp"] == "1700000000"


async def test_connections_are_used_again(dispatcher: WebhookDispatcher, receiver: Receiver) -> None:
    for number in range(5):
        await dispatcher.send(receiver.url, BODY, f"msg_{number}")
    assert (len(receiver.received), receiver.connections) == (5, 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(dispatcher: WebhookDispatcher, receiver: Receiver, status: int) -> None:
    async with Receiver() as elsewhere:
        receiver.answer = answer(status, Location=elsewhere.url)
        tried = await dispatcher.send(receiver.url, BODY, "msg_1")
    assert (tried.status, len(receiver.received), elsewhere.connections) == (status, 1, 0)


async def test_cookies_are_not_kept(dispatcher: WebhookDispatcher, receiver: Receiver) -> None:
    receiver.answer = answer(200, Set_Cookie="session=1; Path=/")
    for _ in range(2):
        await dispatcher.send(receiver.url, BODY, "msg_1")
    assert "cookie" not in receiver.received[1].headers


async def test_proxies_and_passwords_of_the_environment_are_not_used(
    dispatch: Dispatch, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Receiver() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert (await dispatch(allow="127.0.0.1").send(receiver.url, BODY, "msg_1")).status == 204
        assert proxy.connections == 0
    assert "authorization" not in receiver.received[0].headers


@pytest.mark.parametrize(
    ("header", "asked_ms"), [("7", 7_000), ("0", 0), ("9" * 5_000, 10**12), ("-1", None), ("soon", None), ("", None)]
)
async def test_retry_after_is_read(
    dispatcher: WebhookDispatcher, receiver: Receiver, header: str, asked_ms: int | None
) -> None:
    receiver.answer = answer(503, Retry_After=header)
    assert (await dispatcher.send(receiver.url, BODY, "msg_1")).retry_after_ms == asked_ms


async def test_retry_after_may_be_a_date(dispatcher: WebhookDispatcher, receiver: Receiver) -> None:
    receiver.answer = answer(429, Retry_After=formatdate(time.time() + 100, usegmt=True))
    asked_ms = (await dispatcher.send(receiver.url, BODY, "msg_1")).retry_after_ms
    assert asked_ms is not None
    assert 90_000 < asked_ms <= 100_000
    receiver.answer = answer(429, Retry_After=formatdate(0, usegmt=True))
    assert (await dispatcher.send(receiver.url, BODY, "msg_1")).retry_after_ms == 0


# -- receivers that misbehave ----------------------------------------------------------------------


def raw(*pieces: bytes, pause_s: float = 0.0, then_close: bool = True) -> Answer:
    async def send(request: Received, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)  # the receiver is slow
        if then_close:
            writer.close()
        else:
            await for_ever()

    return send


async def endless(request: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def endless_headers(request: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-Header: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def endless_interim_answers(request: Received, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)
        await writer.drain()


OK = b"HTTP/1.1 200 OK\r\n"
BOMB = gzip.compress(bytes(50_000_000))


@pytest.mark.parametrize(
    ("behaviour", "shown"),
    [
        pytest.param(raw(OK + b"Content-Length: 1000\r\n\r\nshort"), "short", id="less than announced"),
        pytest.param(raw(OK + b"Content-Length: 99\r\n\r\nand ", then_close=False), "and", id="then silent"),
        pytest.param(endless, "x" * 1_000, id="endless"),
        pytest.param(
            raw(OK + b"Content-Encoding: gzip\r\n" + b"Content-Length: %d\r\n\r\n" % len(BOMB) + BOMB), "", id="bomb"
        ),
        pytest.param(
            raw(OK + b"\r\n\x00\x1b[31m\r\n\xff\xe2\x80\xaered"), "[31m  \N{REPLACEMENT CHARACTER} red", id="control"
        ),
    ],
)
async def test_the_status_counts_however_the_answer_goes_on(
    dispatch: Dispatch, receiver: Receiver, behaviour: Answer, shown: str
) -> None:
    dispatcher = dispatch(allow="127.0.0.1", timeout=QUICK)
    receiver.answer = behaviour
    tried = await dispatcher.send(receiver.url, BODY, "msg_1")
    assert (tried.status, tried.error, tried.answer) == (200, None, shown)
    receiver.answer = answer(204)
    assert (await dispatcher.send(receiver.url, BODY, "msg_2")).status == 204


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: -5\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: " + b"9" * 100 + b"\r\n",
        b"X: \x00\r\n",
    ],
)
async def test_an_ambiguous_answer_is_none(dispatcher: WebhookDispatcher, receiver: Receiver, head: bytes) -> None:
    receiver.answer = raw(OK + head + b"\r\nabc")
    tried = await dispatcher.send(receiver.url, BODY, "msg_1")
    assert (tried.status, "its answer is not HTTP" in (tried.error or "")) == (None, True)


async def test_switching_protocols_is_no_success(dispatcher: WebhookDispatcher, receiver: Receiver) -> None:
    receiver.answer = raw(b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", then_close=False)
    assert (await dispatcher.send(receiver.url, BODY, "msg_1")).status == 101
    receiver.answer = answer(204)
    assert (await dispatcher.send(receiver.url, BODY, "msg_2")).status == 204
    assert receiver.connections == 2


@pytest.mark.parametrize("target", ["/a//b/../c", "/%zz/%2e%2e/", "/;a=b?c=d&e?f=%00", "/$&'()*+,;=:@!|^`<>{}"])
async def test_the_path_is_sent_as_it_was_given(dispatcher: WebhookDispatcher, receiver: Receiver, target: str) -> None:
    await dispatcher.send(f"http://127.0.0.1:{receiver.port}{target}", BODY, "msg_1")
    assert receiver.received[0].target == target


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        pytest.param(raw(), "hung up without an answer", id="hangs up"),
        pytest.param(raw(OK), "hung up without an answer", id="hangs up in the headers"),
        pytest.param(raw(then_close=False), "no answer within 300ms", id="silent"),
        pytest.param(raw(*(bytes([one]) for one in OK), pause_s=0.05), "no answer within 300ms", id="byte by byte"),
        pytest.param(raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "its answer is not HTTP", id="another protocol"),
        pytest.param(raw(b"HTTP/1.1 99999 X\r\n\r\n"), "its answer is not HTTP", id="no status"),
        pytest.param(raw(OK + b"X: " + b"x" * 100_000 + b"\r\n\r\n"), "its answer is not HTTP", id="long header"),
        pytest.param(
            raw(OK + b"Content-Length: 2\r\n\r\nmore than that"), "its answer is not HTTP", id="more than announced"
        ),
        pytest.param(
            raw(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\nzz\r\n"),
            "its answer is not HTTP",
            id="bad chunk",
        ),
        pytest.param(endless_headers, "its answer is not HTTP", id="endless headers"),
        pytest.param(endless_interim_answers, "no answer within 300ms", id="endless interim answers"),
    ],
)
async def test_without_a_status_the_try_has_failed(
    dispatch: Dispatch, receiver: Receiver, behaviour: Answer, problem: str
) -> None:
    dispatcher = dispatch(allow="127.0.0.1", timeout=QUICK)
    receiver.answer = behaviour
    tried = await dispatcher.send(receiver.url, BODY, "msg_1")
    assert tried.status is None
    assert problem in (tried.error or "")
    receiver.answer = answer(204)
    assert (await dispatcher.send(receiver.url, BODY, "msg_2")).status == 204


async def test_an_answer_that_nobody_asked_for_is_not_the_next_deliverys(
    dispatcher: WebhookDispatcher, receiver: Receiver
) -> None:
    async def twice(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 X\r\n\r\n" * 2)

    receiver.answer = twice
    await dispatcher.send(receiver.url, BODY, "msg_1")
    receiver.answer = answer(500)
    assert (await dispatcher.send(receiver.url, BODY, "msg_2")).status == 500


async def test_a_connection_that_closes_as_it_is_used_again_costs_no_try(
    dispatcher: WebhookDispatcher, receiver: Receiver
) -> None:
    """Receivers close idle connections when they like; the request may meet that."""
    assert (await dispatcher.send(receiver.url, BODY, "msg_1")).status == 204

    async def close_this_one(request: Received, writer: asyncio.StreamWriter) -> None:
        receiver.answer = answer(202)
        writer.close()

    receiver.answer = close_this_one
    assert (await dispatcher.send(receiver.url, BODY, "msg_2")).status == 202
    assert [request.id for request in receiver.received] == ["msg_1", "msg_2", "msg_2"]


async def test_a_refused_connection_says_so(dispatcher: WebhookDispatcher) -> None:
    async with Receiver() as gone:
        pass
    tried = await dispatcher.send(gone.url, BODY, "msg_1")
    assert tried.status is None
    assert "Cannot connect to host 127.0.0.1" in (tried.error or "")


async def test_a_body_that_is_not_text_is_no_end_of_the_sender(
    dispatcher: WebhookDispatcher, receiver: Receiver
) -> None:
    tried = await dispatcher.send(receiver.url, "\ud800", "msg_1")
    assert tried.status is None
    assert "surrogates" in (tried.error or "")


async def test_a_cancelled_try_closes_its_connection(dispatcher: WebhookDispatcher, receiver: Receiver) -> None:
    receiver.answer = raw(then_close=False)
    task = asyncio.create_task(dispatcher.send(receiver.url, BODY, "msg_1"))
    await until(lambda: receiver.received)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    receiver.answer = answer(204)
    assert (await dispatcher.send(receiver.url, BODY, "msg_2")).status == 204
    assert receiver.connections == 2


# -- TLS -------------------------------------------------------------------------------------------


class Tls:
    """A receiver's certificate for a name, and who trusts it."""

    def __init__(self, name: str) -> None:
        authority = trustme.CA()
        self.asked_for: list[str | None] = []
        self.server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name).configure_cert(self.server)
        self.server.sni_callback = lambda connection, name, context: self.asked_for.append(name)
        self.client = ssl.create_default_context()
        authority.configure_trust(self.client)


async def resolves_to_this_machine(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_the_name_is_kept_for_tls_and_the_host_header(dispatch: Dispatch) -> None:
    tls = Tls("hooks.example")
    dispatcher = dispatch(allow="127.0.0.1", tls=tls.client, resolve=resolves_to_this_machine)
    async with Receiver(tls=tls.server) as receiver:
        tried = await dispatcher.send(f"https://hooks.example:{receiver.port}/", BODY, "msg_1")
    assert (tried.status, tried.error) == (204, None)
    assert tls.asked_for == ["hooks.example"]
    assert receiver.received[0].headers["host"] == f"hooks.example:{receiver.port}"


@pytest.mark.parametrize("trusted", [True, False], ids=["another name", "an unknown authority"])
async def test_a_certificate_that_is_not_valid_ends_the_try(dispatch: Dispatch, trusted: bool) -> None:
    tls = Tls("other.example" if trusted else "hooks.example")
    options = {"tls": tls.client} if trusted else {}
    dispatcher = dispatch(allow="127.0.0.1", resolve=resolves_to_this_machine, **options)
    async with Receiver(tls=tls.server) as receiver:
        tried = await dispatcher.send(f"https://hooks.example:{receiver.port}/", BODY, "msg_1")
    assert "its certificate is not valid" in (tried.error or "")
    assert receiver.received == []


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"allow": "10.0.0.1/8"}, "webhook_allow"),
        ({"secret": "whsec_?"}, "webhook_secret"),
        ({"timeout": "x"}, "timeout"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        WebhookDispatcher(**options)  # type: ignore[arg-type]
