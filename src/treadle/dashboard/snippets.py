"""What a page shows, as code for a shell, Python or JavaScript."""

from __future__ import annotations

import shlex
from typing import Any

from treadle.dashboard.words import as_json, pretty_json
from treadle.model.job import Job


def enqueue_snippets(topic: str, payload: Any, address: str) -> list[tuple[str, str]]:
    """Enqueues a job with this payload."""
    python = f"await queue.enqueue({topic!r}, {payload!r})"
    return _snippets(_root(address) + "/api/jobs/enqueue", {"topic": topic, "payload": payload}, python)


def snippets(job: Job, address: str) -> list[tuple[str, str]]:
    """Enqueues the same job again."""
    return [*enqueue_snippets(job.topic, job.payload, address), ("JSON", pretty_json(job.payload))]


def answer_snippets(job: Job, step: str, key: str, example: Any, address: str) -> list[tuple[str, str]]:
    """Answers to the step that a waiting job waits for; `example` stands for the answer."""
    named = {"key": key} if key else {}
    more = f", key={key!r}" if key else ""
    python = f"await queue.signal({job.id!r}, {step!r}, {example!r}{more})"
    body = {"step": step, **named, "result": example}
    return _snippets(f"{_root(address)}/api/jobs/{job.id}/signal", body, python)


def _root(address: str) -> str:
    return address.rstrip("/").removesuffix("/_")


def _snippets(url: str, body: Any, python: str) -> list[tuple[str, str]]:
    curl = (
        f"curl -X POST {shlex.quote(url)} \\\n"
        f'  -H "Authorization: Bearer $TREADLE_TOKEN" -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(as_json(body))}"
    )
    script = (
        f"await fetch({as_json(url)}, {{\n"
        f'  method: "POST",\n  headers: {{ Authorization: `Bearer ${{token}}`, "Content-Type": "application/json" }},\n'
        f"  body: {as_json(as_json(body))},\n}});"
    )
    return [("curl", curl), ("Python", python), ("JavaScript", script)]
