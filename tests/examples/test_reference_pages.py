"""The pages on schedules, templates, HTTP and webhooks: their Python code runs, block after block."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.examples.blocks import blocks

PAGES = "schedules templates http webhooks web".split()


@pytest.mark.parametrize("page", [f"docs/{name}.md" for name in PAGES])
async def test_the_code_of_a_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    ran = 0
    for block in blocks(page):
        if block.language == "python":
            outcome = eval(compile(block.code, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.isawaitable(outcome):
                await outcome
            ran += 1
    assert ran
    await names["queue"].close()
