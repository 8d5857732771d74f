"""The guide's code works, block after block, as if one program had all of it; its tests pass in a project."""

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.examples.blocks import Block, blocks
from treadle import Worker

PYTHON = [block for block in blocks("docs/guide.md") if block.language == "python"]
# Blocks that say which file they are belong to a project of their own.
FILES = {found[1]: block for block in PYTHON if (found := re.match(r"# (\w+\.py)\n", block.code))}
PROGRAM = [block for block in PYTHON if block not in FILES.values()]


def compiled(block: Block) -> CodeType:
    """At its own line, so that an error names the line of the page."""
    code = "\n" * (block.line - 1) + block.code
    return compile(code, "docs/guide.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


class Model:
    """In the place of the one that a user has."""

    async def stream(self, question: str) -> AsyncIterator[str]:
        for word in question.split():
            yield word


async def run(block: Block, names: dict[str, Any]) -> None:
    outcome = eval(compiled(block), names)
    if inspect.isawaitable(outcome):
        await outcome


async def test_the_guide_works_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide", "llm": Model()}
    for block in PROGRAM:
        if re.search(r"\.(result|output)\(", block.code):
            await with_worker(block, names)
        else:
            await run(block, names)
    assert len(PROGRAM) > 12
    await names["queue"].close()


async def with_worker(block: Block, names: dict[str, Any]) -> None:
    """A block that waits for a result needs a worker."""
    async with asyncio.TaskGroup() as tasks:
        worker = Worker(names["queue"])
        tasks.create_task(worker.run())
        await run(block, names)
        worker.stop()


APP = """
from treadle import Queue

queue = Queue("sqlite:///jobs.db")

@queue.job
def greet(name: str) -> str:
    return f"Hello, {name}!"
"""
OWN_TEST = """
def test_with_the_queue_of_the_program(queue):
    from app import greet

    job = greet.sync.enqueue("Ada")
    queue.sync.run_until_empty()
    assert job.result() == "Hello, Ada!"

def test_again_with_an_empty_queue(queue):
    assert queue.sync.count() == 0
"""


def test_the_guides_tests_pass_in_a_project(tmp_path: Path) -> None:
    assert set(FILES) == {"test_jobs.py", "conftest.py"}
    for name, block in FILES.items():
        (tmp_path / name).write_text(block.code)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "test_own.py").write_text(OWN_TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert "6 passed" in done.stdout, done.stdout + done.stderr
    assert not (tmp_path / "jobs.db").exists()
