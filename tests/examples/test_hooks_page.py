"""docs/hooks.md: its code works, block after block, and does what the page says."""

import ast
import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.examples.blocks import blocks
from tests.waiting import until
from treadle import Worker


async def test_the_page_on_hooks_works_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "hooks"}
    for block in blocks("docs/hooks.md"):
        code = compile(block.code, "docs/hooks.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        outcome = eval(code, names)
        if inspect.isawaitable(outcome):
            await outcome
    worker = Worker(names["queue"])
    working = asyncio.create_task(worker.run())
    assert await names["job"].result("60s") == "Hello, ada!"
    await until(lambda: len(names["messages"]) == 2)
    await until(lambda: names["finished"] == ["Hello, ada!"])
    assert names["pools"] == ["pool"]
    worker.stop()
    await working
    assert names["pools"] == []
    failure, success = sorted(names["messages"])
    assert failure.startswith("charge ")
    assert failure.endswith(": card declined")
    assert success == "greet is done"
    await names["queue"].close()
