"""The plugin is found by pytest, in a project that imports nothing of it."""

import subprocess
import sys
from pathlib import Path

PROJECT = """
from treadle.testing import assert_enqueued, inline


def test_a_fresh_queue(treadle_queue):
    @treadle_queue.job
    def add(a: int, b: int) -> int:
        return a + b

    assert treadle_queue.sync.count() == 0
    job = add.sync.enqueue(1, b=2)
    assert_enqueued(treadle_queue, "add", payload={"a": 1}, count=1)
    treadle_queue.sync.run_until_empty()
    assert job.result() == 3


def test_another_fresh_queue(treadle_queue, treadle_clock):
    assert treadle_queue.sync.count() == 0
    treadle_queue.register("mail", lambda: "sent")
    job = treadle_queue.sync.enqueue("mail", delay="15m")
    treadle_clock.advance("15m")
    treadle_queue.sync.run_until_empty()
    assert job.result() == "sent"
"""


def test_the_fixtures_need_no_import(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(PROJECT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
