"""`treadle serve`: the real server in a separate process."""

import contextlib
import fcntl
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.cli.command import SECONDS, Command
from tests.servers import PostgresServer, find_postgres, free_port, needed
from tests.waiting import until_blocking

PASSWORD = "correct horse"


class Serving:
    def __init__(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        self.process = process
        self.lines = lines
        found = re.search(r"serving on (http://\S+?),", lines[0])
        assert found, lines[0]
        self.url = found[1]

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(method, f"{self.url}{path}", timeout=SECONDS, **options)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


@contextlib.contextmanager
def serving(treadle: Command, *words: str, lines: int = 1, **environment: str) -> Iterator[Serving]:
    at = [] if treadle.database is None else ["--db", treadle.database]
    with treadle.started("serve", *words, "--port", "0", *at, **environment) as process:
        assert process.stderr
        yield Serving(process, [process.stderr.readline() for _ in range(lines)])


def token(treadle: Command, server: Serving) -> str:
    treadle("superuser", "upsert", "root@example.com", PASSWORD).done()
    body = {"identity": "root@example.com", "password": PASSWORD}
    found: str = server.call("POST", "/api/collections/_superusers/auth-with-password", json=body).json()["token"]
    return found


@pytest.mark.every_store
def test_it_serves_the_api_and_runs_the_jobs(app: Command) -> None:
    with serving(app, "app:queue") as server:
        headers = {"Authorization": token(app, server)}
        body = {"topic": "greet", "payload": {"name": "Ada"}}
        job = server.call("POST", "/api/jobs/enqueue", json=body, headers=headers).json()

        def done() -> bool:
            found = server.call("GET", f"/api/jobs/{job['id']}", headers=headers).json()
            return bool(found["status"] == "completed" and found["result"] == "Hello, Ada!")

        until_blocking(done)
        assert server.stop() == 0


def test_without_a_module_it_runs_no_jobs_but_sees_to_delayed_ones(treadle: Command) -> None:
    with serving(treadle) as server:
        assert "no jobs are run here" in server.lines[0]
        headers = {"Authorization": token(treadle, server)}
        body = {"topic": "greet", "delay": "200ms"}
        job = server.call("POST", "/api/jobs/enqueue", json=body, headers=headers).json()
        claim = {"workerId": "w", "topics": ["greet"], "wait": "20s"}
        (claimed,) = server.call("POST", "/api/workers/claim", json=claim, headers=headers).json()["items"]
        assert claimed["id"] == job["id"]
        done = {"token": claimed["token"], "result": {"ok": True}}
        answer = server.call("POST", f"/api/workers/jobs/{job['id']}/complete", json=done, headers=headers)
        assert answer.json()["status"] == "completed"
        assert server.stop() == 0


def test_the_first_start_prints_a_link_that_works_once(treadle: Command) -> None:
    with serving(treadle, lines=2) as server:
        found = re.search(r"(http://\S+)/_/setup#token=(\S+)", server.lines[1])
        assert found, server.lines
        assert found[1] == server.url
        assert server.call("GET", "/_/setup").status_code == 200
        body = {"token": found[2], "email": "root@example.com", "password": PASSWORD}
        assert server.call("POST", "/api/setup", json=body).status_code == 200
        assert server.call("POST", "/api/setup", json=body).status_code == 403
        assert server.stop() == 0
    with serving(treadle) as server:
        assert server.stop() == 0
        assert server.process.stderr
        assert "setup" not in server.process.stderr.read()


def test_only_this_machine_unless_told_otherwise(treadle: Command) -> None:
    with serving(treadle) as server:
        port = int(server.url.rpartition(":")[2])
        assert server.url.startswith("http://127.0.0.1:")
        others = {
            str(found[4][0])
            for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
            if not str(found[4][0]).startswith("127.")
        }
        for address in others:
            with pytest.raises(ConnectionRefusedError), socket.create_connection((address, port), timeout=5):
                pass


def test_a_port_that_is_taken_is_one_line(treadle: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = treadle("serve", "--port", str(port)).refused(1)
    assert f"127.0.0.1:{port}" in line
    assert "--port" in line


def test_settings_come_from_the_environment(treadle: Command) -> None:
    assert treadle.database
    port = free_port()
    environment = {"TREADLE_PORT": str(port), "TREADLE_HOST": "localhost", "TREADLE_DB": treadle.database}
    with treadle.started("serve", **environment) as process:
        assert process.stderr
        assert f"http://localhost:{port}" in process.stderr.readline()


def test_a_changed_password_ends_tokens_of_a_running_server(treadle: Command) -> None:
    with serving(treadle) as server:
        headers = {"Authorization": token(treadle, server)}
        assert server.call("GET", "/api/jobs", headers=headers).status_code == 200
        treadle("superuser", "upsert", "root@example.com", "another horse").done()
        assert server.call("GET", "/api/jobs", headers=headers).status_code == 401


def test_a_database_that_does_not_answer_keeps_no_server_from_stopping_while_it_starts(treadle: Command) -> None:
    assert treadle.database
    with serving(treadle, "--drain", "1s") as server, unanswering(treadle.database):
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0


def test_a_database_that_does_not_answer_keeps_no_server_from_stopping(treadle: Command) -> None:
    assert treadle.database
    with serving(treadle, "--drain", "1s") as server:
        headers = {"Authorization": token(treadle, server)}
        with unanswering(treadle.database):
            with pytest.raises(httpx.TimeoutException):  # the server goes on waiting for the database
                httpx.post(f"{server.url}/api/jobs/enqueue", json={"topic": "mail"}, headers=headers, timeout=1)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30) == 0


def test_a_database_that_goes_away_right_after_the_start_does_not_end_it(alone: Command) -> None:
    with PostgresServer(needed(find_postgres)) as database:
        treadle = Command(alone.folder, database.create_database("away"))
        with serving(treadle) as server:
            database.stop("immediate")
            assert server.call("GET", "/api/jobs").status_code in (401, 503)
            assert server.process.poll() is None
            database.start()
            headers = {"Authorization": token(treadle, server)}
            until_blocking(lambda: server.call("GET", "/api/jobs", headers=headers).status_code == 200)
            assert server.stop() == 0


@contextlib.contextmanager
def unanswering(database: str) -> Iterator[None]:
    """Another program holds what every statement of the engine needs."""
    if database.startswith("sqlite"):
        with Path(f"{database.removeprefix('sqlite:///')}.lock").open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        return
    with psycopg.connect(database) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'treadle'").fetchall()
        names = ", ".join(f"treadle.{table}" for (table,) in tables)
        connection.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
        yield


def test_a_running_job_is_given_time_and_then_given_back(app: Command) -> None:
    with serving(app, "app:queue", "--drain", "100ms") as server:
        headers = {"Authorization": token(app, server)}
        job = server.call("POST", "/api/jobs/enqueue", json={"topic": "sleep"}, headers=headers).json()
        until_blocking(
            lambda: server.call("GET", f"/api/jobs/{job['id']}", headers=headers).json()["status"] == "processing"
        )
        assert server.stop() == 0
    found = app("jobs", "show", job["id"], "--json").done().json
    assert (found["status"], found["attempt"]) == ("pending", 0)
