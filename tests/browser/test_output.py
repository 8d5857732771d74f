"""What a job emits appears on its page as it comes."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from pydantic_core import to_json

from tests.browser.person import Person
from tests.browser.site import Site
from treadle.policy.lifecycle import Completed
from treadle.policy.output import Chunk
from treadle.store.values import Claimed, OutputWrite, Settlement
from treadle.testing.workbench import settlement


def say(served: Site, job: Claimed, *texts: str, attempt: int = 1) -> None:
    chunk = Chunk("tokens", to_json(list(texts)).decode(), len(texts), attempt)

    async def write() -> list[tuple[int, int]]:
        return await served.queue.store.write_output(job.lease, [OutputWrite(job.n, job.token, 5, (chunk,))])

    assert not served.run(write())


def complete(served: Site, job: Claimed) -> None:
    async def settle() -> list[Settlement]:
        return await served.queue.store.settle([settlement(job, Completed())])

    assert not served.run(settle())


@pytest.fixture
def talking(served: Site) -> Claimed:
    served.enqueue("chat")
    job: Claimed = served.start("chat")
    return job


def test_tokens_appear_as_they_come(person: Person, served: Site, talking: Claimed) -> None:
    say(served, talking, "Why ", "is ")
    person.open(f"/jobs/{talking.id}")
    text = person.page.locator("#output pre")
    expect(text).to_have_text("Why is ")
    say(served, talking, "the sky ")
    expect(text).to_have_text("Why is the sky ")
    say(served, talking, "blue?")
    complete(served, talking)
    expect(text).to_have_text("Why is the sky blue?")
    expect(person.page.locator("#output details")).to_have_attribute("data-ended", "yes")


def test_a_channel_that_begins_later_appears_and_a_new_attempt_begins_anew(
    person: Person, served: Site, talking: Claimed
) -> None:
    person.open(f"/jobs/{talking.id}")
    person.live()
    expect(person.page.locator("#output details")).to_have_count(0)
    say(served, talking, "first try")
    text = person.page.locator("#output pre")
    expect(text).to_have_text("first try")
    say(served, talking, "second try", attempt=2)
    expect(text).to_have_text("second try")
