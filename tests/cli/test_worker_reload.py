"""`treadle worker --reload`, `--include`, `--topics 'shop.*'` and `--except`."""

import signal
from pathlib import Path

from tests.cli.command import SECONDS, Command
from tests.cli.test_worker import await_line
from treadle.cli.reloading import snapshot

JOBS = """
from app import queue

@queue.job(topic="shop.{name}")
def {name}() -> str:
    return "{answer}"
"""


def test_modules_are_included_and_groups_are_served(app: Command) -> None:
    app.module("orders", JOBS.format(name="order", answer="ordered"))
    assert app.database
    words = ["worker", "app:queue", "--db", app.database, "--burst", "--include", "orders"]
    with app.started(*words, "--topics", "shop.*") as worker:
        await_line(worker, " runs shop.order from ")
        assert worker.wait(SECONDS) == 0
    with app.started(*words, "--except", "shop.*,greet") as worker:
        assert worker.stderr
        [line] = [line for line in worker.stderr if " runs " in line]
        assert "shop.order" not in line
        assert "greet" not in line
        assert "compute" in line
        assert worker.wait(SECONDS) == 0


def test_mistakes_in_modules_and_groups_are_one_line(app: Command) -> None:
    assert "there is no module 'nowhere'" in app("worker", "app:queue", "--include", "nowhere").refused(2)
    assert "does not name a module" in app("worker", "app:queue", "--include", "../x").refused(2)
    refused = app("worker", "app:queue", "--topics", "no.*").refused(2)
    assert "no handler is registered for a topic like no.*" in refused


def test_a_change_of_the_code_starts_the_worker_again(app: Command) -> None:
    app.module("orders", JOBS.format(name="order", answer="before"))
    assert app.database
    with app.started("worker", "app:queue", "--db", app.database, "--include", "orders", "--reload") as worker:
        await_line(worker, "leads the maintenance")
        assert result(app) == "before"
        app.module("orders", "this is no Python")
        await_line(worker, "orders.py changed")
        await_line(worker, "can't be imported")
        app.module("orders", JOBS.format(name="order", answer="after"))
        await_line(worker, "orders.py changed")
        assert result(app) == "after"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SECONDS) == 0


def result(app: Command) -> str:
    found: str = app("enqueue", "shop.order", "--wait", "--json").done().json["result"]
    return found


def test_only_the_projects_own_code_is_watched(tmp_path: Path) -> None:
    for name in (
        "app.py",
        "pkg/jobs.py",
        ".hidden/x.py",
        "env/pyvenv.cfg",
        "env/lib/y.py",
        "node_modules/z.py",
        "notes.txt",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert {str(Path(path).relative_to(tmp_path)) for path in snapshot(tmp_path)} == {"app.py", "pkg/jobs.py"}
