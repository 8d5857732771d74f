"""Every command says which database it talks to, finds the one in your code, and makes none by accident."""

import pytest

from tests.cli.command import Command
from tests.cli.conftest import APP


@pytest.fixture
def app(alone: Command) -> Command:
    alone.module("app", APP)
    return alone


def test_commands_take_the_queue_in_the_code(app: Command) -> None:
    made = app.bare("enqueue", "app:queue", "greet", '{"name": "Ada"}', "--create").done()
    assert made.out.endswith(" in sqlite:///in-code.db\n")
    job_id = made.out.split()[2]
    assert not (app.folder / "jobs.db").exists()
    listed = app.bare("jobs", "list", "app:queue").done().out
    assert job_id in listed
    assert listed.endswith("1 job in sqlite:///in-code.db\n")
    assert app.bare("jobs", "show", "app:queue", job_id, "--json").done().json["topic"] == "greet"
    assert app.bare("jobs", "cancel", "app:queue", job_id).out == f"{job_id} cancelled\n"
    assert app.bare("stats", "app:queue", "--json").done().json["cancelled"] == 1
    assert app.bare("doctor", "app:queue", "--json").done().json["database"] == "sqlite:///in-code.db"
    assert app.bare("migrate", "app:queue").out == "the schema is up to date\n"
    assert app.bare("reclaim", "app:queue").out == "took back 0 jobs in sqlite:///in-code.db\n"


def test_options_may_come_before_the_queue_as_for_a_worker(app: Command) -> None:
    made = (
        app.bare("enqueue", "--create", "--key", "a:b", "app:queue", "greet", '{"name": "Ada"}', "--json").done().json
    )
    assert made["idempotencyKey"] == "a:b"
    (listed,) = app.bare("jobs", "list", "--json", "--limit", "5", "app:queue").done().json["items"]
    assert listed["id"] == made["id"]
    assert app.bare("jobs", "list", "--json", "--limit=5", "app:queue").done().json["items"] == [listed]
    assert app.bare("stats", "--topic", "greet", "--json", "app:queue").done().json["pending"] == 1
    assert app.bare("jobs", "cancel", "--reason", "a:b", "app:queue", made["id"], "--json").done().json
    shown = app.bare("jobs", "show", "app:queue", made["id"], "--json").done().json
    assert (shown["status"], shown["cancelReason"]) == ("cancelled", "a:b")


def test_a_value_that_looks_like_a_queue_stays_a_value(app: Command) -> None:
    app.bare("migrate", "app:queue").done()
    in_code = ("--db", "sqlite:///in-code.db")
    app.bare("superuser", "upsert", "ann@example.com", "secret:word", *in_code).done()
    key = app.bare("enqueue", *in_code, "--scope", "app:queue", "greet", '{"name": "Ada"}', "--json").done().json
    assert key["scope"] == "app:queue"


def test_a_payload_is_checked_by_the_handler_in_the_code(app: Command) -> None:
    app.module("typed", "from treadle import Queue\nqueue = Queue()\n@queue.job\ndef add(a: int): ...\n")
    refusal = app.bare("enqueue", "typed:queue", "add", '{"a": "x"}', "--create", "--db", "sqlite:///typed.db")
    assert refusal.code == 2
    assert "add: payload.a: Input should be a valid integer" in refusal.err


@pytest.mark.parametrize(
    "words",
    [
        "enqueue mail",
        "jobs list",
        "stats",
        "reclaim",
        "jobs why x",
        "schedules list",
        "schedules create mail --cron @daily",
    ],
)
def test_no_command_makes_a_database_by_accident(alone: Command, words: str) -> None:
    told = alone.bare(*words.split()).refused(1)
    assert told.startswith("sqlite:///jobs.db does not exist; name another with --db or MODULE:QUEUE, or make it with ")
    assert list(alone.folder.iterdir()) == []


@pytest.mark.parametrize("words", ["enqueue greet", "jobs list", "stats", "schedules create greet --cron @daily"])
@pytest.mark.parametrize("named", ["--db", "TREADLE_DB", "app:queue", "treadle.toml"])
def test_a_named_database_is_not_made_by_accident_either(app: Command, words: str, named: str) -> None:
    command, environment = words.split(), {}
    if named == "--db":
        command += ["--db", "sqlite:///in-code.db"]
    elif named == "TREADLE_DB":
        environment = {"TREADLE_DB": "sqlite:///in-code.db"}
    elif named == "app:queue":
        command.insert(2 if command[0] in ("jobs", "schedules") else 1, named)
    else:
        (app.folder / "treadle.toml").write_text('db = "sqlite:///in-code.db"')
    told = app.bare(*command, **environment).refused(1)
    assert told.startswith("sqlite:///in-code.db does not exist; ")
    assert list(app.folder.glob("*.db*")) == []


@pytest.mark.parametrize(
    "words",
    ["superuser upsert ann@example.com -", "user create ann@example.com -", "api-key create ci --scope enqueue"],
)
def test_what_sets_up_an_installation_makes_its_database(alone: Command, words: str) -> None:
    alone.bare(*words.split(), "--db", "sqlite:///new.db", stdin="correct horse battery").done()
    assert (alone.folder / "new.db").exists()


def test_a_database_is_made_on_request(alone: Command) -> None:
    alone.bare("enqueue", "mail", "--create", "--json").done()
    assert alone.bare("enqueue", "mail").done().out.endswith(" in sqlite:///jobs.db\n")
    assert alone.bare("stats").done().out.startswith("jobs in sqlite:///jobs.db\n")


def test_at_a_terminal_every_command_says_what_it_uses(alone: Command) -> None:
    alone.bare("enqueue", "mail", "--create").done()
    assert "treadle: using sqlite:///jobs.db" in alone.on_terminal("reclaim").out
    assert "using" not in alone.on_terminal("reclaim", "--db", "sqlite:///jobs.db").out


def test_worker_and_enqueue_agree_that_the_url_in_the_code_wins(app: Command) -> None:
    outside = {"TREADLE_DB": "sqlite:///outside.db"}
    told = "app:queue names its own database, sqlite:///in-code.db; TREADLE_DB does not count, --db would"
    made = app.bare("enqueue", "app:queue", "greet", '{"name": "Ada"}', "--create", **outside)
    assert told in made.err
    worked = app.from_shell("worker", "app:queue", "--burst", **outside)
    assert worked.code == 0
    assert told in worked.err
    assert not (app.folder / "outside.db").exists()
    shown = app.bare("jobs", "show", "app:queue", made.out.split()[2], "--db", "sqlite:///in-code.db")
    assert "Hello, Ada!" in shown.out
    assert shown.err == ""


def test_without_a_queue_in_the_code_the_environment_counts(alone: Command) -> None:
    made = alone.bare("enqueue", "mail", "--create", TREADLE_DB="sqlite:///outside.db").done()
    assert made.out.endswith(" in sqlite:///outside.db\n")
    assert (alone.folder / "outside.db").exists()


def test_a_word_that_only_looks_like_a_queue_elsewhere_is_left_alone(alone: Command) -> None:
    job = alone.bare("enqueue", "mail", "--create", "--key", "user:ann", "--json").done().json
    assert job["idempotencyKey"] == "user:ann"


def test_a_queue_that_is_not_there_is_named(app: Command) -> None:
    assert "module app has no" in app.bare("jobs", "list", "app:nothing").refused(2)


@pytest.mark.parametrize("named", ["flag", "environment", "file", "nothing"])
def test_a_flag_wins_over_the_environment_and_that_over_the_file(alone: Command, named: str) -> None:
    alone.module("app", "from treadle import Queue\nqueue = Queue()\n@queue.job\ndef greet(): ...\n")
    words, environment, wanted = ["worker", "app:queue", "--burst"], {}, ("sqlite:///jobs.db", "10 at a time")
    if named != "nothing":
        (alone.folder / "treadle.toml").write_text('db = "sqlite:///file.db"\nslots = 2\n')
        wanted = ("sqlite:///file.db", "2 at a time")
    if named in ("flag", "environment"):
        environment = {"TREADLE_DB": "sqlite:///environment.db", "TREADLE_SLOTS": "3"}
        wanted = ("sqlite:///environment.db", "3 at a time")
    if named == "flag":
        words += ["--db", "sqlite:///flag.db", "--slots", "4"]
        wanted = ("sqlite:///flag.db", "4 at a time")
    ran = alone.from_shell(*words, **environment)
    assert ran.code == 0, ran.err
    assert f" runs greet from {wanted[0]}, {wanted[1]}" in ran.err.splitlines()[0]
    assert [file.name for file in alone.folder.glob("*.db")] == [wanted[0].removeprefix("sqlite:///")]
