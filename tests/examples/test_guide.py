"""The guide's code works, block after block, as if one program had all of it."""

import ast
import asyncio
import inspect
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.examples.blocks import Block, blocks
from treadle import Worker

PYTHON = [block for block in blocks("docs/guide.md") if block.language == "python"]


def compiled(block: Block) -> CodeType:
    """At its own line, so that an error names the line of the page."""
    code = "\n" * (block.line - 1) + block.code
    return compile(code, "docs/guide.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def run(block: Block, names: dict[str, Any]) -> None:
    outcome = eval(compiled(block), names)
    if inspect.isawaitable(outcome):
        await outcome


async def test_the_guide_works_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide"}
    for block in PYTHON:
        if ".result(" in block.code:
            await with_worker(block, names)
        else:
            await run(block, names)
    assert len(PYTHON) > 12
    await names["queue"].close()


async def with_worker(block: Block, names: dict[str, Any]) -> None:
    """A block that waits for a result needs somebody who works."""
    async with asyncio.TaskGroup() as tasks:
        worker = Worker(names["queue"])
        tasks.create_task(worker.run())
        await run(block, names)
        worker.stop()
