"""HTTP load: `python -m bench.load` reads what to do as JSON from stdin and prints what it saw.

Plain sockets that stay open and one epoll, because the machine that is measured also runs this: about
20 µs a request. With a rate, requests are due at random moments of that rate, like requests from independent
people, and each is timed from the moment it was due, even if it is sent late: a stall of the server counts
for every request that was due during it. Without a rate, every connection sends its next request as soon as
the last one is answered, and only the throughput counts.
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

# How long the last answers may take.
PATIENCE_S = 10.0
LENGTH = b"content-length: "


class Connection:
    """One request at a time."""

    __slots__ = ("answer", "due", "socket")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due = 0.0
        self.answer = b""

    def receive(self) -> bool:
        """True: the answer is all there."""
        data = self.socket.recv(65_536)
        if not data:
            raise SystemExit(f"the server closed a connection after {self.answer[:300]!r}")
        answer = self.answer = self.answer + data
        head = answer.find(b"\r\n\r\n")
        if head < 0:
            return False
        start = answer.index(LENGTH, 0, head) + len(LENGTH)
        length = int(answer[start : answer.index(b"\r", start)])
        if len(answer) < head + 4 + length:
            return False
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"not a success: {answer[:600]!r}")
        return True


class Load:
    def __init__(self, port: int, requests: Sequence[bytes], connections: int) -> None:
        self.requests = itertools.cycle(requests)
        self.epoll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.answered: list[tuple[float, float]] = []
        """When each was due, and when it was answered."""
        for _ in range(connections):
            one = Connection(port)
            self.connections[one.socket.fileno()] = one
            self.epoll.register(one.socket, select.EPOLLIN)

    def send(self, connection: Connection, due: float) -> None:
        connection.due, connection.answer = due, b""
        connection.socket.sendall(next(self.requests))

    def receive(self, timeout: float) -> list[Connection]:
        """Connections that have their answer."""
        done = []
        for number, _ in self.epoll.poll(timeout):
            connection = self.connections[number]
            if connection.receive():
                self.answered.append((connection.due, time.perf_counter()))
                done.append(connection)
        return done

    def at_rate(self, rate: float, seconds: float) -> None:
        gaps = random.Random(1)
        idle, waiting = deque(self.connections.values()), deque[float]()
        due = time.perf_counter()
        end = due + seconds
        while due < end or waiting or len(idle) < len(self.connections):
            now = time.perf_counter()
            if now > end + PATIENCE_S:
                raise SystemExit(f"{len(waiting)} requests could not even be sent at {rate:g}/s")
            while due <= now and due < end:
                waiting.append(due)
                due += gaps.expovariate(rate)
            while waiting and idle:
                self.send(idle.popleft(), waiting.popleft())
            # epoll itself waits in whole milliseconds, which would make every other request late.
            pause = due - time.perf_counter() if due < end else 0.1
            select.select([self.epoll], (), (), max(pause, 0))
            idle += self.receive(0)

    def flat_out(self, seconds: float) -> None:
        for connection in self.connections.values():
            self.send(connection, time.perf_counter())
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            for connection in self.receive(1.0):
                self.send(connection, now)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def main(wanted: dict[str, Any]) -> dict[str, float]:
    load = Load(wanted["port"], [text.encode() for text in wanted["requests"]], wanted["connections"])
    rate, warm, seconds = wanted["rate"], wanted["warm"], wanted["seconds"]
    gc.disable()
    started = time.perf_counter()
    if rate:
        load.at_rate(rate, warm + seconds)
    else:
        load.flat_out(warm + seconds)
    begin = started + warm
    if rate:
        took = [answered - due for due, answered in load.answered if due >= begin]
    else:
        took = [answered - due for due, answered in load.answered if begin <= answered < begin + seconds]
    return {
        "per second": len(took) / seconds,
        "p50 ms": percentile(took, 0.5) * 1e3,
        "p99 ms": percentile(took, 0.99) * 1e3,
        "answered": len(load.answered),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.load(sys.stdin))))
