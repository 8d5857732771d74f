"""Limits below HTTP: a client that never finishes its request, or never begins one, costs little and not for long."""

import asyncio
import http.client
import json
import logging
import re
import socket
from typing import Any

import pytest

from tests.http.live import LiveServer
from tests.waiting import until
from treadle.http import connections
from treadle.http.connections import Doorkeeper, Limits

MIB = 1024 * 1024
QUICK = Limits(head_s=0.3, body_s=0.3)
HEALTH = b"GET /api/health HTTP/1.1\r\nHost: x\r\n"


async def connect(server: LiveServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and code of the last answer before the server closes the connection; (0, "") without one."""
    try:
        text = (await asyncio.wait_for(reader.read(), 30)).decode()
    except ConnectionResetError:
        return 0, "reset"
    status = re.findall(r"HTTP/1\.1 (\d+)", text)
    return (int(status[-1]), json.loads(text.rpartition("\r\n\r\n")[2])["code"]) if status else (0, "")


async def pour(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, piece: bytes
) -> tuple[int, str]:
    """The answer to a client that goes on sending until it comes."""
    answer = asyncio.create_task(answer_of(reader))
    writer.write(head)
    while not answer.done():
        writer.write(piece)
        await asyncio.sleep(0)  # one turn of the loop
        if writer.transport.get_write_buffer_size():
            await answer  # the sockets are full, and the server reads no further
    return await answer


async def pour_blindly(server: LiveServer, head: bytes, piece: bytes, most: int) -> int:
    """How many bytes go out, up to this many, before the server closes the connection of a client that never reads."""
    sent = 0
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.setblocking(False)
        try:
            await loop.sock_sendall(line, head)
            while sent < most:
                await asyncio.wait_for(loop.sock_sendall(line, piece), 30)
                sent += len(piece)
                await asyncio.sleep(0)  # a send that does not wait lets no other task run
        except ConnectionError:
            pass
    return sent


ENDLESS = pytest.mark.parametrize(
    ("head", "piece"),
    [
        (HEALTH + b"X-Endless: ", b"x" * 4096),
        (HEALTH, b"X-Many: x\r\n" * 400),
        (b"GET /api/health?q=", b"x" * 4096),
        (b"", b"\r\n" * 2048),
        (b"G", b"E" * 4096),
    ],
)


@ENDLESS
async def test_a_head_ends_after_64_kib(sqlite_url: str, head: bytes, piece: bytes) -> None:
    async with LiveServer(sqlite_url) as server:
        reader, writer = await connect(server)
        status, code = await pour(reader, writer, head, piece)
        assert (status, code) in ((431, "headers_too_large"), (400, "invalid_request"))
        writer.close()


@ENDLESS
async def test_a_client_that_never_reads_is_cut_off(sqlite_url: str, head: bytes, piece: bytes) -> None:
    async with LiveServer(sqlite_url) as server:
        sent = await pour_blindly(server, head, piece, 50 * MIB)
        assert sent < 8 * MIB  # what the sockets of both sides hold


async def test_a_refused_client_that_stops_sending_is_cut_off_too(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 0.3)
    async with LiveServer(sqlite_url, Limits(connections=1)) as server:
        reader, writer = await connect(server)
        writer.write(HEALTH + b"X-Long: " + b"x" * 66_000)
        assert await answer_of(reader) == (431, "headers_too_large")

        async def served() -> bool:
            reader, writer = await connect(server)
            writer.write(HEALTH + b"Connection: close\r\n\r\n")
            try:
                text = await asyncio.wait_for(reader.read(), 30)
            except ConnectionResetError:  # refused before it was read
                text = b""
            writer.close()
            return text.startswith(b"HTTP/1.1 200")

        await until(served)  # it counts as a connection until then
        writer.close()


async def test_a_large_head_is_a_431(sqlite_url: str) -> None:
    async with LiveServer(sqlite_url) as server:
        for size, status in ((60_000, 200), (66_000, 431)):
            reader, writer = await connect(server)
            writer.write(HEALTH + b"Connection: close\r\nX-Long: " + b"x" * size + b"\r\n\r\n")
            text = await asyncio.wait_for(reader.read(), 30)
            assert text.startswith(b"HTTP/1.1 %d " % status), text[:200]
            writer.close()


@pytest.mark.parametrize("half", [b"", b"GET /api/hea", HEALTH, HEALTH + b"X-Half: x"])
async def test_a_head_has_to_be_complete_in_time(sqlite_url: str, half: bytes) -> None:
    async with LiveServer(sqlite_url, QUICK) as server:
        reader, writer = await connect(server)
        writer.write(half)
        assert await answer_of(reader) == (408, "request_timeout")
        writer.close()


async def test_the_next_request_of_a_connection_has_to_be_complete_in_time_too(sqlite_url: str) -> None:
    async with LiveServer(sqlite_url, QUICK) as server:
        reader, writer = await connect(server)
        for _ in range(3):
            writer.write(HEALTH + b"\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"}}")
        writer.write(HEALTH)
        assert await answer_of(reader) == (408, "request_timeout")
        writer.close()


async def test_a_body_has_to_be_complete_in_time(sqlite_url: str) -> None:
    path = b"POST /api/collections/users/auth-with-password HTTP/1.1\r\nHost: x\r\n"
    kinds = (b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
    async with LiveServer(sqlite_url, QUICK) as server:
        for kind in kinds:
            reader, writer = await connect(server)
            writer.write(path + b"Content-Type: application/json\r\n" + kind)
            assert await answer_of(reader) == (408, "request_timeout")
            writer.close()


async def test_connections_are_counted_in_all_and_per_address(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with LiveServer(sqlite_url, Limits(connections=20, per_address=5)) as server:
        with caplog.at_level(logging.WARNING, "treadle.http"):
            held = [await connect(server) for _ in range(5)]
            reader, writer = await connect(server)
            assert await answer_of(reader) == (503, "too_many_connections")
            writer.close()
        assert (
            "connections refused: 5 connections of one address are open (1 times; the last from 127.0.0.1)"
            in caplog.text
        )
        held[0][1].write(HEALTH + b"Connection: close\r\n\r\n")
        assert (await asyncio.wait_for(held[0][0].read(), 30)).startswith(b"HTTP/1.1 200")
        reader, writer = await connect(server)
        writer.write(HEALTH + b"Connection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 200")
        for _, one in (*held, (reader, writer)):
            one.close()


def test_a_doorkeeper_lets_others_in_when_one_has_all_its_connections(caplog: pytest.LogCaptureFixture) -> None:
    keeper = Doorkeeper(Limits(connections=10, per_address=6))
    with caplog.at_level(logging.WARNING, "treadle.http"):
        assert [keeper.enter("a") for _ in range(8)] == [True] * 6 + [False] * 2
        assert [keeper.enter("b") for _ in range(5)] == [True] * 4 + [False]
    assert len(caplog.records) == 1  # the others are counted, and told later
    for _ in range(6):
        keeper.leave("a")
    assert keeper.enter("a")


@pytest.mark.parametrize(("files", "most"), [(1024, 800), (256, 128), (1_000_000, 10_000), (None, 10_000)])
def test_connections_leave_files_for_the_rest_of_the_process(
    monkeypatch: pytest.MonkeyPatch, files: int | None, most: int
) -> None:
    monkeypatch.setattr(connections, "_most_files", lambda: files)
    found = connections.limits()
    assert (found.connections, found.per_address) == (most, most // 2)


@pytest.mark.parametrize("token", [None, "bad"])
async def test_a_body_of_30_mib_is_an_answer_and_no_broken_pipe(sqlite_url: str, token: Any) -> None:
    def post(port: int, path: str, chunked: bool) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Content-Type": "application/json"} | ({"Authorization": token} if token else {})
        body = [b" " * MIB] * 30
        connection.request("POST", path, iter(body) if chunked else b"".join(body), headers, encode_chunked=chunked)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    async with LiveServer(sqlite_url) as server:
        for chunked in (False, True):
            sign_in = "/api/collections/users/auth-with-password"
            assert await asyncio.to_thread(post, server.port, sign_in, chunked) == 413
            assert await asyncio.to_thread(post, server.port, "/api/jobs/enqueue", chunked) == 401
