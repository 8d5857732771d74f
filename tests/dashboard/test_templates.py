"""Templates in the dashboard, without JavaScript: look, compare, switch off and on, roll back, enqueue by a form."""

import re
from dataclasses import replace
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, Field

from tests.dashboard.visitor import Visitor, flash, visiting, words
from treadle import Context, JobRequest
from treadle.model.steps import StepSpec


class Model(Enum):
    SMALL = "bge-m3"
    LARGE = "e5-large"


class Embedding(BaseModel):
    model: Model = Model.SMALL
    dimensions: Literal[256, 1024] = 1024


class Corpus(BaseModel):
    corpus: str = Field(min_length=3, pattern="^[a-z0-9-]+$", description="Which collection to write to.")
    channel_id: int | None = Field(None, ge=0, alias="channelId")
    share: float = 1.0
    publish: bool = True
    model: Model = Model.SMALL
    embedding: Embedding = Embedding()
    notify: list[str] = Field([], max_length=2)


async def rag_index(ctx: Context, corpus: Corpus) -> dict[str, int]:
    return {}


async def save(visitor: Visitor, *, here: bool = True, **options: Any) -> None:
    """As a start of the program does; the code may be in another process."""
    queue = visitor.queue
    queue.handlers.pop("rag_index", None)
    queue.register("rag_index", rag_index, **{"title": "Index a corpus", **options})
    await queue.save_templates()
    if not here:
        del queue.handlers["rag_index"]


async def enqueue(visitor: Visitor, **fields: str) -> Any:
    options = {name: fields.pop(name) for name in ("delay", "priority", "scope") if name in fields}
    return await visitor.post(
        "/_/templates/rag_index", **{f"payload.{name}": value for name, value in fields.items()}, **options
    )


def problem_at(page: str, field: str) -> str:
    found = re.search(rf'id="payload\.{field}-problem">(.*?)</span>', page, re.S)
    assert found, f"no problem at {field}"
    assert re.search(rf'name="payload\.{field}"[^>]*aria-invalid="true"', page), "the field is marked"
    return words(found[1])


async def test_an_empty_list_teaches(visitor: Visitor) -> None:
    assert "No templates yet" in await visitor.text("/_/templates")


async def test_templates_are_listed_with_what_they_take(visitor: Visitor) -> None:
    await save(visitor, timeout="6h", rate=(300, "1m"))
    text = await visitor.text("/_/templates")
    for part in ("rag_index", "Index a corpus", "version 1", "one function", "corpus, channelId, share", "1 on, 0 off"):
        assert part in text
    assert "3 tries, after 1m, 4m" in text
    assert "6h, 300 per 1m" in text
    assert "No template matches" in await visitor.text("/_/templates?q=nothing")
    assert "rag_index" in await visitor.text("/_/templates?q=channelid")


async def test_the_schema_is_a_table(visitor: Visitor) -> None:
    await save(visitor)
    text = await visitor.text("/_/templates/rag_index")
    assert "corpus * required text at least 3 characters; matches ^[a-z0-9-]+$ – Which collection to write to." in text
    assert "channelId integer 0 or more null" in text
    assert 'model text one of bge-m3, e5-large "bge-m3"' in text
    assert "dimensions integer one of 256, 1024 1024" in text
    assert "notify list of text at most 2 items []" in text


async def test_versions_and_their_difference(visitor: Visitor) -> None:
    await save(visitor, timeout=600)
    await save(visitor, timeout=60, dedupe_keys=["corpus"])
    text = await visitor.text("/_/templates/rag_index")
    assert "version 2 current" in text
    assert "dedupeKeys, timeoutSeconds" in text
    assert "2 changed" in text
    assert "changed timeoutSeconds 600 60" in text
    turned = await visitor.text("/_/templates/rag_index?before=2&after=1")
    assert "changed timeoutSeconds 60 600" in turned
    assert "no difference" in await visitor.text("/_/templates/rag_index?before=1&after=1")
    assert (await visitor.get("/_/templates/rag_index?before=x&after=99")).status_code == 200


async def test_a_person_rolls_back(visitor: Visitor) -> None:
    await save(visitor, timeout=600)
    await save(visitor, timeout=60)
    assert "Different: timeoutSeconds" in await visitor.text("/_/templates/rag_index/use/1")
    answer = await visitor.confirm("/_/templates/rag_index/use/1")
    assert flash(answer) == "New jobs of rag_index get version 1."
    assert (await visitor.queue.templates.get("rag_index")).version == 1
    assert "rolled back" in await visitor.text("/_/templates/rag_index")
    assert "Changed the version of the template rag_index" in await visitor.text("/_/system")
    assert (await visitor.post("/_/templates/rag_index/use/2", expected="2")).status_code == 409
    assert (await visitor.post("/_/templates/rag_index/use/9")).status_code == 400


async def test_a_switch_refuses_new_jobs(visitor: Visitor) -> None:
    await save(visitor)
    answer = await visitor.post("/_/templates/rag_index/disable", back="/_/templates/rag_index")
    assert answer.headers["location"] == "/_/templates/rag_index"
    text = await visitor.text("/_/templates/rag_index")
    assert "The template is off: new jobs are refused" in text
    assert "An operator has switched it off" in text
    refused = await enqueue(visitor, corpus="support-eu")
    assert refused.status_code == 400
    assert "the template of rag_index is disabled" in words(refused.text)
    await visitor.post("/_/templates/rag_index/enable")
    assert (await visitor.queue.templates.get("rag_index")).enabled


async def test_a_job_is_enqueued_by_the_form(visitor: Visitor) -> None:
    for here in (True, False):
        await save(visitor, here=here)
        answer = await enqueue(
            visitor,
            corpus="support-eu",
            channelId="1970670598291982290",
            share="0.5",
            publish="false",
            model='"e5-large"',
            embedding='{"dimensions": 256}',
            notify='["ana@example.com"]',
            priority="high",
            scope="user",
        )
        assert answer.status_code == 303, words(answer.text)
        job = (await visitor.queue.list())[0]
        assert answer.headers["location"] == f"/_/jobs/{job.id}"
        expected = {
            "corpus": "support-eu",
            "channelId": 1970670598291982290,
            "share": 0.5,
            "publish": False,
            "model": "e5-large",
            "notify": ["ana@example.com"],
        }
        assert expected.items() <= job.payload.items()
        assert job.payload["embedding"]["dimensions"] == 256
        assert (job.priority, job.scope) == (75, "user")


async def test_what_does_not_fit_is_said_at_its_field_and_nothing_is_stored(visitor: Visitor) -> None:
    for here in (True, False):
        await save(visitor, here=here)
        given = {"corpus": "Support EU", "channelId": "-1", "share": "much", "embedding": "{", "notify": '["a", 5]'}
        answer = await enqueue(visitor, **given)
        page = answer.text
        assert answer.status_code == 400
        assert "5 fields do not fit the schema. Nothing was stored." in words(page)
        assert "does not match" in problem_at(page, "corpus")
        assert "less than the minimum" in problem_at(page, "channelId")
        assert "not of type" in problem_at(page, "share")
        assert "Not JSON" in problem_at(page, "embedding")
        assert "1: 5 is not of type" in problem_at(page, "notify")
        assert 'value="Support EU"' in page, "what was typed stays"
        missing = await enqueue(visitor)
        assert "Is required" in problem_at(missing.text, "corpus")
        inner = await enqueue(visitor, corpus="abc", embedding='{"dimensions": 5}')
        assert "dimensions: " in problem_at(inner.text, "embedding")
    assert await visitor.queue.list() == []


async def test_a_template_without_a_schema_takes_json(visitor: Visitor) -> None:
    visitor.queue.register("plain", lambda payload: None)
    await visitor.queue.save_templates()
    assert "Any JSON object" in await visitor.text("/_/templates/plain")
    assert (await visitor.post("/_/templates/plain", payload='{"a": [1]}')).status_code == 303
    assert (await visitor.queue.list())[0].payload == {"a": [1]}
    refused = await visitor.post("/_/templates/plain", payload="[1]")
    assert refused.status_code == 400
    assert "must be a JSON object" in words(refused.text)


async def test_steps_are_listed(visitor: Visitor) -> None:
    steps = (
        StepSpec("prepare", "準備資料", timeout_ms=60_000),
        StepSpec("approve", external=True, timeout_ms=259_200_000),
        StepSpec("finalize", "整理結果", timeout_ms=30_000, cancelable=False),
    )
    visitor.queue.register("pipeline", lambda payload: None)
    handler = visitor.queue.handlers["pipeline"]
    handler.template = replace(handler.template, steps=steps)
    await visitor.queue.save_templates()
    text = await visitor.text("/_/templates/pipeline")
    assert "prepare 準備資料 Python 1m stops" in text
    assert "approve a person 3d" in text
    assert "finalize 整理結果 Python 30s finishes first" in text
    assert "3 steps" in await visitor.text("/_/templates")


async def test_a_step_that_is_new_is_one_line_of_the_difference(visitor: Visitor) -> None:
    first = StepSpec("prepare", timeout_ms=60_000)
    second = StepSpec("publish", "Publish", timeout_ms=30_000)
    visitor.queue.register("pipeline", lambda payload: None)
    handler = visitor.queue.handlers["pipeline"]
    for steps in ((first,), (replace(first, timeout_ms=90_000), second)):
        handler.template = replace(handler.template, steps=steps)
        await visitor.queue.save_templates()
    text = await visitor.text("/_/templates/pipeline")
    assert "1 added, 1 changed" in text
    assert "changed steps.prepare.timeoutSeconds 60 90" in text
    assert "added steps.publish Publish, python, within 30s" in text


async def test_an_unknown_template_is_not_found(visitor: Visitor) -> None:
    await visitor.queue.enqueue_many([JobRequest("mail")])
    assert (await visitor.get("/_/templates/mail")).status_code == 404
    assert (await visitor.post("/_/templates/mail", payload="{}")).status_code == 404


async def test_markup_stays_text(sqlite_visitor: Visitor) -> None:
    visitor = sqlite_visitor
    evil = "<script>alert(1)</script>"

    class Evil(BaseModel):
        field: Literal["<img src=x onerror=alert(2)>"] = Field(description=evil)
        text: str = evil

    def handler(payload: Evil) -> None: ...

    visitor.queue.register("evil", handler, title=evil, description=evil, capability=evil)
    await visitor.queue.save_templates()
    posted = await visitor.post("/_/templates/evil", **{"payload.text": evil, "scope": evil, "payload.field": evil})
    pages = [posted.text]
    pages += [
        (await visitor.get(path)).text for path in ("/_/templates", "/_/templates/evil", f"/_/templates?q={evil}")
    ]
    for page in pages:
        assert "<script>alert" not in page
        assert "<img src=x" not in page


async def test_a_read_only_dashboard_changes_nothing(sqlite_url: str) -> None:
    async with visiting(sqlite_url, read_only=True) as visitor:
        await save(visitor)
        assert "This dashboard is read-only" in await visitor.text("/_/templates/rag_index")
        for path in ("", "/disable", "/use/1"):
            assert (await visitor.post(f"/_/templates/rag_index{path}")).status_code == 403
        assert (await visitor.queue.templates.get("rag_index")).enabled
