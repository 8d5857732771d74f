"""What a person sees at a terminal: lists at every width, a worker that starts and stops, errors of one line."""

import re

import pytest

from tests.cli.command import SECONDS, Command
from tests.cli.test_worker import look, started
from treadle import Queue

ERROR = "ValueError: " + " ".join(f"word{n}" for n in range(30))


def plain(text: str) -> list[str]:
    """The lines without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "").splitlines()


def failed(treadle: Command) -> str:
    """A job that has failed with a long error, and one that waits."""
    with Queue(treadle.database).sync as queue:

        @queue._queue.job(max_attempts=1)
        def import_orders() -> None:
            raise ValueError(ERROR.removeprefix("ValueError: "))

        job = import_orders.sync.enqueue()
        queue.run_until_empty()
        queue.enqueue("mail")
    return job.id


# -- `jobs list` at every width --------------------------------------------------------------------------------------


def test_at_80_columns_a_list_has_every_job_on_its_line_and_the_error_below(treadle: Command) -> None:
    job_id = failed(treadle)
    shown = treadle.on_terminal("jobs", "list", "--db", str(treadle.database), columns=80)
    header, mail, job, error, total = plain(shown.out)
    assert header.split() == ["ID", "TOPIC", "STATUS", "TRY", "AGE"]
    assert "mail" in mail
    assert job.startswith(job_id)
    assert job.split()[1:4] == ["import_orders", "failed", "1/1"]
    assert error.startswith("  ValueError: word0 word1 word2")
    assert error.endswith("…")
    assert len(error) <= 80
    assert total == "2 jobs"


@pytest.mark.parametrize("columns", [40, 60, 79, 80, 81, 100, 120])
def test_no_width_loses_the_error_and_no_line_is_too_long(treadle: Command, columns: int) -> None:
    job_id = failed(treadle)
    lines = plain(treadle.on_terminal("jobs", "list", "--db", str(treadle.database), columns=columns).out)
    assert all(len(line) <= columns for line in lines), lines
    text = " ".join(" ".join(lines).split())
    assert job_id in text
    assert "ValueError: word0" in text


def test_a_wide_terminal_and_a_pipe_have_the_whole_error_on_one_line(treadle: Command) -> None:
    job_id = failed(treadle)
    words = ("jobs", "list", "--db", str(treadle.database))
    for lines in (plain(treadle.on_terminal(*words, columns=400).out), treadle.bare(*words).done().out.splitlines()):
        [line] = [line for line in lines if line.startswith(job_id)]
        assert line.rstrip().endswith(ERROR)


# -- a worker --------------------------------------------------------------------------------------------------------


def test_a_worker_shows_what_it_serves_and_how_it_ends(app: Command) -> None:
    words = ("worker", "app:queue", "--slots", "3", "--topics", "sleep,greet", "--db", str(app.database))
    with app.at_terminal(*words) as terminal:
        terminal.until(" runs greet, sleep from ")
        terminal.until(", 3 at a time")
        job_id = started(app)
        terminal.until("sleep started")
        terminal.type("\x03")
        terminal.until("draining 1 job, Ctrl-C again to quit")
        terminal.type("\x03")
        terminal.until(f"left 1 job behind and gave it back: sleep {job_id}")
        terminal.read_all()
        terminal.process.wait(SECONDS)
    assert "Traceback" not in terminal.shown
    left = look(app, job_id)
    assert (left.status, left.attempt, left.locked_by) == ("pending", 0, None)


@pytest.mark.parametrize("more", [[], ["--processes", "2"], ["--max-jobs", "100"]])
def test_a_clean_stop_is_no_warning(app: Command, more: list[str]) -> None:
    with app.at_terminal("worker", "app:queue", "--db", str(app.database), *more) as terminal:
        terminal.until(" runs ")
        job_id = started(app)
        terminal.until("sleep started")
        terminal.type("\x03")
        terminal.until("draining 1 job, Ctrl-C again to quit")
        (app.folder / "alarm").touch()
        terminal.read_all()
        assert terminal.process.wait(SECONDS) == 0
    assert re.search(r"sleep completed in [\d.]+ m?s", terminal.shown)
    assert " warning " not in terminal.shown
    assert " error " not in terminal.shown
    assert "Traceback" not in terminal.shown
    assert look(app, job_id).status == "completed"


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("jobs show nothing", 1),
        ("jobs cancel nothing", 1),
        ("jobs list --status odd", 2),
        ("enqueue mail [1]", 2),
        ("enqueue mail --delay soon", 2),
        ("worker nowhere:queue", 2),
        ("worker app:queue --lease 10ms", 2),
        ("worker app:queue --max-memory lots", 2),
        ("frobnicate", 2),
    ],
)
def test_an_error_is_one_line_at_a_terminal_as_in_a_pipe(app: Command, words: str, code: int) -> None:
    at = [] if words == "frobnicate" else ["--db", str(app.database)]
    shown = app.on_terminal(*words.split(), *at, columns=400)
    assert shown.code == code
    [line] = plain(shown.out)
    assert line == f"treadle: {app.bare(*words.split(), *at).refused(code)}"
