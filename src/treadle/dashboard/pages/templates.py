"""Templates: what each topic takes and how it runs; switch one off and on, roll one back."""

from __future__ import annotations

from starlette.responses import Response

from treadle.dashboard.asking import Question
from treadle.dashboard.asking import ask as ask_page
from treadle.dashboard.page import Page
from treadle.dashboard.template_rows import TemplateRow, template_row
from treadle.policy.saved_template import changed_fields


async def templates(page: Page) -> Response:
    found = await page.state.queue.templates.list()
    now = await page.state.now.get()
    search = page.query("q")[:100].strip()
    rows = [row for one in found if _matches(row := template_row(one, now), search)]
    on = sum(one.enabled for one in found)
    return await page.render(
        "templates",
        section="Templates",
        title="Templates",
        rows=rows,
        any=bool(found),
        search=search,
        note=f"{on:,} on, {len(found) - on:,} off",
    )


def _matches(row: TemplateRow, search: str) -> bool:
    return not search or search.lower() in f"{row.topic} {row.title} {row.payload}".lower()


async def enable(page: Page) -> Response:
    return await _switch(page, True)


async def disable(page: Page) -> Response:
    return await _switch(page, False)


async def _switch(page: Page, enabled: bool) -> Response:
    topic = page.request.path_params["topic"]
    await page.state.queue.templates.update(topic, enabled=enabled)
    await page.note("enable_template" if enabled else "disable_template", topic)
    told = "is on." if enabled else "is off: new jobs are refused, pending ones still run."
    return page.redirect(page.local(await page.field("back"), page.url("/templates")), f"{topic} {told}")


async def ask_use(page: Page) -> Response:
    topic, version = page.request.path_params["topic"], page.request.path_params["version"]
    found = {one["version"]: one for one in await page.state.queue.templates.versions(topic)}
    current = next(one for one in found.values() if one["current"])
    changed = ", ".join(changed_fields(current, found[version])) if version in found else ""
    question = Question(
        f"Use version {version} of {topic}?",
        page.url(f"/templates/{topic}/use/{version}"),
        f"Use version {version}",
        page.url(f"/templates/{topic}"),
        hidden=[("expected", str(current["version"]))],
        lines=[
            f"New jobs get version {version} instead of {current['version']}, until code with a new definition starts.",
            f"Different: {changed}." if changed else "There is no difference.",
        ],
        after="Existing jobs keep the version they were made with. Workers run the code they have.",
    )
    return await ask_page(page, question, section="Templates")


async def use(page: Page) -> Response:
    topic, version = page.request.path_params["topic"], page.request.path_params["version"]
    expected = await page.field("expected")
    await page.state.queue.templates.use(topic, version, expected=int(expected) if expected.isdecimal() else None)
    await page.note("use_template", topic, reason=f"version {version}")
    return page.redirect(page.url(f"/templates/{topic}"), f"New jobs of {topic} get version {version}.")
