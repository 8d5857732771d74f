"""PocketBase's own client, in node, against a real server."""

import contextlib
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.http.served import PASSWORD, Served, served
from tests.sdk.sdk_build import built, program
from tests.servers import PostgresServer, ServerMissing, needed

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache"
INSTALL_SECONDS = 300


@dataclass(frozen=True)
class Thrown:
    """A ClientResponseError as the client's user sees it."""

    status: int
    response: dict[str, Any]
    message: str
    path: str


@dataclass(frozen=True)
class Client:
    """Runs scripts in which `pb` is a new client of the server, and `given` is what the test hands in."""

    node: subprocess.Popen[str]
    server: Served

    def run(self, script: str, **given: Any) -> Any:
        """What the script returns."""
        told = self._run(script, given)
        assert "thrown" not in told, told
        return told["returned"]

    def throws(self, script: str, **given: Any) -> Thrown:
        """The error that the client throws."""
        told = self._run(script, given)
        assert "thrown" in told, told
        assert told["thrown"].pop("isAbort") is False
        return Thrown(**told["thrown"])

    def _run(self, script: str, given: dict[str, Any]) -> dict[str, Any]:
        assert self.node.stdin
        assert self.node.stdout
        self.node.stdin.write(json.dumps({"script": script, "given": {"password": PASSWORD, **given}}) + "\n")
        self.node.stdin.flush()
        line = self.node.stdout.readline()
        assert line, "node has gone; its stderr says why"
        told: dict[str, Any] = json.loads(line)
        return told


@pytest.fixture(scope="session")
def node() -> Path:
    return needed(lambda: program("node"))


@pytest.fixture(scope="session")
def package(node: Path) -> Path:
    """The folder with the client in its node_modules, as the lock says; filled once for each lock."""
    return needed(_installed)


@pytest.fixture(scope="session")
def sdk(node: Path) -> Path:
    """The folder of the JavaScript SDK, compiled with its tests."""
    return needed(built)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('database')}/jobs.db"
    else:
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        with postgres.database() as name:
            yield postgres.url(name)


@pytest.fixture(scope="module")
def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a superuser and a user, and rules that give users access to their own jobs."""
    with served(tmp_path_factory.mktemp("served"), database) as server:
        rules = {"enqueue_rule": "@request.auth.id != ''", "manage_rule": "createdBy = @request.auth.id"}
        answer = server.call("PATCH", "/api/settings", server.superuser(), json={"jobs": rules})
        assert answer.status_code == 200, answer.text
        server.treadle("user", "create", "ann@example.com", PASSWORD, "--data", '{"team": "red"}').done()
        yield server


@pytest.fixture(scope="module")
def client(node: Path, package: Path, server: Served) -> Iterator[Client]:
    with client_of(node, package, server) as found:
        yield found


@contextlib.contextmanager
def client_of(node: Path, package: Path, server: Served, extension: Path | None = None) -> Iterator[Client]:
    """With the SDK's module for PocketBase as the extension, `pb` is a client after `withJobs(pb)`."""
    command = [str(node), str(HERE / "script.mjs"), str(package), server.url, *([str(extension)] if extension else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as running:
        yield Client(running, server)


def _installed() -> Path:
    lock = HERE / "package-lock.json"
    folder = CACHE / f"pocketbase-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        CACHE.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="pocketbase-", dir=CACHE))
        for name in ("package.json", lock.name, ".npmrc"):
            shutil.copy(HERE / name, made)
        _install(program("npm"), made)
        _publish(made, folder)
    return folder


def _install(npm: Path, folder: Path) -> None:
    command = [str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, encoding="utf-8", timeout=INSTALL_SECONDS, check=False
        )
        told, failed = done.stderr, done.returncode != 0
    except subprocess.TimeoutExpired:
        told, failed = "no answer from the registry", True
    if failed:
        shutil.rmtree(folder)
        raise ServerMissing(f"the npm package pocketbase: {told.strip().partition(chr(10))[0]}")


def _publish(made: Path, folder: Path) -> None:
    """Another process may have been faster; its copy is as good."""
    try:
        made.rename(folder)
    except OSError:
        shutil.rmtree(made)
        assert folder.exists()
