"""`treadle worker`."""

import json
import os
import signal
import subprocess

import psutil
import pytest

from tests.cli.command import SECONDS, Command
from tests.waiting import until_blocking
from treadle import Job, Queue


def look(treadle: Command, job_id: str) -> Job:
    """From Python, because a command per look would be too slow."""
    with Queue(treadle.database).sync as queue:
        return queue.get(job_id)


def await_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr
    assert any(text in line for line in process.stderr)


def started(treadle: Command) -> str:
    """A job that sleeps until its alarm goes off, once it runs."""
    with Queue(treadle.database).sync as queue:
        job = queue.enqueue("sleep")
        until_blocking(lambda: queue.get(job.id).status == "processing")
        return job.id


# -- what it runs --------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_it_runs_jobs_of_every_kind_and_db_wins_over_the_code(app: Command) -> None:
    with app.worker() as worker:
        assert app("enqueue", "greet", '{"name": "Ada"}', "--wait", "--json").done().json["result"] == "Hello, Ada!"
        assert app("enqueue", "compute", '{"a": 6, "b": 7}', "--wait", "--json").done().json["result"] == 42
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SECONDS) == 0
    assert not (app.folder / "in-code.db").exists()


def test_the_url_in_the_code_counts_without_db(alone: Command) -> None:
    from tests.cli.conftest import APP

    alone.module("app", APP)
    with alone.worker() as worker:
        answer = alone.bare("enqueue", "greet", '{"name": "Ada"}', "--wait", "--db", "sqlite:///in-code.db").done()
        assert 'completed: "Hello, Ada!"' in answer.out
        worker.send_signal(signal.SIGINT)
        assert worker.wait(SECONDS) == 0


def test_only_the_chosen_topics_and_capabilities(app: Command) -> None:
    capable = ("--capabilities", "media", "--capabilities", "gpu")  # a list, or the option again
    with app.worker("--topics", "greet, refuse", *capable, "--name", "ann", "--slots", "3"):
        app("enqueue", "greet", '{"name": "Ada"}', "--capability", "gpu", "--wait").done()
        other = app("enqueue", "sleep", "--json").done().json
        app("enqueue", "greet", '{"name": "Bob"}', "--wait").done()
        assert look(app, other["id"]).status == "pending"
        assert "no live worker serves topic sleep" in app("jobs", "why", other["id"]).done().out


def test_log_lines_name_what_runs_and_can_be_json(app: Command) -> None:
    assert app.database
    words = ["worker", "app:queue", "--topics", "greet", "--name", "ann", "--slots", "3", "--db", app.database]
    with app.started(*words, TREADLE_LOG_FORMAT="json") as worker:
        assert worker.stderr
        line = json.loads(worker.stderr.readline())
        assert line["level"] == "info"
        assert line["logger"] == "treadle.worker"
        assert line["message"].startswith("ann runs greet from ")
        assert line["message"].endswith(", 3 at a time")
        worker.send_signal(signal.SIGTERM)
        assert all(json.loads(line) for line in worker.stderr)


# -- how it stops --------------------------------------------------------------------------------------------------


def test_sigterm_lets_a_running_job_finish(app: Command) -> None:
    with app.worker() as worker:
        job_id = started(app)
        worker.send_signal(signal.SIGTERM)
        await_line(worker, "draining 1 job")
        assert worker.poll() is None
        (app.folder / "alarm").touch()
        assert worker.wait(SECONDS) == 0
        assert look(app, job_id).result_value == "awake"


def test_after_the_drain_the_job_is_given_back_unspent(app: Command) -> None:
    with app.worker("--drain", "100ms") as worker:
        job_id = started(app)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SECONDS) == 0
    left = look(app, job_id)
    assert (left.status, left.attempt) == ("pending", 0)


def test_a_second_signal_stops_immediately_and_gives_the_job_back(app: Command) -> None:
    with app.worker("--lease", "2s", "--drain", "1h") as worker:
        job_id = started(app)
        worker.send_signal(signal.SIGTERM)
        await_line(worker, "draining 1 job")
        worker.send_signal(signal.SIGTERM)
        worker.wait(SECONDS)
    left = look(app, job_id)
    assert (left.status, left.attempt) == ("pending", 0)


# -- several processes ---------------------------------------------------------------------------------------------


def test_several_processes_are_kept_running_and_stopped_together(app: Command) -> None:
    with app.worker("--processes", "2", "--lease", "5s") as supervisor:
        family = psutil.Process(supervisor.pid)
        until_blocking(lambda: len(family.children()) == 2)
        first = family.children()[0].pid
        assert not [word for word in family.children()[0].cmdline() if word.startswith("--processes")]
        os.kill(first, signal.SIGKILL)
        until_blocking(lambda: len({child.pid for child in family.children()} - {first}) == 2)
        app("enqueue", "greet", '{"name": "Ada"}', "--wait").done()
        children = family.children(recursive=True)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(SECONDS) in (0, 1)
        until_blocking(lambda: not any(child.is_running() for child in children))


def test_several_processes_give_up_together_on_a_bad_module(alone: Command) -> None:
    ran = alone.bare("worker", "nowhere:queue", "--processes=3")
    assert ran.code == 2
    assert "there is no module 'nowhere'" in ran.err


# -- modules that can't be used ------------------------------------------------------------------------------------

MODULES = {
    "empty": "",
    "unrelated": "queue = 3",
    "two": "from treadle import Queue\nmails = Queue('sqlite:///a.db')\nreports = Queue('sqlite:///b.db')",
    "idle": "from treadle import Queue\nqueue = Queue('sqlite:///a.db')",
    "needy": "import json, no_such_library",
    "typo": "def f(:\n    pass",
    "angry": "def connect():\n    raise RuntimeError('no\\nnetwork')\n\nconnect()",
    "quitting": "import sys\nsys.exit('bye')",
    "mistaken": "from treadle import Queue\nqueue = Queue('sqlite:///a.db')\n@queue.job(timeout='soon')\ndef f(): pass",
    "homeless": "from treadle import Queue\nqueue = Queue('mysql://ann:s3cr3t@x/y')",
}


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("empty", "'empty' does not name a queue; write module:queue, such as empty:queue"),
        ("empty.py", "such as empty:queue"),
        ("empty.py:queue", "such as empty:queue"),
        ("./pkg/empty.py:tasks", "such as pkg.empty:tasks"),
        (":queue", "write module:queue"),
        ("empty:", "such as empty:queue"),
        ("../x:queue", "write module:queue"),
        ("nowhere:queue", "there is no module 'nowhere' here or on the path"),
        ("nowhere.at.all:queue", "there is no module 'nowhere'"),
        ("empty:queue", "module empty has no 'queue'; make one with queue = Queue(…)"),
        ("two:queue", "module two has no 'queue'; it has mails, reports"),
        ("unrelated:queue", "unrelated:queue is of type int, not a treadle.Queue"),
        ("idle:queue", "idle:queue has no handlers"),
        ("needy:queue", "module needy can't be imported: No module named 'no_such_library' (needy.py, line 1)"),
        ("typo:queue", "(typo.py, line 1)"),
        ("angry:queue", "module angry can't be imported: RuntimeError: no network (angry.py, line 2)"),
        ("quitting:queue", "SystemExit: bye"),
        ("mistaken:queue", "timeout: 'soon' is not a duration"),
        ("homeless:queue", "'mysql://ann:…@x/y' is not a database URL"),
    ],
)
def test_a_module_that_cannot_be_used(alone: Command, target: str, told: str) -> None:
    for name, code in MODULES.items():
        alone.module(name, code)
    assert told in alone.bare("worker", target).refused(2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--topics", "nope"], "no handler is registered for nope"),
        (["--slots", "0"], "slots: 0 is not between"),
        (["--lease", "soon"], "lease: 'soon' is not a duration"),
        (["--drain", "soon"], "drain: 'soon' is not a duration"),
        (["--db", "mysql://x"], "is not a database URL"),
    ],
)
def test_bad_options(alone: Command, words: list[str], told: str) -> None:
    from tests.cli.conftest import APP

    alone.module("app", APP)
    assert told in alone.bare("worker", "app:queue", *words).refused(2)


def test_a_database_newer_than_the_code(app: Command) -> None:
    from tests.cli.test_usage import pretend_newer

    assert app.database
    app("migrate").done()
    pretend_newer(app)
    done = app("worker", "app:queue")
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("treadle: the database has migration 9999")
    assert "Traceback" not in done.err


def test_it_runs_without_uvloop(app: Command) -> None:
    app.module("uvloop", "raise ImportError('not here')")
    with app.worker() as worker:
        app("enqueue", "greet", '{"name": "Ada"}', "--wait").done()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SECONDS) == 0
    assert isinstance(worker, subprocess.Popen)


# -- bursts, replacements, logs --------------------------------------------------------------------------------------


def test_a_burst_ends_when_nothing_due_is_left(app: Command) -> None:
    app("enqueue", "greet", '{"name": "Ada"}').done()
    later = app("enqueue", "greet", '{"name": "Zoe"}', "--delay", "1h", "--json").done().json["id"]
    done = app.from_shell("worker", "app:queue", "--burst", "--db", str(app.database))
    assert done.code == 0, done.err
    stats = app("stats", "--json").done().json
    assert (stats["completed"], stats["pending"]) == (1, 1)
    assert app("jobs", "show", later, "--json").done().json["status"] == "pending"


def test_bursts_of_several_processes_end_together(app: Command) -> None:
    for n in range(6):
        app("enqueue", "greet", f'{{"name": "{n}"}}').done()
    done = app.from_shell("worker", "app:queue", "--burst", "--processes", "2", "--db", str(app.database))
    assert done.code == 0, done.err
    assert app("stats", "--json").done().json["completed"] == 6


def test_a_process_that_has_run_enough_jobs_is_replaced(app: Command) -> None:
    for n in range(5):
        app("enqueue", "greet", f'{{"name": "{n}"}}').done()
    words = ("--burst", "--max-jobs", "2", "--slots", "1", "--prefetch", "0")
    done = app.from_shell("worker", "app:queue", *words, "--db", str(app.database))
    assert done.code == 0, done.err
    assert app("stats", "--json").done().json["completed"] == 5
    assert done.err.count(" runs ") >= 2
    assert "and is replaced by a fresh process" in done.err
    assert " warning " not in done.err


def test_a_process_that_has_grown_is_replaced(app: Command) -> None:
    with app.started("worker", "app:queue", "--max-memory", "1M", "--db", str(app.database)) as worker:
        assert worker.stderr
        lines = []
        for line in worker.stderr:
            lines.append(line)
            if sum(" runs " in one for one in lines) == 2:
                break
        assert any("has grown to" in line for line in lines)
        worker.terminate()


def test_a_lease_that_is_too_short_is_refused(app: Command) -> None:
    assert "--lease: 10ms is too short; at least 1s" in app("worker", "app:queue", "--lease", "10ms").refused(2)


def test_the_log_level_says_what_is_logged(app: Command) -> None:
    done = app.from_shell("worker", "app:queue", "--burst", "--log-level", "warning", "--db", str(app.database))
    assert (done.code, done.err) == (0, "")
    assert "--log-level" in app("worker", "app:queue", "--log-level", "loud").refused(2)


def test_a_drained_worker_finishes_its_job_and_exits_with_0(app: Command) -> None:
    with app.worker("--name", "mine") as worker:
        job = started(app)
        with Queue(app.database).sync as queue:
            assert queue.drain("mine")
        (app.folder / "alarm").touch()
        assert worker.wait(SECONDS) == 0
    assert look(app, job).status == "completed"


def test_drained_processes_are_not_replaced(app: Command) -> None:
    with app.worker("--name", "mine", "--processes", "2") as worker, Queue(app.database).sync as queue:

        def ended() -> bool:
            queue.drain("mine")  # again, because the second process may have started late
            return worker.poll() is not None

        until_blocking(ended)
        assert worker.returncode == 0
