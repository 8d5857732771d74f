"""Parts of a job's page that are made when they are opened: a whole payload or result, and code samples."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from treadle.dashboard.page import Page
from treadle.dashboard.snippets import snippets
from treadle.dashboard.words import as_json, pretty_json
from treadle.model.job import Job


async def payload(page: Page) -> Response:
    job = await _job(page)
    return await _value(page, job, "Payload", job.payload)


async def result(page: Page) -> Response:
    job = await _job(page)
    return await _value(page, job, "Result", job.result_value)


async def payload_file(page: Page) -> Response:
    job = await _job(page)
    return _file(page, f"payload-{job.id}.json", job.payload)


async def result_file(page: Page) -> Response:
    job = await _job(page)
    return _file(page, f"result-{job.id}.json", job.result_value)


async def code(page: Page) -> Response:
    job = await _job(page)
    samples = snippets(job, page.address)
    return await page.render("code", section="Jobs", title="The same job as code", samples=samples, **_about(page, job))


async def _job(page: Page) -> Job:
    return await page.state.queue.get(page.request.path_params["id"])


async def _value(page: Page, job: Job, title: str, value: Any) -> Response:
    return await page.render("value", section="Jobs", title=title, text=pretty_json(value), **_about(page, job))


def _about(page: Page, job: Job) -> dict[str, Any]:
    return {"job": job, "fragment": page.in_dialog}


def _file(page: Page, name: str, value: Any) -> Response:
    headers = {**page.headers(), "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(as_json(value), headers=headers, media_type="application/json")
