"""Each example runs by itself, twice in the same folder, and prints what it should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED = {
    "first_job": """
        pending
        Hello, Ada!
        Bonjour, Zoë!
    """,
    "progress_and_cancel": """
        10 rows
        processing True
        cleaning up
        cancelled because nobody needs it any more
    """,
    "retries": """
        worked at attempt 3 of 4
        looked 3 times in attempt 1
        parse failed after 1 attempt
        charge failed after 1 attempt
        job:enqueued
        job:started
        job:retrying ConnectionError: the server hung up
        job:started
        job:retrying ConnectionError: the server hung up
        job:started
        job:completed
    """,
    "agent_loop": """
        the model reads: What costs more, apples or pears?
        the model reads: apples cost 3
        the model reads: pears cost 4
        Pears cost more than apples.
        model completed 3 of 3
        tool completed 2 of 2
    """,
    "approval": """
        waiting for approve
        refused: the answer to approve: result.ok: Input should be a valid boolean, unable to interpret input
        sent: News about looms
        {'write': 'completed', 'approve': 'completed', 'send': 'skipped'}
    """,
    "rag_index": """
        {'total': 20, 'done': 19, 'failed': 1}
        doc-0 failed after 2 tries
        weaving: 19 vectors; 20 documents about looms
    """,
    "nightly_report": """
        Every day at 02:30 (Europe/Berlin)
        7 orders
        same next run: True
        last job: True
    """,
    "transaction_sqlite3": """
        Ada
        rolled back: an order can't cost less than nothing
        1 order, 1 job
    """,
    "transaction_sqlalchemy": """
        rolled back: IntegrityError
        1 member, 1 job
    """,
    "fastapi_app": """
        refused: 400
        invoice for Ada for ada
        new jobs: 1
        a stranger: 0
    """,
    "starlette_app": """
        202
        page 0
        page 1
        page 2
        health: 200
    """,
    "flask_app": """
        pending
        shop@example.com wrote to ada@example.com
    """,
    "one_per_user": """
        refused, the first one is still there: True
        at once: ada 1, bob 1, everybody 2
    """,
    "sync_script": """
        0.small.jpg
        1.small.jpg
        2.small.jpg
        the worker left with 0
        True True
        cancelled
    """,
    "web_producer": """
        one report for two clicks: True
        {'status': 'completed', 'progress': 100, 'result': {'pages': 5}}
    """,
}
# Their workers are processes of their own, which log what they do; or a job fails on purpose, which is logged.
WITH_LOG = {"sync_script", "web_producer", "retries", "agent_loop"}


def test_every_example_is_tested() -> None:
    assert set(EXPECTED) == {file.stem for file in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_prints_what_it_should(name: str, tmp_path: Path) -> None:
    expected = [line.strip() for line in EXPECTED[name].strip().splitlines()]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TREADLE_")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert [line.rstrip() for line in done.stdout.splitlines()] == expected
        assert "Traceback" not in done.stderr
        assert name in WITH_LOG or done.stderr == ""


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_says_how_to_run_it(name: str) -> None:
    assert f"python examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text()
