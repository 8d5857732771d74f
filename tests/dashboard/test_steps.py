"""The steps of a job on its page: what each has done, running some again, and answering one that waits."""

import re
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.dashboard.flow_jobs import write
from tests.dashboard.visitor import Visitor, flash, form_of, visiting, words
from treadle import Context, Job
from treadle.dashboard.words import duration
from treadle.model.status import Status
from treadle.model.steps import StepState

JobState = dict[str, str]


def states(job: Job) -> JobState:
    return {step["id"]: step["status"] for step in job.steps}


def part(page: str, id: str) -> str:
    """One region of the page, as markup."""
    start = page.index(f'id="{id}"')
    return page[start : page.index("</section>", start) if "</section>" in page[start:] else None]


async def steps_part(visitor: Visitor, id: str) -> str:
    return part((await visitor.get(f"/_/jobs/{id}")).text, "steps")


# -- the waterfall ---------------------------------------------------------------------------------


async def test_the_waterfall_shows_each_step_with_state_duration_and_result(visitor: Visitor) -> None:
    job = await visitor.flows.failed()
    page = await steps_part(visitor, job.id)
    text = words(page)
    assert "2 of 3 done" in text
    for name, state in (("fetch", "completed"), ("approve", "completed"), ("publish", "failed")):
        assert re.search(rf'<use href="#i-st_{state}"/></svg><span class="name cut" title="{name}">', page)
        assert f"{name} {state}" in text
    assert "Boom: the index is read-only" in text
    assert 'class="b-completed"' in page
    assert 'class="b-failed"' in page
    assert "documents : 24" in text
    assert "style=" not in page


async def test_a_bar_never_leaves_its_axis(visitor: Visitor) -> None:
    job, _ = await visitor.flows.begun(
        write("fetch", started_ago_ms=500_000), write("approve", StepState.PROCESSING, progress=40)
    )
    page = await steps_part(visitor, job.id)
    bars = re.findall(r'<rect class="b-\w+" x="([\d.]+)%" y="\d+" width="([\d.]+)%"', page)
    assert len(bars) == 3, "two steps, and the estimate of the one that runs"
    for x, width in bars:
        assert 0 <= float(x) <= 100
        assert float(width) > 0
        assert float(x) + float(width) <= 100.01
    assert '<line class="now"' in page


async def test_a_job_without_steps_has_no_waterfall(visitor: Visitor) -> None:
    job = await visitor.completed_job()
    page = (await visitor.get(f"/_/jobs/{job.id}")).text
    assert '<div id="steps"></div>' in page
    assert '<div id="answer"></div>' in page


async def test_a_running_step_shows_its_progress_and_its_message(visitor: Visitor) -> None:
    busy = write("approve", StepState.PROCESSING, progress=40, message="page 4 of 10")
    job, _ = await visitor.flows.begun(write("fetch"), busy)
    text = words(await steps_part(visitor, job.id))
    assert "page 4 of 10, 40 %" in text
    page = await visitor.text(f"/_/jobs/{job.id}")
    assert "Runs on hands. Step approve is busy. Then comes publish." in page
    assert "Steps 1 of 3" in page


async def test_a_step_with_keys_shows_how_many_are_done_and_its_last_runs(visitor: Visitor) -> None:
    runs = [write("embed", key=f"doc-{i:02}", result=i, started_ago_ms=900 - i) for i in range(20)]
    wrong = write("embed", StepState.FAILED, key="doc-99", error="TimeoutError: too slow", started_ago_ms=10)
    job, _ = await visitor.flows.begun(*runs, wrong)
    text = words(await steps_part(visitor, job.id))
    assert "20 of 21, 1 failed" in text
    assert "Last 8 runs" in text
    assert "TimeoutError: too slow" in text
    assert "13 more" in text
    assert "doc-00" not in text
    all_of_them = await visitor.text(f"/_/jobs/{job.id}/step?name=embed")
    assert "doc-00" in all_of_them
    assert "doc-99" in all_of_them


async def test_a_large_result_is_shown_by_its_size_and_whole_on_its_own_page(visitor: Visitor) -> None:
    job, _ = await visitor.flows.begun(write("fetch", result="x" * 100_000))
    page = (await visitor.get(f"/_/jobs/{job.id}")).text
    assert "x" * 1000 not in page
    assert "Result, 97.7 KiB" in words(page)
    assert f"/_/jobs/{job.id}/step?name=fetch" in page
    assert "x" * 100_000 in (await visitor.get(f"/_/jobs/{job.id}/step?name=fetch")).text


async def test_large_results_of_many_runs_are_opened_one_by_one(visitor: Visitor) -> None:
    runs = [write("embed", key=str(i), result=str(i) * 70_000, started_ago_ms=900 - i) for i in range(3)]
    job, _ = await visitor.flows.begun(*runs)
    page = (await visitor.get(f"/_/jobs/{job.id}/step?name=embed")).text
    assert "1" * 1000 not in page
    assert words(page).count("Result, 68.4 KiB") == 3
    one = (await visitor.get(f"/_/jobs/{job.id}/step?name=embed&run=1")).text
    assert "1" * 70_000 in one
    assert "2" * 1000 not in one


async def test_the_runs_of_a_step_come_in_pages(visitor: Visitor) -> None:
    runs = [write("embed", key=f"doc-{i:03}", started_ago_ms=900 - i) for i in range(60)]
    job, _ = await visitor.flows.begun(*runs)
    first = (await visitor.get(f"/_/jobs/{job.id}/step?name=embed")).text
    assert "doc-049" in first
    assert "doc-050" not in first
    assert "page=2" in first
    second = await visitor.text(f"/_/jobs/{job.id}/step?name=embed&page=2")
    assert "doc-050" in second


@pytest.mark.parametrize("query", ["name=nothing", "name=", "", f"name={'x' * 5000}", "name=%00"])
async def test_a_step_that_does_not_exist_is_not_found(sqlite_visitor: Visitor, query: str) -> None:
    job = await sqlite_visitor.flows.failed()
    assert (await sqlite_visitor.get(f"/_/jobs/{job.id}/step?{query}")).status_code == 404


async def test_many_completions_in_a_row_are_one_line_of_the_timeline(visitor: Visitor) -> None:
    job, claimed = await visitor.flows.begun(write("fetch"), write("approve"))
    timeline = words(part((await visitor.get(f"/_/jobs/{job.id}")).text, "timeline"))
    assert "fetch completed" in timeline
    assert "approve completed" in timeline
    turns = [write(name, key=str(turn)) for turn in range(6) for name in ("model", "tool")]
    await visitor.flows.wrote(claimed, *turns)
    timeline = words(part((await visitor.get(f"/_/jobs/{job.id}")).text, "timeline"))
    assert "fetch, approve, model and 1 more completed 14 times" in timeline


async def test_the_timeline_says_how_long_a_whole_attempt_ran(visitor: Visitor) -> None:
    job = await visitor.flows.failed()
    events = await visitor.queue.events(job.id)
    started, ended = (
        next(one.created_at for one in events if one.type == f"job:{name}") for name in ("started", "failed")
    )
    timeline = words(part((await visitor.get(f"/_/jobs/{job.id}")).text, "timeline"))
    assert f"Failed ran {duration(ended - started)}" in timeline


async def test_markup_in_steps_stays_text(visitor: Visitor) -> None:
    evil = "<img src=x onerror=alert(1)>"
    wrong = write(evil, StepState.FAILED, error=f"{evil}: {evil}", message=evil, key=evil, title=evil)
    job, claimed = await visitor.flows.begun(write("fetch", result={evil: evil}, message=evil), wrong)
    schema = {"title": evil, "properties": {evil: {"enum": [evil], "description": evil}}, "required": [evil]}
    from pydantic_core import to_json

    from treadle.policy.lifecycle import Parked

    waits = write("approve", StepState.WAITING, schema=to_json(schema).decode(), until_ms=1000_000)
    await visitor.flows.ended(claimed, Parked("approve"), waits)
    for path in (
        f"/_/jobs/{job.id}",
        f"/_/jobs/{job.id}/step?name={evil}",
        "/_/jobs",
        f"/_/live?view=job&id={job.id}&once=1",
    ):
        page = (await visitor.get(path)).text
        assert "<img" not in page, path
        assert "\\u003cimg" not in page.lower(), path


# -- run some again --------------------------------------------------------------------------------


async def test_run_from_here_shows_which_steps_would_run_before_it_runs_them(visitor: Visitor) -> None:
    job = await visitor.flows.failed()
    page = await steps_part(visitor, job.id)
    assert f'href="/_/jobs/{job.id}/requeue?step=approve" data-dialog' in page
    asked = await visitor.text(f"/_/jobs/{job.id}/requeue?step=approve")
    assert "Run from approve?" in asked
    assert "2 steps run: approve, publish" in asked
    assert "1 kept, results included: fetch" in asked
    assert (await visitor.queue.get(job.id)).status is Status.FAILED
    answer = await visitor.confirm(f"/_/jobs/{job.id}/requeue?step=approve")
    assert "requeued" in flash(answer)
    found = await visitor.queue.get(job.id)
    assert (found.status, states(found)) == (
        Status.PENDING,
        {"fetch": "completed", "approve": "pending", "publish": "pending"},
    )


async def test_requeue_runs_only_what_has_not_completed_unless_told_otherwise(visitor: Visitor) -> None:
    job = await visitor.flows.failed()
    asked = await visitor.text(f"/_/jobs/{job.id}/requeue")
    assert "Only what has not completed publish" in asked
    assert "All steps fetch, approve, publish" in asked
    await visitor.confirm(f"/_/jobs/{job.id}/requeue")
    assert states(await visitor.queue.get(job.id)) == {
        "fetch": "completed",
        "approve": "completed",
        "publish": "pending",
    }


async def test_requeue_can_run_all_steps_again(visitor: Visitor) -> None:
    job = await visitor.flows.failed()
    await visitor.confirm(f"/_/jobs/{job.id}/requeue", mode="all")
    assert set(states(await visitor.queue.get(job.id)).values()) == {"pending"}


async def test_a_step_chosen_in_the_dialog_gets_its_dry_run_first(visitor: Visitor) -> None:
    job = await visitor.flows.failed()
    action, fields = form_of((await visitor.get(f"/_/jobs/{job.id}/requeue")).text)
    answer = await visitor.post(action, **{**fields, "mode": "from", "step": "publish"})
    assert answer.status_code == 200
    assert "1 step runs: publish" in words(answer.text)
    assert (await visitor.queue.get(job.id)).status is Status.FAILED
    action, fields = form_of(answer.text)
    assert (await visitor.post(action, **fields)).status_code == 303
    assert states(await visitor.queue.get(job.id))["publish"] == "pending"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"mode": "from"}, 400),
        ({"mode": "sideways"}, 400),
        ({"mode": "from", "step": "nothing", "seen": "nothing"}, 409),
    ],
)
async def test_a_requeue_that_makes_no_sense_changes_nothing(
    sqlite_visitor: Visitor, fields: dict[str, str], status: int
) -> None:
    job = await sqlite_visitor.flows.failed()
    answer = await sqlite_visitor.post(f"/_/jobs/{job.id}/requeue", **fields)
    assert answer.status_code == status, words(answer.text)[-400:]
    assert (await sqlite_visitor.queue.get(job.id)).status is Status.FAILED


# -- the answer ------------------------------------------------------------------------------------


async def test_a_waiting_job_says_which_step_waits_and_when_it_gives_up(visitor: Visitor) -> None:
    job = await visitor.flows.waiting()
    page = await visitor.text(f"/_/jobs/{job.id}")
    assert "Step approve waits for an answer. It gives up in 2d 23h ." in page
    assert "Waiting for" in page
    code = f"await queue.signal('{job.id}', 'approve', {{'ok': "
    assert code in page, "an object where the schema wants one"
    assert f"/api/jobs/{job.id}/signal" in page
    assert "2d 23h left" in page
    jobs = await visitor.text("/_/jobs")
    assert "Step approve waits for an answer. It gives up in 2d 23h ." in jobs
    assert re.search(r"Waiting 1\b", jobs)
    assert "Step approve waits" in await visitor.text("/_/jobs?status=waiting")


async def test_a_wait_without_an_end_says_so(visitor: Visitor) -> None:
    job = await visitor.flows.waiting(until_ms=None)
    page = await visitor.text(f"/_/jobs/{job.id}")
    assert "It gives up" not in page
    assert "it waits as long as it takes" in page


async def test_the_answer_is_a_form_made_from_its_schema(visitor: Visitor) -> None:
    job = await visitor.flows.waiting()
    page = (await visitor.get(f"/_/jobs/{job.id}")).text
    assert 'type="radio" name="payload.ok" value="true"' in page
    assert "Publish these documents?" in page
    assert re.search(r'<select[^>]*name="payload.audience"', page)
    assert re.search(r'<input[^>]*name="payload.limit"', page)
    assert re.search(r'<textarea[^>]*name="payload.note"', page)
    assert re.search(r'<textarea[^>]*mono[^>]*name="payload.tags"', page), "a nested object is written as JSON"
    fields = {"payload.ok": "true", "payload.audience": '"internal"', "payload.limit": "7", "payload.tags": '{"a": 1}'}
    answer = await visitor.post(f"/_/jobs/{job.id}/answer", step="approve", key="", **fields)
    assert answer.status_code == 303, words(answer.text)[-800:]
    assert "approve has its answer" in flash(answer)
    found = await visitor.queue.get(job.id)
    assert found.status is Status.PENDING
    assert found.steps[1]["result"] == {"ok": True, "audience": "internal", "limit": 7, "tags": {"a": 1}}
    assert "answered by root@example.com" in await visitor.text(f"/_/jobs/{job.id}")
    assert f"Answered job …{job.id[-8:]}" in await visitor.text("/_/system")


class Approval(BaseModel):
    ok: bool
    audience: Literal["customers", "internal"] = "customers"


async def test_a_real_flow_is_answered_run_to_its_end_and_run_from_a_step(visitor: Visitor) -> None:
    flow = visitor.queue.flow("newsletter")

    @flow.step
    async def draft(ctx: Context, payload: dict[str, Any]) -> str:
        return "News about looms"

    flow.external("approve", answer=Approval, timeout="3d", answer_rule='@request.auth.id != ""')

    @flow.step(when=lambda ctx, payload: ctx.results["approve"].ok)
    async def send(ctx: Context, payload: dict[str, Any]) -> str:
        return f"{ctx.results['draft']} for {ctx.results['approve'].audience}"

    await visitor.queue.save_templates()
    job = await flow.enqueue({})
    assert "will wait for an answer, within 3d 0h" in await visitor.text(f"/_/jobs/{job.id}")
    await visitor.queue.run_until_empty()
    page = await visitor.text(f"/_/jobs/{job.id}")
    assert "Progress 33 %" in page
    assert "made from the step’s schema, Approval" in page
    assert "send comes next" in page
    assert '@request.auth.id != ""' in page
    wrong = await visitor.post(f"/_/jobs/{job.id}/answer", step="approve", key="", json='{"ok": "perhaps"}')
    assert wrong.status_code == 400
    assert 'id="a1-json-problem"' in wrong.text
    fields = {"payload.ok": "true", "payload.audience": '"internal"'}
    answer = await visitor.post(f"/_/jobs/{job.id}/answer", step="approve", key="", **fields)
    assert answer.status_code == 303, words(answer.text)[-500:]
    await visitor.queue.run_until_empty()
    found = await visitor.queue.get(job.id)
    assert (found.status, found.result_value) == (Status.COMPLETED, "News about looms for internal")
    assert "2 steps run: approve, send" in await visitor.text(f"/_/jobs/{job.id}/requeue?step=approve")
    await visitor.confirm(f"/_/jobs/{job.id}/requeue?step=approve")
    await visitor.queue.run_until_empty()
    assert (await visitor.queue.get(job.id)).status is Status.WAITING


async def test_a_refused_answer_says_at_each_field_what_is_wrong(visitor: Visitor) -> None:
    job = await visitor.flows.waiting()
    fields = {"payload.audience": '"everyone"', "payload.limit": "0", "payload.note": "n" * 30, "payload.tags": "{"}
    answer = await visitor.post(f"/_/jobs/{job.id}/answer", step="approve", key="", **fields)
    assert answer.status_code == 400
    page = answer.text
    for field in ("ok", "audience", "limit", "note", "tags"):
        assert f'id="a1-payload.{field}-problem"' in page, field
    assert "5 fields do not fit the step's schema. Nothing was stored." in words(page)
    assert "n" * 30 in page, "what was filled in is still there"
    assert (await visitor.queue.get(job.id)).status is Status.WAITING


@pytest.mark.parametrize(
    ("schema", "given", "value"),
    [
        ({"type": "boolean"}, {"payload.answer": "false"}, False),
        ({"type": "integer"}, {"payload.answer": "1970670598291982290"}, 1970670598291982290),
        ({"enum": ["left", "right"]}, {"payload.answer": '"right"'}, "right"),
        ({"type": "string"}, {"payload.answer": "a text"}, "a text"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, {"payload.answer": ""}, None),
        ({"type": "array", "items": {"type": "integer"}}, {"payload.answer": "[1, 2]"}, [1, 2]),
        ({"$ref": "#/$defs/Side", "$defs": {"Side": {"enum": ["a", "b"]}}}, {"payload.answer": '"b"'}, "b"),
        (None, {"json": '{"n": 1970670598291982290}'}, {"n": 1970670598291982290}),
        (None, {"json": "null"}, None),
        ({"type": "boolean"}, {"json": "true"}, True),
    ],
)
async def test_an_answer_of_any_type(sqlite_visitor: Visitor, schema: Any, given: dict[str, str], value: Any) -> None:
    job = await sqlite_visitor.flows.waiting(schema)
    answer = await sqlite_visitor.post(f"/_/jobs/{job.id}/answer", step="approve", key="", **given)
    assert answer.status_code == 303, words(answer.text)[-800:]
    step = (await sqlite_visitor.queue.get(job.id)).steps[1]
    assert (step["status"], step["result"]) == ("completed", value)


@pytest.mark.parametrize(
    ("schema", "given"),
    [
        ({"type": "boolean"}, {"payload.answer": ""}),
        ({"type": "integer"}, {"payload.answer": "1.5"}),
        ({"type": "string", "minLength": 3}, {"payload.answer": "ab"}),
        ({"type": "boolean"}, {"json": '"yes"'}),
        (None, {"json": ""}),
        (None, {"json": "{"}),
        (None, {"json": "NaN"}),
        (None, {"error": ""}),
        (None, {"error": "x" * 10_001}),
    ],
)
async def test_an_answer_that_does_not_fit_is_refused(
    sqlite_visitor: Visitor, schema: Any, given: dict[str, str]
) -> None:
    job = await sqlite_visitor.flows.waiting(schema)
    answer = await sqlite_visitor.post(f"/_/jobs/{job.id}/answer", step="approve", key="", **given)
    assert answer.status_code == 400
    assert 'aria-invalid="true"' in answer.text
    assert (await sqlite_visitor.queue.get(job.id)).status is Status.WAITING


async def test_an_answer_can_be_written_as_json(visitor: Visitor) -> None:
    job = await visitor.flows.waiting()
    page = (await visitor.get(f"/_/jobs/{job.id}?answer=json")).text
    assert re.search(r'<textarea[^>]*name="json"', page)
    assert "payload.ok" not in page


async def test_an_answer_can_be_an_error(visitor: Visitor) -> None:
    job = await visitor.flows.waiting()
    answer = await visitor.post(f"/_/jobs/{job.id}/answer", step="approve", key="", error="not like this")
    assert answer.status_code == 303
    step = (await visitor.queue.get(job.id)).steps[1]
    assert (step["status"], step["error"]) == ("failed", "not like this")


async def test_cancelling_a_waiting_job_ends_it(visitor: Visitor) -> None:
    job = await visitor.flows.waiting()
    assert "no worker has it" in await visitor.text(f"/_/jobs/{job.id}/cancel")
    await visitor.confirm(f"/_/jobs/{job.id}/cancel", reason="not needed")
    found = await visitor.queue.get(job.id)
    assert (found.status, found.cancel_reason) == (Status.CANCELLED, "not needed")
    assert states(found) == {"fetch": "completed", "approve": "cancelled", "publish": "cancelled"}
    assert "Send the answer" not in await visitor.text(f"/_/jobs/{job.id}")


async def test_the_second_answer_is_told_that_it_came_too_late(visitor: Visitor) -> None:
    job = await visitor.flows.waiting({"type": "boolean"})
    first, second = [
        await visitor.post(f"/_/jobs/{job.id}/answer", step="approve", key="", **{"payload.answer": value})
        for value in ("true", "false")
    ]
    assert first.status_code == second.status_code == 303
    assert "does not wait for approve any more" in flash(second)
    assert (await visitor.queue.get(job.id)).steps[1]["result"] is True


async def test_a_read_only_dashboard_takes_no_answer(sqlite_url: str) -> None:
    async with visiting(sqlite_url, read_only=True) as visitor:
        job = await visitor.flows.waiting()
        page = (await visitor.get(f"/_/jobs/{job.id}")).text
        assert 'action="/_/jobs' not in part(page, "answer")
        answer = await visitor.post(f"/_/jobs/{job.id}/answer", step="approve", key="", json="true")
        assert answer.status_code == 403
        assert (await visitor.queue.get(job.id)).status is Status.WAITING


async def test_an_answer_from_another_site_is_refused(sqlite_visitor: Visitor) -> None:
    job = await sqlite_visitor.flows.waiting()
    foreign = {"Origin": "https://evil.test"}
    answer = await sqlite_visitor.post(f"/_/jobs/{job.id}/answer", headers=foreign, step="approve", key="", json="true")
    assert answer.status_code == 403
