"""docs/parts.md: its code works, block after block, and its table names what can be imported."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.examples.blocks import ROOT, blocks
from treadle import Queue

PAGE = "docs/parts.md"
NINE = (
    "SqliteStorage WorkerPool PhaseRunner RetryStrategy TypedEventBus SseSerializer WebhookDispatcher "
    "RetentionScheduler JobQueue"
).split()


def rows() -> list[list[str]]:
    table = re.findall(r"^\| (.+?) \| (.+?) \| (.*?) ?\|$", (ROOT / PAGE).read_text(), re.M)
    return [list(row) for row in table if row[0] not in ("part", "---")]


def found(path: str) -> object:
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


def test_every_name_of_the_seed_has_a_row() -> None:
    assert {name for row in rows() for name in re.findall(r"`(\w+)`", row[2])} == set(NINE)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_part_can_be_imported(row: list[str]) -> None:
    paths = re.findall(r"`(treadle\.[\w.]+)`", row[1])
    assert paths or row[1] == "planned"
    assert all(found(path) for path in paths)


@pytest.mark.parametrize("row", [row for row in rows() if row[2] and row[1] != "planned"], ids=lambda row: row[2])
def test_each_part_works_alone(row: list[str]) -> None:
    """One of the examples, which all run below, uses it."""
    code = "\n".join(block.code for block in blocks(PAGE) if block.language == "python")
    assert any(path.rpartition(".")[2] in code for path in re.findall(r"`(treadle\.[\w.]+)`", row[1]))


async def test_the_page_works_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "parts"}
    for block in blocks(PAGE):
        if block.language == "python" and not block.code.startswith("# test_my_store.py"):
            outcome = eval(compile(block.code, PAGE, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.isawaitable(outcome):
                await outcome
    assert names["jobs"] == []
    queue: Queue = names["queue"]
    job = await queue.enqueue("mail")
    events = names["events"]("mail")
    assert job.id.encode() in await anext(events)
    await events.aclose()
    await queue.close()
