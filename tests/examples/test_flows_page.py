"""docs/flows.md: its code works, block after block, and its flow waits and goes on."""

from pathlib import Path
from typing import Any

import pytest

from tests.examples.blocks import blocks


async def test_the_page_on_flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "flows"}
    for block in blocks("docs/flows.md"):
        if block.language == "python":
            exec(compile(block.code, "docs/flows.md", "exec"), names)
    index = names["index"]
    assert [step.name for step in index.handler.steps] == ["fetch", "embed", "approve", "publish"]
    async with names["queue"] as queue:
        job = await index.enqueue(names["Corpus"](url="https://example.com"))
        await names["approve"](job.id)
        assert {step["status"] for step in (await job.refresh()).steps} == {"pending"}
        await queue.cancel(job.id)
        assert (await queue.requeue_plan(job.id, mode="from", step="embed")).steps == ["embed", "approve", "publish"]
