"""One step of a job: its runs with their whole results, and the answer that it waits for."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.answer_form import (
    ERROR,
    WHOLE,
    Ask,
    RefusedAnswer,
    answer_of,
    refused_form,
)
from treadle.dashboard.page import Page
from treadle.dashboard.pages.job import job_view, show_job, waiting_asks
from treadle.http.errors import ApiError
from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.job import Job
from treadle.model.steps import LARGE_RESULT_BYTES
from treadle.store.views import ANY_SIZE

PER_PAGE = 50
MAX_ERROR = 10_000


async def step(page: Page) -> Response:
    """The runs of a step in pages; one of them alone, with a result of any size, at `?run=` its place."""
    found = await page.state.queue.get(page.request.path_params["id"])
    name, alone, number = page.query("name"), _number(page.query("run")), max(_number(page.query("page")) or 1, 1)
    offset, limit = (alone, 1) if alone is not None else ((number - 1) * PER_PAGE, PER_PAGE)
    entry = next((one for one in found.steps if one["id"] == name), None)
    failing = bool(entry and entry["items"] and entry["items"]["failed"])
    most = await _most_bytes(page, found, alone)
    rows = await page.state.insights.step(found.id, name, offset, limit, most, failing_first=failing)
    if rows is None or entry is None:
        raise ApiError(404, "not_found", f"The job has no step {name[:100]!r}.")
    last = -(-rows.total // PER_PAGE)
    here = f"/jobs/{found.id}/step"
    return await page.render(
        "step",
        section="Jobs",
        title=f"{name}, {found.topic}",
        job=found,
        entry=entry,
        runs=[_run(run, offset + place) for place, run in enumerate(rows.items)],
        total=rows.total,
        failing_first=failing,
        alone=alone is not None and rows.total > 1,
        all_url=page.url(here, name=name),
        previous_url=page.url(here, name=name, page=number - 1) if alone is None and number > 1 else "",
        next_url=page.url(here, name=name, page=number + 1) if alone is None and number < last else "",
        run_url=lambda place: page.url(here, name=name, run=place),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


async def _most_bytes(page: Page, job: Job, alone: int | None) -> int:
    """A step without keys has one run, so its result is shown however large it is."""
    entry = next((one for one in job.steps if one["id"] == page.query("name")), None)
    return ANY_SIZE if alone is not None or (entry and not entry["items"]) else LARGE_RESULT_BYTES // PER_PAGE


def _run(run: dict[str, Any], place: int) -> dict[str, Any]:
    started, ended = run["startedAt"], run["completedAt"]
    size = run["resultSize"]
    return {
        **run,
        "place": place,
        "started": datetime.fromisoformat(started) if started else None,
        "took": words.span(datetime.fromisoformat(started), datetime.fromisoformat(ended)) if started and ended else "",
        "size": "" if size is None else words.size(size),
        "left_out": size is not None and run["result"] is None and size > len("null"),
        "large": size is not None and size > LARGE_RESULT_BYTES,
    }


# -- its answer ------------------------------------------------------------------------------------


async def answer(page: Page) -> Response:
    found = await page.state.queue.get(page.request.path_params["id"])
    name, key = await page.field("step"), await page.field("key")
    ask = next((one for one in await waiting_asks(page, found) if (one.step, one.key) == (name, key)), None)
    if ask is None:
        return page.redirect(page.url(f"/jobs/{found.id}"), f"{found.topic} does not wait for {name} any more.", "bad")
    given = {field: values[0].strip() for field, values in (await page.form()).items()}
    try:
        value = None if ERROR in given else answer_of(ask, given)
        who = page.actor.name
        await page.state.queue.signal(found.id, name, value, key=key, error=_error(given), answered_by=who)
    except RefusedAnswer as error:
        return await _refused(page, ask, given, error.problems, error.message)
    except InvalidInput as error:
        field = ERROR if ERROR in given else WHOLE
        return await _refused(page, ask, given, {field: error.message}, "Nothing was stored.")
    except TreadleError as error:
        return page.redirect(page.url(f"/jobs/{found.id}"), error.message, "bad")
    await page.note("answer", found.id, reason=name)
    return page.redirect(page.url(f"/jobs/{found.id}"), f"{name} has its answer; {found.topic} continues.")


def _error(given: dict[str, str]) -> str | None:
    if ERROR not in given:
        return None
    if not 1 <= len(given[ERROR]) <= MAX_ERROR:
        raise InvalidInput(f"Say what is wrong, in 1 to {MAX_ERROR:,} characters", field=ERROR)
    return given[ERROR]


async def _refused(page: Page, ask: Ask, given: dict[str, str], problems: Any, message: str) -> Response:
    view = await job_view(page, page.request.path_params["id"])
    forms = [
        refused_form(ask, given, problems, message) if (form.ask.step, form.ask.key) == (ask.step, ask.key) else form
        for form in view.answers
    ]
    return await show_job(page, replace(view, answers=forms), 400)
