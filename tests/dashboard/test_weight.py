"""Pages stay light: large payloads and results are folded, and code samples are made when they are opened."""

import json

from tests.dashboard.visitor import Visitor, words
from treadle.dashboard.folding import MOST_TEXT, More, shown_value

ROWS = {"rows": [{"name": "x" * 50, "n": n, "tags": ["a", "b"]} for n in range(4_200)]}
MOST = 150_000


async def test_a_job_with_a_large_payload_and_result_has_a_light_page(visitor: Visitor) -> None:
    job = await visitor.queue.enqueue("import", ROWS)
    (claimed,) = await visitor.hands.claim("import")
    await visitor.hands.complete(claimed, ROWS)
    assert len(json.dumps(ROWS)) > 400_000 - 50_000
    page = (await visitor.get(f"/_/jobs/{job.id}")).text
    assert len(page) < MOST
    text = words(page)
    assert "4,188 more items" in text
    assert "4,200 items" in text
    assert "Show all" in text
    for name in ("payload", "result"):
        part = await visitor.get(f"/_/jobs/{job.id}/{name}", **{"X-Dialog": "1"})
        assert '"n": 4199' in words(part.text).replace("&#34;", '"')
        file = await visitor.get(f"/_/jobs/{job.id}/{name}.json")
        assert file.json() == ROWS
        assert file.headers["content-disposition"] == f'attachment; filename="{name}-{job.id}.json"'
    assert "await queue.enqueue(" in (await visitor.get(f"/_/jobs/{job.id}/code", **{"X-Dialog": "1"})).text
    live = (await visitor.get(f"/_/live?view=job&once=1&id={job.id}")).text
    assert len(live) < MOST


async def test_a_small_payload_is_shown_whole_with_its_code(visitor: Visitor) -> None:
    job = await visitor.queue.enqueue("mail", {"userId": 1970670598291982290})
    text = await visitor.text(f"/_/jobs/{job.id}")
    assert "1970670598291982290" in text
    assert "await queue.enqueue('mail'" in text
    assert "Show all" not in text


def test_what_is_left_out_is_counted() -> None:
    shown = shown_value({"text": "x" * 20_000, "rows": list(range(1_000)), **{f"k{n}": n for n in range(100)}})
    assert shown.folded
    assert isinstance(shown.value["text"], More)
    assert shown.value["text"].endswith(f"… {20_000 - MOST_TEXT:,} more characters")
    assert shown.value["rows"][-1] == "988 more items"
    assert shown.value["…"] == "90 more members"
