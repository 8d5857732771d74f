"""A job as code, to enqueue it again from a shell, Python or JavaScript."""

from __future__ import annotations

import shlex

from treadle.dashboard.words import as_json, pretty_json
from treadle.model.job import Job
from treadle.model.status import Status


def snippets(job: Job, address: str) -> list[tuple[str, str]]:
    root = address.rstrip("/").removesuffix("/_")
    body = as_json({"topic": job.topic, "payload": job.payload})
    curl = (
        f"curl -X POST {shlex.quote(f'{root}/api/jobs/enqueue')} \\\n"
        f'  -H "Authorization: Bearer $TREADLE_TOKEN" -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(body)}"
    )
    python = f"await queue.enqueue({job.topic!r}, {job.payload!r})"
    script = (
        f"await fetch({as_json(f'{root}/api/jobs/enqueue')}, {{\n"
        f'  method: "POST",\n  headers: {{ Authorization: `Bearer ${{token}}`, "Content-Type": "application/json" }},\n'
        f"  body: {as_json(as_json({'topic': job.topic, 'payload': job.payload}))},\n}});"
    )
    return [("curl", curl), ("Python", python), ("JavaScript", script), ("JSON", pretty_json(job.payload))]


def answer_snippets(job: Job, address: str) -> list[tuple[str, str]]:
    """Answers to the step that a waiting job waits for; `true` stands for the answer."""
    if job.status is not Status.WAITING or not job.step:
        return []
    root = address.rstrip("/").removesuffix("/_")
    curl = (
        f"curl -X POST {shlex.quote(f'{root}/api/jobs/{job.id}/signal')} \\\n"
        f'  -H "Authorization: Bearer $TREADLE_TOKEN" -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(as_json({'step': job.step, 'result': True}))}"
    )
    script = (
        f"await fetch({as_json(f'{root}/api/jobs/{job.id}/signal')}, {{\n"
        f'  method: "POST",\n  headers: {{ Authorization: `Bearer ${{token}}`, "Content-Type": "application/json" }},\n'
        f"  body: {as_json(as_json({'step': job.step, 'result': True}))},\n}});"
    )
    python = f"await queue.signal({job.id!r}, {job.step!r}, True)"
    return [("curl", curl), ("Python", python), ("JavaScript", script)]
