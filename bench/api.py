"""The HTTP API under load: a real `treadle serve` that runs its jobs as well, asked from another process."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.processes import ROOT, cpu_seconds, stolen_seconds
from bench.scenarios import Figures, load
from bench.work import payload
from treadle import Queue
from treadle.accounts import Accounts

RATE = 300
CONNECTIONS = 50
# As many jobs are asked for in turn.
ASKED_FOR = 500
RULE = "@request.auth.id != ''"
START_SECONDS = 60
# Of each second on 2 cores. Where the host takes more, times of answers are the host's: measured again, a few times.
STOLEN_MS = 20
TRIES = 5


class Server(NamedTuple):
    port: int
    pid: int


class People:
    """Their tokens, and the jobs that they ask for."""

    def __init__(self, tokens: dict[str, str], ids: Sequence[str]) -> None:
        self.tokens = tokens
        self.ids = ids

    def enqueue(self, name: str | None = None) -> list[str]:
        body = json.dumps({"topic": "noop", "payload": payload()}, separators=(",", ":"))
        return [_request("POST /api/jobs/enqueue", self.tokens.get(name or ""), body)]

    def get(self, name: str) -> list[str]:
        return [_request(f"GET /api/jobs/{id}", self.tokens[name]) for id in self.ids]


def _request(line: str, token: str | None, body: str = "") -> str:
    headers = [f"{line} HTTP/1.1", "Host: 127.0.0.1", "Accept: */*", "User-Agent: bench"]
    if token:
        headers.append(f"Authorization: Bearer {token}")
    if body:
        headers += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*headers, "", body])


async def _moved_in(url: str) -> People:
    """A superuser, a user whom a rule lets in, and jobs."""
    await load(url, ASKED_FOR)
    async with Queue(url) as queue:
        accounts = Accounts(queue.store)
        root = await accounts.upsert_superuser("root@example.com", "correct horse")
        ann = await accounts.create_user("ann@example.com", "correct horse")
        tokens = {"superuser": await accounts.token(root), "user": await accounts.token(ann)}
        await queue.site.change({"enqueue_rule": RULE, "manage_rule": RULE})
        return People(tokens, [job.id for job in await queue.list(limit=ASKED_FOR)])


@contextlib.contextmanager
def _running(folder: Path, *words: str) -> Iterator[Server]:
    """A server in its own process; the last word is to be its port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    log = folder / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", *words, str(port)], cwd=ROOT, stdout=file, stderr=file)
    try:
        _wait(process, port, log)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server did not start:\n{log.read_text()}")
        time.sleep(0.02)


def _ask(server: Server, requests: Sequence[str], seconds: float, rate: float | None = None) -> dict[str, float]:
    wanted = {
        "port": server.port,
        "requests": requests,
        "connections": CONNECTIONS,
        "rate": rate,
        "warm": min(seconds, 1),
        "seconds": seconds,
    }
    command = [sys.executable, "-m", "bench.load"]
    cpu, stolen, began = cpu_seconds(server.pid), stolen_seconds(), time.monotonic()
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(wanted), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load generator: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found | {
        "us": (cpu_seconds(server.pid) - cpu) / found["answered"] * 1e6,
        "stolen ms/s": (stolen_seconds() - stolen) / (time.monotonic() - began) * 1e3,
    }


def measure(url: str, folder: Path, seconds: float) -> Figures:
    """What a bare route lets through; times at a steady rate, `seconds` of each; the most that gets through."""
    people = uvloop.run(_moved_in(url))
    figures: Figures = {}
    with _running(folder, "bench.bare") as server:
        figures |= _flat_out("bare FastAPI", server, people.enqueue(), seconds / 2)
    with _running(folder, "treadle", "serve", "bench.served:queue", "--db", url, "--port") as server:
        for name in ("superuser", "user"):
            for what, requests in (("enqueue", people.enqueue(name)), ("get", people.get(name))):
                found = _undisturbed(server, requests, seconds)
                figures |= {
                    f"http {what}, {name}, {key}": found[key] for key in ("p50 ms", "p99 ms", "stolen ms/s", "tries")
                }
        # Last what leaves a backlog behind.
        figures |= _flat_out("http get", server, people.get("superuser"), seconds / 2)
        figures |= _flat_out("http enqueue", server, people.enqueue("superuser"), seconds / 2)
    return figures


def _undisturbed(server: Server, requests: Sequence[str], seconds: float) -> dict[str, float]:
    """At the steady rate; of several tries the one from which the host has taken least."""
    tries: list[dict[str, float]] = []
    while len(tries) < (TRIES if seconds >= 1 else 1):
        tries.append(_ask(server, requests, seconds, RATE))
        if tries[-1]["stolen ms/s"] <= STOLEN_MS:
            break
    return min(tries, key=lambda found: found["stolen ms/s"]) | {"tries": len(tries)}


def _flat_out(name: str, server: Server, requests: Sequence[str], seconds: float) -> Figures:
    found = _ask(server, requests, seconds)
    return {f"{name} /s": found["per second"], f"{name}, server us/request": found["us"]}
