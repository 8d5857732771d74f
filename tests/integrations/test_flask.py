"""Handlers inside Flask's application context."""

import subprocess
import sys
from pathlib import Path

import pytest
from flask import Flask, current_app, g

from treadle import InvalidInput, Queue
from treadle.integrations.flask import use_app_context

PROGRAM = """
from flask import Flask, current_app
from treadle import Queue
from treadle.integrations.flask import use_app_context

queue = Queue("sqlite:///jobs.db")
use_app_context(queue, lambda: Flask("shop"))

@queue.job(process=True)
def name() -> str:
    return current_app.name

if __name__ == "__main__":
    from shop import name, queue

    job = name.sync.enqueue()
    queue.sync.run_until_empty()
    print(job.result())
    queue.sync.close()
"""


def test_handlers_have_the_application(sqlite_url: str) -> None:
    app = Flask("shop")
    app.config["SENDER"] = "shop@example.com"
    queue = Queue(sqlite_url)
    use_app_context(queue, app)
    ended: list[object] = []

    @app.teardown_appcontext
    def tear_down(error: object) -> None:
        ended.append(error)

    @queue.job
    def in_thread() -> str:
        assert "seen" not in g, "each job has its own context"
        g.seen = True
        return str(current_app.config["SENDER"])

    @queue.job
    async def on_loop() -> str:
        return current_app.name

    with queue.sync:
        jobs = [in_thread.sync.enqueue(), in_thread.sync.enqueue(), on_loop.sync.enqueue()]
        queue.sync.run_until_empty()
        assert [job.result() for job in jobs] == ["shop@example.com", "shop@example.com", "shop"]
    assert ended == [None] * 3


def test_an_application_factory_is_called_once_and_only_for_a_job(sqlite_url: str) -> None:
    made: list[Flask] = []

    def create_app() -> Flask:
        made.append(Flask("shop"))
        return made[-1]

    queue = Queue(sqlite_url)
    use_app_context(queue, create_app)

    @queue.job
    def name() -> str:
        return current_app.name

    with queue.sync:
        name.sync.enqueue_many([{}, {}])
        assert made == []
        queue.sync.run_until_empty()
        assert len(made) == 1


def test_a_handler_in_a_process_has_the_application_too(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("shop\n", 0), done.stderr


def test_what_is_no_application_is_refused(sqlite_url: str) -> None:
    with pytest.raises(InvalidInput, match="not str"):
        use_app_context(Queue(sqlite_url), "shop")  # type: ignore[arg-type]
