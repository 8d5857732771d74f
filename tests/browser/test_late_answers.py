"""What comes late: answers, patches and questions never disturb a person who has gone on."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Locator, Request, Route, expect

from tests.browser.person import Person
from tests.browser.site import Site

# Counts the answers whose text the page has read and dealt with.
COUNT_ANSWERS = """
const real = window.fetch;
window.dealtWith = 0;
window.fetch = async (...asked) => {
  const answer = await real(...asked);
  for (const name of ["text", "json"]) {
    const read = answer[name].bind(answer);
    answer[name] = async () => {
      const found = await read();
      setTimeout(() => (window.dealtWith += 1));
      return found;
    };
  }
  return answer;
};
"""


class HeldAnswers:
    """Requests that the server gets when the test says so; made before the page opens."""

    def __init__(self, person: Person, address: str, method: str = "GET") -> None:
        self._page = person.page
        self._method = method
        self.routes: list[Route] = []
        self._page.add_init_script(COUNT_ANSWERS)
        self._page.route(re.compile(address), self._hold)

    def _hold(self, route: Route, request: Request) -> None:
        if request.method == self._method and request.resource_type == "fetch":
            self.routes.append(route)
        else:
            route.continue_()

    def wait(self) -> None:
        while not self.routes:
            self._page.wait_for_timeout(10)

    def send(self) -> None:
        """Let them through, and wait until the page has dealt with the answers."""
        before = self._page.evaluate("window.dealtWith")
        for route in self.routes:
            route.continue_()
        self._page.wait_for_function("before => window.dealtWith > before", arg=before)


def button(person: Person, name: str) -> Locator:
    return person.page.locator("#job-head").get_by_role("link", name=re.compile(name))


def cover(person: Person, state: str) -> None:
    """The tab is hidden, or seen again."""
    person.page.evaluate(
        """state => {
          Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )


def test_a_tab_that_is_seen_again_shows_what_it_has_missed(person: Person, served: Site) -> None:
    job, other = served.enqueue("slow"), served.enqueue("other", delay="1h")
    person.open("/jobs")
    person.live()
    cover(person, "hidden")
    expect(person.page.locator("html[data-live]")).to_have_count(0)
    served.run(served.hands.complete(served.start("slow")))
    served.run(served.queue.delete(other.id))
    served.enqueue("new", delay="1h")
    cover(person, "visible")
    expect(person.row(job.id)).to_contain_text("completed")
    expect(person.row(other.id)).to_have_class(re.compile("is-gone"))
    expect(person.page.locator("#newcomers")).to_contain_text("1 new")
    expect(person.page.locator("#tabs a", has_text="Completed")).to_contain_text("1")


def test_a_question_is_called_off_by_escape_before_it_comes(person: Person, served: Site) -> None:
    job = served.fail()
    held = HeldAnswers(person, "/requeue$")
    person.open(f"/jobs/{job.id}")
    person.press("r")
    held.wait()
    person.press("Escape")
    held.send()
    expect(person.page.locator("dialog")).to_have_count(0)


def test_the_last_question_counts(person: Person, served: Site) -> None:
    job = served.fail()
    held = HeldAnswers(person, "/requeue$")
    person.open(f"/jobs/{job.id}")
    person.press("r")
    held.wait()
    person.press("d")
    expect(person.dialog).to_contain_text("Delete")
    person.press("Escape")
    expect(person.page.locator("dialog")).to_have_count(0)
    held.send()
    expect(person.page.locator("dialog")).to_have_count(0)


def test_a_late_question_takes_no_keys_from_a_person_who_types(person: Person, served: Site) -> None:
    job = served.fail()
    held = HeldAnswers(person, "/requeue$")
    person.open(f"/jobs/{job.id}")
    person.press("r")
    held.wait()
    person.press("Control+k")
    person.page.keyboard.type("half a sen")
    held.send()
    expect(person.page.locator("dialog")).to_have_count(0)
    person.page.keyboard.type("tence")
    expect(person.page.locator("[data-palette]")).to_have_value("half a sentence")


def test_a_confirmed_question_stays_until_it_is_answered_and_is_sent_once(person: Person, served: Site) -> None:
    job = served.fail()
    held = HeldAnswers(person, "/requeue$", "POST")
    person.open(f"/jobs/{job.id}")
    person.press("r")
    expect(person.dialog).to_be_visible()
    person.press("Control+Enter", "Control+Enter", "Escape", "Escape")
    held.wait()
    person.dialog.locator("[data-cancel]").first.click()
    expect(person.dialog).to_be_visible()
    held.send()
    expect(person.page.locator("dialog")).to_have_count(0)
    expect(person.page.locator("#job-head")).to_contain_text("pending")
    assert len(held.routes) == 1


def test_a_question_whose_answer_never_comes_is_given_up(person: Person, served: Site) -> None:
    job = served.fail()
    held = HeldAnswers(person, "/requeue$", "POST")
    person.page.add_init_script(
        "const timeout = AbortSignal.timeout; AbortSignal.timeout = (ms) => timeout.call(AbortSignal, ms / 100)"
    )
    person.open(f"/jobs/{job.id}")
    person.press("r")
    expect(person.dialog).to_be_visible()
    person.press("Control+Enter")
    held.wait()
    expect(person.page.locator("dialog")).to_have_count(0)
    expect(person.page.locator(".toast")).to_contain_text("The server does not answer.")


def test_a_late_refresh_leaves_a_half_typed_search_alone(person: Person, served: Site) -> None:
    served.enqueue("mail", delay="1h")
    held = HeldAnswers(person, "/_/jobs$")
    person.open("/jobs")
    person.page.get_by_role("link", name="Refresh").click()
    held.wait()
    search = person.page.get_by_label("Search jobs")
    search.press_sequentially("half a sen")
    held.send()
    search.press_sequentially("tence")
    expect(search).to_have_value("half a sentence")
    expect(search).to_be_focused()


def test_a_late_refresh_leaves_an_open_question_alone(person: Person, served: Site) -> None:
    job = served.fail()
    held = HeldAnswers(person, "/_/jobs$")
    person.open("/jobs")
    person.page.get_by_role("link", name="Refresh").click()
    held.wait()
    person.press("j", "d")
    expect(person.dialog).to_contain_text("Delete")
    held.send()
    person.press("Escape")
    expect(person.page.locator("dialog")).to_have_count(0)
    expect(person.row(job.id).locator("a[data-open]")).to_be_focused()


def test_after_an_action_the_keyboard_is_where_it_was(person: Person, served: Site) -> None:
    served.fail()
    job = served.fail()
    served.fail()
    person.open("/jobs")
    person.press("j", "j", "r")
    expect(person.dialog).to_be_visible()
    person.press("Control+Enter")
    expect(person.page.locator(".toast")).to_be_visible()
    expect(person.row(job.id)).to_have_class(re.compile("is-cursor"))
    expect(person.row(job.id).locator("a[data-open]")).to_be_focused()


def test_an_answer_that_comes_after_the_pause_changes_nothing(person: Person, served: Site) -> None:
    job = served.enqueue("slow")
    person.page.clock.install()
    person.page.add_init_script(
        """const soon = Date.now() + 3600000;
        localStorage.setItem("treadle.streams", JSON.stringify({a: soon, b: soon, c: soon}))"""
    )
    held = HeldAnswers(person, "once=1$")
    person.open("/jobs")
    word = person.page.locator("[data-live-word]")
    expect(word).to_have_text("Every 15 s")
    person.page.clock.run_for(16_000)
    held.wait()
    served.start("slow")
    person.press("l")
    expect(word).to_have_text("Paused")
    for route in held.routes:
        route.continue_()
    _run_until_dealt_with(person)
    expect(person.row(job.id)).to_contain_text("pending")


def _run_until_dealt_with(person: Person) -> None:
    while not person.page.evaluate("window.dealtWith"):
        person.page.clock.run_for(10)


def test_a_patch_that_waited_is_not_put_after_the_pause(person: Person, served: Site) -> None:
    job = served.enqueue("slow", delay="1h")
    row = f'<tbody id="job-{job.id}" data-job="{job.id}"><tr><td>older</td></tr></tbody>'
    patches = [{}, {"regions": {f"job-{job.id}": row, "newcomers": '<span id="newcomers">arrived</span>'}}]

    def stream(route: Route) -> None:
        body = f"retry: 3600000\n\nevent: patch\ndata: {json.dumps(patches.pop(0))}\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    person.page.route(re.compile("/_/live"), stream)
    person.open("/jobs")
    expect(person.page.locator("[data-live-word]")).to_have_text("Live")
    person.page.evaluate(
        "id => getSelection().selectAllChildren(document.querySelector(`#job-${id} .payload`))", job.id
    )
    person.press("l", "l")
    expect(person.page.locator("#newcomers")).to_have_text("arrived")
    person.press("l")
    person.page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener("selectionchange", () => setTimeout(done), { once: true });
          getSelection().removeAllRanges();
        })"""
    )
    expect(person.row(job.id)).to_contain_text("pending")


def test_buttons_with_the_focus_stay_until_it_leaves(person: Person, served: Site) -> None:
    job = served.fail()
    person.open(f"/jobs/{job.id}")
    person.live()
    button(person, "Requeue").focus()
    served.run(served.queue.requeue(job.id))
    expect(person.page.locator("#job-head .st")).to_have_text("pending")
    expect(button(person, "Requeue")).to_be_focused()
    person.page.locator("[data-palette]").focus()
    expect(button(person, "Cancel")).to_be_visible()
    expect(button(person, "Requeue")).to_have_count(0)


def test_a_question_from_a_menu_gives_the_focus_back_to_its_button(person: Person, served: Site) -> None:
    job = served.fail()
    person.open("/jobs")
    more = person.row(job.id).get_by_role("button", name=re.compile("Actions"))
    more.focus()
    person.press("Enter", "ArrowDown", "Enter")
    expect(person.dialog).to_contain_text("Requeue")
    expect(person.page.get_by_role("menu")).to_have_count(0)
    person.press("Escape")
    expect(person.page.locator("dialog")).to_have_count(0)
    expect(more).to_be_focused()


def test_a_suggestion_replaces_its_word_though_the_caret_has_moved(person: Person, served: Site) -> None:
    served.enqueue("mail_digest")
    person.open("/jobs")
    box = person.page.get_by_label("Search jobs")
    box.press_sequentially("error:SMTP top")
    person.press("Home", "ArrowDown", "Enter")
    expect(box).to_have_value("error:SMTP topic:")


def test_copying_over_plain_http_leaves_the_focus_alone(person: Person, served: Site) -> None:
    job = served.enqueue(delay="1h")
    person.open("/jobs")
    person.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    person.press("j", "y")
    expect(person.page.locator(".toast")).to_contain_text("Id copied")
    expect(person.row(job.id).locator("a[data-open]")).to_be_focused()
