"""Fixtures for tests of the command line."""

from pathlib import Path

import pytest

from tests.cli.command import Command
from treadle import Queue

APP = """
import asyncio
from pathlib import Path
from treadle import Context, Fail, Queue

queue = Queue("sqlite:///in-code.db")

@queue.job
async def greet(payload: dict) -> str:
    return f"Hello, {payload['name']}!"

@queue.job
def refuse() -> None:
    raise Fail("no \\x1b[31mway")

@queue.job
async def sleep(ctx: Context) -> str:
    await ctx.progress(10, "asleep")
    while not Path("alarm").exists():
        await asyncio.sleep(0.05)  # until the alarm
    return "awake"

@queue.job(process=True)
def compute(payload: dict) -> int:
    return payload["a"] * payload["b"]
"""


@pytest.fixture
def alone(tmp_path: Path) -> Command:
    """The command in an empty folder, with no database named."""
    folder = tmp_path / "work"
    folder.mkdir()
    return Command(folder)


@pytest.fixture
def treadle(request: pytest.FixtureRequest, alone: Command, url: str) -> Command:
    """The command with an empty database, once on each store; `empty_database`: without Treadle's tables."""
    if url.startswith("sqlite") and not request.node.get_closest_marker("empty_database"):
        with Queue(url).sync as queue:
            queue.migrate()
    return Command(alone.folder, url)


@pytest.fixture
def app(treadle: Command) -> Command:
    """The same in a folder with an app.py that has handlers."""
    treadle.module("app", APP)
    return treadle
