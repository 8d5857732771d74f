"""`treadle serve` in a separate process, for tests that talk to it as outside clients do."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.cli.command import SECONDS, TREADLE, Command
from tests.http.api import PASSWORD
from tests.waiting import until_blocking

ROOT = "root@example.com"


@dataclass(frozen=True)
class Served:
    """A server that runs, and the command line on its database."""

    url: str
    treadle: Command
    log: Path

    def call(self, method: str, path: str, token: str | None = None, **options: Any) -> httpx.Response:
        headers = {} if token is None else {"Authorization": token}
        return httpx.request(method, f"{self.url}{path}", headers=headers, timeout=SECONDS, **options)

    def superuser(self) -> str:
        """The token of a superuser, made if there is none yet."""
        self.treadle("superuser", "upsert", ROOT, PASSWORD).done()
        return self.sign_in("_superusers", ROOT)

    def sign_in(self, collection: str, email: str) -> str:
        body = {"identity": email, "password": PASSWORD}
        answer = self.call("POST", f"/api/collections/{collection}/auth-with-password", json=body)
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["token"]
        return token


@contextlib.contextmanager
def served(folder: Path, database: str, *words: str, **environment: str) -> Iterator[Served]:
    """Stopped the way an operator stops it; it must exit cleanly."""
    treadle, log = Command(folder, database), folder / "serve.log"
    command = [TREADLE, "serve", *words, "--port", "0", "--db", database]
    with log.open("w") as lines:
        process = subprocess.Popen(command, cwd=folder, env=treadle.environment(environment), stderr=lines)
    try:
        yield Served(_address(process, log), treadle, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(SECONDS)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    def said() -> re.Match[str] | None:
        found = re.search(r"serving on (http://[^\s,]+)", log.read_text())
        assert found or process.poll() is None, log.read_text()
        return found

    found = until_blocking(said, SECONDS, log.read_text)
    assert found
    return found[1]


__all__ = ["PASSWORD", "ROOT", "Served", "served"]
