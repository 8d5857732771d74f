"""Nothing inside the network is reached: by address, by name, or by a name that changes."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from ipaddress import ip_address

import pytest

from tests.waiting import until
from tests.webhook_urls import INSIDE, INSIDE_6, bad_urls
from tests.webhooks.conftest import Canary, Dispatch
from tests.webhooks.receiver import Receiver
from treadle.maintenance import addresses
from treadle.maintenance.addresses import checked_addresses
from treadle.model.webhooks import Try
from treadle.policy.addresses import Exempt
from treadle.policy.webhook_urls import check_url

PUBLIC = "93.184.215.14"


def knows(*answers: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A resolver that gives these answers in turn, and the last one for ever."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        resolve.asked += 1  # type: ignore[attr-defined]
        return left.pop(0) if len(left) > 1 else left[0]

    resolve.asked = 0  # type: ignore[attr-defined]
    return resolve


async def test_the_canary_sings(canary: Canary, dispatch: Dispatch) -> None:
    for host in ("127.0.0.1", "localhost"):
        await dispatch(allow="127.0.0.0/8").send(f"http://{host}:{canary.port}/", "{}", "msg_1")
    assert canary.connections == 2


async def test_no_url_that_leads_inside_connects_to_anything(canary: Canary, dispatch: Dispatch) -> None:
    dispatcher = dispatch(http=True, timeout="2s")
    urls = bad_urls(canary.port)
    urls += [url.replace("https:", "http:") for url in urls]
    assert len(set(urls)) >= 200
    tries = await asyncio.gather(*(dispatcher.send(url, "{}", "msg_1") for url in urls))
    assert {one.status for one in tries} == {None}
    assert [one for one in tries if not (one.error or "").startswith("url: ")] == []
    assert canary.connections == 0


@contextlib.asynccontextmanager
async def closing(sessions: addresses.PinnedSessions) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await sessions.close()


def of_this_machine() -> Iterator[str]:
    yield from ("127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::")


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_no_name_that_resolves_inside_connects_to_anything(
    canary: Canary, dispatch: Dispatch, scheme: str
) -> None:
    wrapped = [form.format(one) for one in INSIDE for form in ("::ffff:{}", "64:ff9b::{}", "::{}")]
    for inside in [*of_this_machine(), *INSIDE, *INSIDE_6, *wrapped, "fe80::1%lo"]:
        for resolved in ([inside], [PUBLIC, inside], [inside, PUBLIC]):
            dispatcher = dispatch(http=True, resolve=knows(resolved), timeout="2s")
            tried = await dispatcher.send(f"{scheme}://hooks.example:{canary.port}/", "{}", "msg_1")
            shown = str(ip_address(inside))
            assert tried.status is None
            assert f"hooks.example resolves to {shown}, which is not a public address" in (tried.error or "")
    assert canary.connections == 0


async def test_a_name_that_changes_between_two_look_ups_is_looked_up_once(
    canary: Canary, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: public for the check, this machine a moment later. Only the first answer is connected to."""
    resolve = knows([PUBLIC], ["127.0.0.1"])
    connected: list[object] = []

    async def connect(self: object, sock: socket.socket, address: object) -> None:
        connected.append(address)
        raise ConnectionRefusedError("the test has no network")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(type(loop), "sock_connect", connect)
    tried = await dispatch(http=True, resolve=resolve).send(f"http://hooks.example:{canary.port}/", "{}", "msg_1")
    monkeypatch.undo()
    assert "Cannot connect to host hooks.example" in (tried.error or "")
    assert connected == [(PUBLIC, canary.port)]
    assert resolve.asked == 1  # type: ignore[attr-defined]
    assert canary.connections == 0


async def test_the_next_try_looks_up_and_checks_again(canary: Canary, dispatch: Dispatch) -> None:
    """The connection that is still open does not count: the name has moved to where nothing may be sent."""
    dispatcher = dispatch(allow="127.0.0.2", http=True, resolve=knows(["127.0.0.2"], ["127.0.0.1"]))
    async with Receiver() as receiver:
        await receiver.also_on("127.0.0.2")
        url = f"http://hooks.example:{receiver.port}/"
        assert (await dispatcher.send(url, "{}", "msg_1")).status == 204
        tried = await dispatcher.send(url, "{}", "msg_2")
        assert "resolves to 127.0.0.1" in (tried.error or "")
        assert len(receiver.received) == 1


async def test_a_name_that_moves_gets_new_connections(dispatch: Dispatch) -> None:
    dispatcher = dispatch(allow="127.0.0.0/8", resolve=knows(["127.0.0.1"], ["127.0.0.1"], ["127.0.0.2"]), http=True)
    async with Receiver() as receiver:
        await receiver.also_on("127.0.0.2")
        for number in range(4):
            await dispatcher.send(f"http://hooks.example:{receiver.port}/", "{}", f"msg_{number}")
        assert receiver.addresses == ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]
        assert receiver.connections == 2


async def test_a_connection_to_an_address_that_was_not_checked_is_not_made(canary: Canary) -> None:
    """Whatever the client library may resolve by itself."""
    url = check_url(f"http://hooks.example:{canary.port}/", http_allowed=True)
    sessions = addresses.PinnedSessions()
    async with closing(sessions), sessions.to(url, frozenset({ip_address(PUBLIC)})) as session:
        for host in ("127.0.0.1", "localhost", "other.example"):
            with pytest.raises(OSError, match="was not checked"):
                await session.post(f"http://{host}:{canary.port}/")
    assert canary.connections == 0


async def test_all_addresses_of_a_name_are_tried(dispatch: Dispatch) -> None:
    dispatcher = dispatch(allow="127.0.0.0/8", resolve=knows(["127.0.0.3", "127.0.0.1"]), http=True)
    async with Receiver() as receiver:
        tried = await dispatcher.send(f"http://hooks.example:{receiver.port}/", "{}", "msg_1")
    assert tried.status == 204


@pytest.mark.parametrize(
    ("allow", "host", "resolved", "used"),
    [
        ("hooks.example", "hooks.example", ["10.0.0.1", PUBLIC], {"10.0.0.1", PUBLIC}),
        ("10.0.0.0/8", "hooks.example", ["10.0.0.1", PUBLIC], {"10.0.0.1", PUBLIC}),
        ("127.0.0.0/8", "localhost", ["127.0.0.1", "::1"], {"127.0.0.1"}),
        ("localhost", "localhost", ["127.0.0.1", "::1"], {"127.0.0.1", "::1"}),
        ("fd00::/8", "[fd00::1]", [], {"fd00::1"}),
        ("", "hooks.example", [PUBLIC, PUBLIC, "2606:4700::1111"], {PUBLIC, "2606:4700::1111"}),
    ],
)
async def test_what_is_allowed_is_used(allow: str, host: str, resolved: list[str], used: set[str]) -> None:
    exempt = Exempt.parse(allow)
    found = await checked_addresses(check_url(f"http://{host}/", exempt, True), exempt, knows(resolved))
    assert found == {ip_address(one) for one in used}


async def unknown_name(host: str, port: int) -> Sequence[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize(
    ("resolve", "problem"),
    [
        (unknown_name, "hooks.example could not be resolved: Name or service not known"),
        (knows([]), "hooks.example could not be resolved: it has no addresses"),
    ],
)
async def test_a_name_without_an_address_is_a_failure_of_the_try(
    dispatch: Dispatch, resolve: Callable[[str, int], Awaitable[Sequence[str]]], problem: str
) -> None:
    tried = await dispatch(resolve=resolve).send("https://hooks.example/", "{}", "msg_1")
    assert (tried.status, problem in (tried.error or "")) == (None, True)


async def test_the_systems_resolver_knows_this_machine_and_no_nonsense(dispatch: Dispatch) -> None:
    assert "127.0.0.1" in await addresses.look_up("localhost", 80)
    with pytest.raises(socket.gaierror):
        await addresses.look_up("no-such-name.invalid", 80)
    with pytest.raises(OSError, match="too long"):
        await addresses.look_up("a" * 64 + ".example", 80)


async def test_a_look_up_that_hangs_holds_up_nobody(dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds at once, and the default threads of the event loop stay free."""
    waiting: list[str] = []

    def hang(host: str, port: int, **_: object) -> list[object]:
        waiting.append(host)
        time.sleep(1)  # a look-up that takes longer than the try
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    dispatcher = dispatch(timeout="200ms")
    sending = [asyncio.create_task(dispatcher.send(f"https://h{n}.example/", "{}", "msg_1")) for n in range(100)]
    await until(lambda: len(waiting) == 100)
    assert await asyncio.to_thread(lambda: "free") == "free"
    tries: list[Try] = await asyncio.gather(*sending)
    assert {one.error for one in tries} == {"no answer within 200ms"}
