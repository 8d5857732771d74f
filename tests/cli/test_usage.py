"""Every command: help, exit codes, one line per error."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import treadle as package
from tests.cli.command import SECONDS, TREADLE, Command
from treadle.store.sql.migrate import migrations

GROUPS = {
    "jobs": ["list", "show", "why", "requeue", "signal", "cancel", "delete"],
    "schedules": ["list", "show", "next", "create", "edit", "enable", "disable", "run", "delete"],
    "templates": ["list", "show", "versions", "use", "enable", "disable"],
    "webhooks": "list show create edit enable disable delete rotate test deliveries redeliver".split(),
    "superuser": ["upsert", "list", "delete"],
    "user": ["create", "update", "list", "delete"],
    "api-key": ["create", "list", "revoke"],
}
COMMANDS = [
    "serve",
    "worker",
    "enqueue",
    *GROUPS,
    "stats",
    "top",
    "reclaim",
    "doctor",
    "rotate-key",
    "migrate",
    "bench",
    "demo",
]
GROUPED = [[group, name] for group, names in GROUPS.items() for name in names]
SECRET = "s3cr3t"


def test_the_help_names_every_command(alone: Command) -> None:
    text = alone.bare("--help").done().out
    assert all(f"\n  {name} " in text for name in COMMANDS)
    for group, names in GROUPS.items():
        grouped = alone.bare(group, "-h").done().out
        assert all(f"\n  {name} " in grouped for name in names)


@pytest.mark.parametrize("words", [*([name] for name in COMMANDS), *GROUPED])
def test_every_command_has_help_without_a_database(alone: Command, words: list[str]) -> None:
    text = alone.bare(*words, "--help").done().out
    assert text.startswith(f"Usage: treadle {' '.join(words)}")
    assert list(alone.folder.iterdir()) == []


def test_without_a_command_the_help_is_shown(alone: Command) -> None:
    ran = alone.bare()
    assert ran.code == 2
    assert ran.out.startswith("Usage: treadle")


def test_version(alone: Command) -> None:
    assert alone.bare("--version").done().out == f"treadle {package.__version__}\n"


def test_python_m_treadle_is_the_same(alone: Command) -> None:
    done = subprocess.run([sys.executable, "-m", "treadle", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == alone.bare("--version").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["laundry"], "No such command 'laundry'"),
        (["job"], "Did you mean 'jobs'?"),
        (["jobs"], "Missing command"),
        (["jobs", "rm"], "No such command 'rm'"),
        (["stats", "--topik", "x"], "No such option: --topik"),
        (["enqueue"], "Missing argument 'TOPIC'"),
        (["jobs", "show"], "Missing argument 'ID'"),
        (["jobs", "requeue"], "give ids, or choose jobs with --filter"),
        (["jobs", "list", "--limit", "many"], "'--limit'"),
        (["worker", "app:queue", "--processes", "0"], "'--processes'"),
        (["stats", "--db"], "--db"),
        (["stats", "\x1b[2J"], r"\x1b[2J"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(alone: Command, words: list[str], told: str) -> None:
    line = alone.bare(*words).refused(2)
    assert told in line
    assert "--help" in line


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "is not a database URL"),
        ("jobs.db", "is not a database URL"),
        (f"mysql://ann:{SECRET}@host/x", "'mysql://ann:…@host/x' is not a database URL"),
        (f"postgres//ann:{SECRET}@host/x", "'postgres//ann:…@host/x' is not a database URL"),
        ("sqlite://jobs.db", "write sqlite:///jobs.db for a file here"),
        ("sqlite:///jobs.db?mode=ro", "the only option is synchronous=full|normal"),
        ("sqlite:///.", "is a directory"),
        ("postgresql://[::1", "Invalid IPv6 URL"),
        (f"postgresql://ann:{SECRET}@127.0.0.1:99999/x", "check its port"),
        (f"postgresql://ann:pa@{SECRET}:{SECRET}@127.0.0.1:1/x", "can't be read"),
        (f"postgresql://ann@127.0.0.1:1/x?password={SECRET}&sslmode=perhaps", "sslmode"),
    ],
)
def test_a_bad_url_is_told_without_its_password(alone: Command, url: str, told: str) -> None:
    line = alone.bare("stats", "--db", url).refused(2)
    assert told in line
    assert SECRET not in line
    assert list(alone.folder.iterdir()) == []


@pytest.mark.parametrize("words", [["stats"], ["jobs", "list"], ["enqueue", "mail"], ["migrate"]])
def test_a_server_that_is_away_is_a_failure(alone: Command, words: list[str]) -> None:
    line = alone.bare(*words, "--db", f"postgresql://ann:{SECRET}@127.0.0.1:1/x").refused(1)
    assert "127.0.0.1:1/x can't be used just now" in line
    assert SECRET not in line


def test_a_file_that_is_no_database(alone: Command) -> None:
    (alone.folder / "notes.db").write_text("Dear diary, this is no database at all. " * 30)
    for words in (["stats"], ["enqueue", "mail"], ["migrate"]):
        assert "notes.db is not a SQLite database" in alone.bare(*words, "--db", "sqlite:///notes.db").refused(2)


def forbidden_folder(parent: Path) -> Path:
    """A folder in which no user can create a file; a mode would not stop root."""
    if os.geteuid() == 0:
        return Path("/proc")
    folder = parent / "forbidden"
    folder.mkdir(mode=0o500)
    return folder


def test_no_permission_for_the_file(alone: Command) -> None:
    url = f"sqlite:///{forbidden_folder(alone.folder)}/jobs.db"
    for words in (["enqueue", "mail", "--create"], ["migrate"]):
        assert "unable to open database file" in alone.bare(*words, "--db", url).refused(1)


def test_no_permission_in_the_server(alone: Command, postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    guest = postgres_url.replace("postgres@", "guest@", 1)
    try:
        assert "permission denied" in alone.bare("migrate", "--db", guest).refused(2)
        assert "permission denied" in alone.bare("enqueue", "mail", "--db", guest).refused(2)
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP ROLE guest")


@pytest.mark.parametrize(
    "words",
    [["stats"], ["jobs", "list"], ["enqueue", "mail"], ["migrate"], ["migrate", "--check"], ["jobs", "delete", "x"]],
)
def test_a_database_newer_than_the_code_is_refused(treadle: Command, words: list[str]) -> None:
    treadle("migrate").done()
    pretend_newer(treadle)
    assert "the database has migration 9999" in treadle(*words).refused(1)


def pretend_newer(treadle: Command) -> None:
    assert treadle.database
    if treadle.database.startswith("sqlite"):
        import sqlite3

        with sqlite3.connect(treadle.database.removeprefix("sqlite:///")) as connection:
            connection.execute("INSERT INTO treadle_migrations VALUES (9999, '9999_future', 'now')")
        connection.close()
    else:
        import psycopg

        with psycopg.connect(treadle.database) as server:
            server.execute("INSERT INTO treadle.migrations (number, name) VALUES (9999, '9999_future')")


@pytest.mark.parametrize(
    "words",
    [
        ["stats"],
        ["jobs", "list"],
        ["jobs", "show", "x"],
        ["jobs", "why", "x"],
        ["jobs", "cancel", "x"],
        ["jobs", "requeue", "x"],
        ["jobs", "delete", "x"],
        ["migrate", "--check"],
        ["superuser", "list"],
        ["superuser", "delete", "x"],
        ["user", "list"],
        ["user", "update", "x"],
        ["user", "delete", "x"],
        ["api-key", "list"],
        ["api-key", "revoke", "x"],
    ],
)
def test_who_only_looks_makes_no_database(alone: Command, words: list[str]) -> None:
    assert "sqlite:///jobs.db does not exist" in alone.bare(*words).refused(1)
    assert list(alone.folder.iterdir()) == []


@pytest.mark.empty_database
@pytest.mark.parametrize("words", [["stats"], ["jobs", "list"], ["jobs", "show", "x"]])
def test_who_only_looks_changes_no_schema(treadle: Command, words: list[str]) -> None:
    if str(treadle.database).startswith("sqlite"):
        Path(str(treadle.database).removeprefix("sqlite:///")).touch()
    names = ", ".join(one.name for one in migrations("sqlite"))
    assert f"lacks {names}; run treadle migrate" in treadle(*words).refused(1)


# -- settings ----------------------------------------------------------------------------------------------------


def test_flags_come_before_the_environment_and_that_before_the_file(alone: Command) -> None:
    (alone.folder / "treadle.toml").write_text('db = "sqlite:///from-file.db"\n')
    enqueue = ["enqueue", "mail", "--create"]
    alone.bare(*enqueue).done()
    alone.bare(*enqueue, TREADLE_DB="sqlite:///from-environment.db").done()
    alone.bare(*enqueue, "--db", "sqlite:///from-flag.db", TREADLE_DB="sqlite:///from-environment.db").done()
    names = {file.name for file in alone.folder.glob("*.db")}
    assert names == {"from-file.db", "from-environment.db", "from-flag.db"}
    for source in names:
        assert alone.bare("stats", "--json", "--db", f"sqlite:///{source}").done().json["pending"] == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [("db = ", "treadle.toml"), ("colour = 1", "'colour' is not a setting"), ("slots = 0", "slots: 0 is not between")],
)
def test_a_bad_settings_file(alone: Command, text: str, told: str) -> None:
    (alone.folder / "treadle.toml").write_text(text)
    assert told in alone.bare("enqueue", "mail").refused(2)


def test_a_bad_environment(alone: Command) -> None:
    assert "lease: 'soon' is not a duration" in alone.bare("enqueue", "mail", TREADLE_LEASE="soon").refused(2)


# -- the other side of a pipe, and of a keyboard -------------------------------------------------------------------


def test_a_reader_that_leaves_early_is_no_error(alone: Command, sqlite_url: str) -> None:
    from treadle import Queue

    queue = Queue(sqlite_url).sync
    queue.enqueue_many("mail", [{"text": "x" * 1000}] * 300)
    queue.close()
    script = f"{TREADLE} jobs list --limit 300 --json --db {sqlite_url} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=SECONDS)
    assert done.stdout == "{\n1\n"
    assert done.stderr == ""


def test_ctrl_c_is_130_without_a_word(treadle: Command) -> None:
    assert treadle.database
    with treadle.started("enqueue", "mail", "--wait", "--db", treadle.database) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline().startswith("enqueued job")
        time.sleep(0.1)  # it waits for nothing that we could see
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr.read() == ""


def test_a_bug_is_one_line_too_and_a_trace_in_dev_mode(alone: Command) -> None:
    broken = "from treadle.store import connect; connect.database_exists = None; from treadle.cli import main; "
    words = [sys.executable, "-c", broken + "raise SystemExit(main(['stats']))"]
    for options, lines in (([], 1), (["-X", "dev"], None)):
        done = subprocess.run(
            [words[0], *options, *words[1:]], cwd=alone.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert ("Traceback" in done.stderr) is (lines is None)
        assert "TypeError: 'NoneType' object is not callable" in done.stderr
        assert lines is None or done.stderr.count("\n") == lines


# -- JSON and tables -----------------------------------------------------------------------------------------------


def test_no_colour_in_a_pipe_and_unicode_survives(alone: Command, sqlite_url: str) -> None:
    alone.bare("enqueue", "mail", '{"to": "Zoë"}', "--create", "--db", sqlite_url).done()
    for environment in ({}, {"PYTHONIOENCODING": "ascii"}):
        listed = alone.bare("jobs", "list", "--json", "--db", sqlite_url, **environment).done()
        assert listed.json["items"][0]["payload"] == {"to": "Zoë"}
    assert "\x1b" not in alone.bare("jobs", "list", "--db", sqlite_url).done().out


def test_colour_on_a_terminal_unless_told_otherwise(alone: Command, sqlite_url: str) -> None:
    alone.bare("enqueue", "mail", "--create", "--db", sqlite_url).done()
    words = ["jobs", "list", "--db", sqlite_url]
    coloured = alone.on_terminal(*words)
    assert coloured.code == 0
    assert "\x1b[36mpending" in coloured.out
    plain = alone.on_terminal(*words, NO_COLOR="1").out
    assert "pending" in plain
    assert "\x1b[3" not in plain
    assert "\x1b" not in alone.on_terminal(*words, TERM="dumb").out


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(alone: Command, sqlite_url: str, closed: str) -> None:
    alone.bare("enqueue", "mail", "--create", "--db", sqlite_url).done()
    script = (
        f"{TREADLE} jobs list --db {sqlite_url} {closed}; echo $?; {TREADLE} jobs show x --db {sqlite_url} {closed}"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full disk to write to")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(unbuffered: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{TREADLE} --help > /dev/full"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 1
    assert done.stderr == "treadle: OSError: [Errno 28] No space left on device\n"
