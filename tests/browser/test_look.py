"""What the design promises: colours, sizes, rows, charts and messages, measured in the browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.person import Person
from tests.browser.site import Site

TOKENS = {
    "bg": ("#f7f8fa", "#0d1015"),
    "surface": ("#ffffff", "#14181f"),
    "sunken": ("#eef0f4", "#0a0d11"),
    "hover": ("#f1f3f8", "#1b212b"),
    "selected": ("#eeedff", "#1e2040"),
    "line": ("#e1e5eb", "#262d39"),
    "control": ("#737d8e", "#6b7688"),
    "text": ("#14181f", "#e7eaf0"),
    "muted": ("#566072", "#9aa5b5"),
    "accent": ("#4338ca", "#a5a8ff"),
    "on-accent": ("#ffffff", "#0d1015"),
    "pending": ("#475569", "#a9b4c4"),
    "pending-tint": ("#eceff4", "#1d2430"),
    "processing": ("#1d4ed8", "#7fb0ff"),
    "processing-tint": ("#e6eeff", "#132140"),
    "waiting": ("#7e22ce", "#cf9bfb"),
    "waiting-tint": ("#f4eafd", "#281638"),
    "cancelling": ("#9a4b00", "#f5b060"),
    "cancelling-tint": ("#fdefdc", "#33200a"),
    "completed": ("#0f6b3d", "#5fd197"),
    "completed-tint": ("#e2f5ea", "#0e2a1c"),
    "failed": ("#b3162c", "#ff8f98"),
    "failed-tint": ("#fde8ea", "#3a1318"),
    "cancelled": ("#5b5563", "#b3abbd"),
    "cancelled-tint": ("#efedf1", "#242029"),
    "expired": ("#8a3d0c", "#f0a27a"),
    "expired-tint": ("#fbe9df", "#341b0f"),
    "chart-completed": ("#2f9e63", "#3fae78"),
    "chart-retrying": ("#b47a00", "#d9a032"),
    "chart-failed": ("#d13a4b", "#ea6471"),
}
COLOUR_OF = """name => {
  const probe = document.createElement("i");
  document.body.append(probe);
  probe.setAttribute("class", "probe");
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}"""


def rgb(colour: str) -> str:
    return "rgb({}, {}, {})".format(*(int(colour[i : i + 2], 16) for i in (1, 3, 5)))


def size(page: Page, selector: str) -> tuple[float, float]:
    box = page.locator(selector).first.bounding_box()
    assert box, selector
    return box["width"], box["height"]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_the_colours_are_those_of_the_design(person: Person, theme: int) -> None:
    person.page.emulate_media(color_scheme="dark" if theme else "light")
    person.open("/")
    found = {name: person.page.evaluate(COLOUR_OF, name) for name in TOKENS}
    assert found == {name: rgb(colours[theme]) for name, colours in TOKENS.items()}


def test_header_navigation_gutter_and_columns_have_their_sizes(person: Person, served: Site) -> None:
    job = served.fail()
    fonts: list[str] = []
    person.page.on("request", lambda one: fonts.append(one.url) if one.resource_type == "font" else None)
    person.open(f"/jobs/{job.id}")
    page = person.page
    assert size(page, ".head")[1] == 48
    assert page.locator(".head").evaluate("one => getComputedStyle(one).position") == "sticky"
    assert size(page, ".nav")[0] == 208
    assert size(page, ".job-cols > aside")[0] == 360
    page.set_viewport_size({"width": 900, "height": 800})
    assert size(page, ".nav")[0] == 52
    aside, main = (
        page.locator(".job-cols > aside").bounding_box(),
        page.locator(".job-cols > .stack").first.bounding_box(),
    )
    assert aside
    assert main
    assert aside["y"] > main["y"] + main["height"] - 1, "one column"
    page.set_viewport_size({"width": 380, "height": 800})
    bar = page.locator(".nav").bounding_box()
    assert bar
    assert bar["y"] + bar["height"] == 800, "a bottom bar"
    assert fonts == []


def test_rows_are_40_px_or_56_with_a_second_line_and_cards_on_a_phone(person: Person, served: Site) -> None:
    served.enqueue("mail", delay="1h")
    failed = served.fail("mail")
    person.open("/jobs")
    heights = person.page.locator("tbody[data-job]").evaluate_all(
        "rows => rows.map(row => Math.round(row.getBoundingClientRect().height))"
    )
    assert heights == [56, 40]
    assert person.page.locator("table.jobs").evaluate("one => getComputedStyle(one).tableLayout") == "fixed"
    expect(person.row(failed.id).locator(".second")).to_contain_text("SmtpError: connection refused")
    person.page.set_viewport_size({"width": 380, "height": 800})
    assert person.row(failed.id).evaluate("one => getComputedStyle(one).display") != "table-row-group"


def test_second_lines_say_what_happens(person: Person, served: Site) -> None:
    running = served.enqueue("slow")
    served.report(served.start("slow"), "page 3 of 9")
    late = served.enqueue("nobody")
    person.open("/jobs")
    line = person.row(running.id).locator(".second")
    expect(line).to_contain_text("10 % · page 3 of 9")
    assert line.locator("progress").evaluate("one => one.getBoundingClientRect().height") == 3
    expect(person.row(late.id).locator(".second")).to_have_count(0)


def test_the_throughput_has_60_bars_that_lead_to_their_jobs(person: Person, served: Site) -> None:
    served.complete("mail")
    served.fail("mail")
    served.run(_retry(served))
    person.open("/")
    chart = person.page.locator("#ended")
    bars = chart.locator("a.bar")
    expect(bars).to_have_count(60)
    expect(bars.last).to_have_class(re.compile("bar-now"))
    assert bars.last.evaluate("one => getComputedStyle(one).opacity") == "0.5"
    for text in ("completed 1", "retried 1", "failed 1"):
        expect(chart.locator(".legend")).to_contain_text(text)
    assert chart.locator("svg title").count() >= 61
    chart.get_by_text("Show as a table").click()
    expect(chart.locator(".chart-data tbody tr").last).to_be_visible()
    ticks = chart.locator("svg").first.locator("text").all_inner_texts()
    assert all(re.fullmatch(r"0|[125]0*", tick.replace(",", "")) for tick in ticks), ticks
    filled = chart.locator("a.bar:has(rect:not(.hit))").last
    filled.focus()
    person.press("Enter")
    person.page.wait_for_url("**/_/jobs?status=failed**")
    expect(person.page.locator("tbody[data-job]")).to_have_count(1)


async def _retry(served: Site) -> None:
    await served.queue.enqueue("again", {})
    for claimed in await served.hands.claim("again", limit=1):
        await served.hands.fail(claimed, "Boom: no", retry_in_ms=3_600_000)


def test_no_data_is_not_zero(person: Person, served: Site) -> None:
    person.open("/")
    expect(person.page.locator("#ended")).to_contain_text("No job ended in this time.")
    expect(person.page.locator("#latency")).to_contain_text("No job completed in this time.")
    expect(person.page.locator("#tiles")).to_contain_text("Success rate–")
    served.complete("mail")
    person.open("/")
    gap = person.page.locator("#ended .gap-zone")
    expect(gap).to_be_attached()
    expect(person.page.locator("#ended")).to_contain_text("nothing had ended before")
    expect(person.page.locator("#latency svg svg .line-p95")).to_have_attribute("d", re.compile(r"^M59 "))


def test_toasts_are_three_at_most_for_six_seconds_and_errors_stay(person: Person, served: Site) -> None:
    served.enqueue(delay="1h")
    person.page.clock.install()
    person.page.route("**/_/shortcuts", lambda route: route.abort())
    person.open("/jobs")
    for _ in range(4):
        person.press("j", "y")
    toasts = person.page.locator(".toast")
    expect(toasts).to_have_count(3)
    expect(toasts.first).to_have_attribute("role", "status")
    person.page.mouse.move(1, 1)
    person.page.clock.run_for(7_000)
    expect(toasts).to_have_count(0)
    person.press("?")
    expect(toasts).to_have_attribute("role", "alert")
    person.page.clock.run_for(60_000)
    expect(toasts).to_have_count(1)


def test_reduced_motion_is_obeyed(browser: Browser, served: Site) -> None:
    served.enqueue("slow")
    served.start("slow")
    context = browser.new_context(reduced_motion="reduce")
    person = Person(context.new_page(), served)
    person.sign_in()
    person.open("/jobs")
    names = person.page.locator(".spin").evaluate_all("all => all.map(one => getComputedStyle(one).animationName)")
    assert names
    assert set(names) == {"none"}
    context.close()


def test_a_million_jobs_are_counted_as_ten_thousand_and_more(person: Person, served: Site) -> None:
    served.enqueue_many("mail", 10_001, delay="1h")
    person.open("/jobs")
    expect(person.page.locator("#tabs")).to_contain_text("All 10,000+")
    expect(person.page.get_by_label("Pages of the list")).to_contain_text("Page 1 of 200+")
