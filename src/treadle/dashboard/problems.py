"""What is wrong now, why, since when, and what would help: the first lines of the overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from treadle.dashboard import words
from treadle.dashboard.failing_schedules import FailingSchedule
from treadle.dashboard.page import Page
from treadle.insights.delays import Cause, Delay, delay, key_name
from treadle.insights.failing import FailingTopic
from treadle.insights.failures import FailureGroup
from treadle.insights.overview import Now
from treadle.insights.times import distribution
from treadle.model.durations import format_ms
from treadle.model.job import rfc3339
from treadle.model.steps import shown_step
from treadle.policy.delivery_tries import DISABLE_AFTER_MS
from treadle.queue.webhooks import WebhookEndpoint
from treadle.store.views import Finding, Times, Topic, Wait

# A due job that waits longer than this is a problem, if a worker could run it.
LONG_WAIT_MS = 5 * 60_000
START = "treadle worker app:queue"
# How many keys, and how many waiting steps, a line names.
MOST_NAMED = 3
# An error that was first seen within this time is new.
NEW_MS = 60 * 60_000


class ProblemAction(NamedTuple):
    text: str
    url: str
    dialog: bool = False
    icon: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    level: str
    line: str
    more: str = ""
    actions: Sequence[ProblemAction] = ()
    name: str = ""
    """What the line is about; it stands in the line as {}."""
    url: str = ""
    command: str = ""
    """A command that helps, to copy."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What the lines are made from."""

    now: Now
    failing: Mapping[str, FailingTopic]
    groups: Sequence[FailureGroup]
    """Failures of the last days by their cause."""
    waits: Sequence[Wait]
    times: Sequence[Times]
    """How long jobs ran in the last day."""
    schedules: Sequence[FailingSchedule]
    findings: Sequence[Finding]
    webhooks: Sequence[WebhookEndpoint] = ()


def problems(page: Page, found: Trouble) -> list[Problem]:
    """Failing topics, then what no worker takes, what waits for its key, people, schedules and the database."""
    doctor = [ProblemAction("Open the doctor", page.url("/system") + "#doctor")]
    wrong = [Problem(one.level, one.message, one.advice, doctor) for one in found.findings if one.level != "ok"]
    return [
        *_failing_topics(page, found),
        *_unserved(page, found.now),
        *_silent(page, found.now),
        *_behind(page, found),
        *_people(page, found),
        *_failing_schedules(page, found),
        *_webhooks(page, found),
        *wrong,
    ]


# -- failing topics --------------------------------------------------------------------------------


def _failing_topics(page: Page, found: Trouble) -> list[Problem]:
    worst = sorted(found.failing.values(), key=lambda one: (-one.failed, one.topic))
    return [_failing_topic(page, found, one) for one in worst]


def _failing_topic(page: Page, found: Trouble, one: FailingTopic) -> Problem:
    since = datetime.fromtimestamp(one.since / 1000, UTC)
    began = "in the last hour" if one.earlier else f"since {since:%H:%M}"
    paused = found.now.paused_until(one.topic) is not None
    group = max(
        (group for group in found.groups if group.topic == one.topic and group.ended[-1] >= one.since),
        key=lambda group: group.since(since),
        default=None,
    )
    jobs = page.url("/jobs", status="failed", topic=one.topic)
    actions = [ProblemAction("Newest failure", page.url(f"/jobs/{group.newest_id}") if group else jobs)]
    if not page.read_only:
        actions += _against_failures(page, one, since, paused)
    more = [_error_words(found.now, group)] if group else []
    if one.before is not None:
        more.append(f"{words.percent(one.before)} completed in the day before.")
    more += ["The topic is paused."] if paused else []
    line = f"{{}} is failing: {one.failed:,} of {one.ended:,} failed {began}."
    return Problem("fail", line, " ".join(more), actions, one.topic, jobs)


def _against_failures(page: Page, one: FailingTopic, since: datetime, paused: bool) -> list[ProblemAction]:
    pause = ProblemAction("Pause…", page.url(f"/topics/{one.topic}/pause", back=page.url("/")), True, "pause")
    failed = {"status": "failed", "topic": one.topic, "filter": f'failedAt >= "{rfc3339(since)}"'}
    requeue = page.url("/bulk", action="requeue", all="1", **failed, back=page.url("/"))
    return [*([] if paused else [pause]), ProblemAction(f"Requeue {one.failed:,}…", requeue, True, "requeue")]


def _error_words(now: Now, group: FailureGroup) -> str:
    new = " (new)" if now.at - group.ended[0] <= NEW_MS else ""
    told = f"{group.type or 'Error'}{new}" + (f": {group.message}" if group.message else "")
    return told if told.endswith((".", "!", "?")) else told + "."


# -- jobs that don't start -------------------------------------------------------------------------


def _unserved(page: Page, now: Now) -> list[Problem]:
    found = []
    for one in now.unserved():
        if now.paused_until(one.topic) is not None:
            continue
        waits = words.duration(now.at - one.first)
        line = f"No worker takes {{}}: {words.plural(one.jobs, 'job is', 'jobs are')} due, the oldest for {waits}."
        more = (
            f"They need the capability {one.capability}."
            if one.capability
            else "No running worker has a handler for it."
        )
        jobs = page.url("/jobs", status="pending", topic=one.topic)
        command = f"treadle worker app:queue --capabilities {one.capability}" if one.capability else START
        found.append(Problem("fail", line, more, [ProblemAction("Show jobs", jobs)], one.topic, jobs, command))
    return found


def _silent(page: Page, now: Now) -> list[Problem]:
    found = []
    for worker in now.workers:
        lease, quiet = worker.locked_until - worker.renewed_at, now.at - worker.renewed_at
        if quiet > lease / 2:
            held = f" and holds {words.plural(worker.running, 'job')}" if worker.running else ""
            line = f"Worker {{}} has been silent for {words.duration(quiet)}{held}."
            more = f"If it stays silent, others take its jobs over in {words.duration(worker.locked_until - now.at)}."
            url = page.url("/workers")
            found.append(Problem("warn", line, more, [ProblemAction("Open worker", url)], worker.name, url))
    return found


def _behind(page: Page, found: Trouble) -> list[Problem]:
    """Long overdue although there is a worker, with the largest group's reason."""
    lines = []
    for topic in found.now.topics:
        waits = delay(found.now, topic) if topic.paused_until is None else None
        if waits is None or waits.cause is Cause.NO_WORKER or found.now.at - waits.first < LONG_WAIT_MS:
            continue
        line, help_ = _cause_words(waits, found.times, topic)
        more = f"The oldest has been due for {words.duration(found.now.at - waits.first)}. {help_}"
        jobs = page.url("/jobs", status="pending", topic=topic.topic)
        shown = ProblemAction(f"Show the {waits.due:,}", jobs)
        lines.append((waits.cause is not Cause.KEY, Problem("warn", line, more, [shown], topic.topic, jobs)))
    return [problem for _, problem in sorted(lines, key=lambda one: one[0])]


def _cause_words(waits: Delay, times: Sequence[Times], topic: Topic) -> tuple[str, str]:
    """The cause, and what would help."""
    jobs = f"{{}}: {waits.jobs:,} of {words.plural(waits.due, 'due job waits', 'due jobs wait')}"
    free = f"{words.plural(waits.free, 'slot is', 'slots are')} free"
    match waits.cause:
        case Cause.KEY:
            named = _key_words(waits)
            their = "its key" if waits.due == 1 else "their key"
            line = f"{jobs} for {their}{f' ({named})' if named else ''}"
            help_ = " ".join(filter(None, ("More workers would not help.", _last_start(waits, times, topic))))
            return line + (f"; {free}." if waits.free else "."), help_
        case Cause.RATE:
            assert waits.rate
            limit = f"{waits.rate.most:,} per {format_ms(waits.rate.window_ms)}"
            return f"{jobs} for the rate limit of {limit}" + (f"; {free}." if waits.free else "."), (
                "More workers would not help."
            )
        case Cause.SLOTS:
            return f"{jobs} for a slot; all {waits.slots:,} are taken.", "More slots or workers would help."
        case Cause.DRAINING:
            return f"{jobs}; every worker that takes them is draining.", "They start when another worker does."
        case _:
            return f"{jobs} to be claimed; {free}.", "The worker takes them on its next look."


def _key_words(waits: Delay) -> str:
    """acme, globex: 1 each."""
    named = [(name, one.most) for one in waits.keys if (name := key_name(one.key))]
    if not named:
        return ""
    more = f" and {len(waits.keys) - MOST_NAMED:,} more" if len(waits.keys) > MOST_NAMED else ""
    shown = named[:MOST_NAMED]
    limits = {most for _, most in shown}
    if len(limits) == 1:
        each = " each" if len(waits.keys) > 1 else ""
        return f"{', '.join(name for name, _ in shown)}{more}: {limits.pop():,}{each}"
    return ", ".join(f"{name}: {most:,}" for name, most in shown) + more


def _last_start(waits: Delay, times: Sequence[Times], topic: Topic) -> str:
    """When the last of them starts, if runs take as long as in the last day."""
    usual = distribution(times, "run", topic.topic).percentile(0.5)
    together = sum(one.most for one in waits.keys)
    if usual is None or not together:
        return ""
    left = words.duration(usual * waits.jobs / together)
    return f"At {words.duration(usual)} a run the last of them starts in about {left}."


# -- people and schedules --------------------------------------------------------------------------


def _people(page: Page, found: Trouble) -> list[Problem]:
    if not found.waits:
        return []
    jobs = sum(one.jobs for one in found.waits)
    oldest = found.waits[0]
    line = (
        f"{words.plural(jobs, 'job waits', 'jobs wait')} for a person, "
        f"the longest for {words.duration(found.now.at - oldest.since)}."
    )
    named = [_wait_words(found.now, one) for one in found.waits[:MOST_NAMED]]
    more = len(found.waits) - MOST_NAMED
    actions = [
        ProblemAction(
            "Answer the oldest" if not page.read_only else "Open the oldest", page.url(f"/jobs/{oldest.oldest_id}")
        ),
        ProblemAction(f"Show all {jobs:,}", page.url("/jobs", status="waiting")),
    ]
    told = " · ".join(named) + (f" · {words.plural(more, 'other step')}" if more > 0 else "")
    return [Problem("people", line, told, actions)]


def _wait_words(now: Now, one: Wait) -> str:
    ends = f", gives up in {words.duration(one.until - now.at)}" if one.until is not None else ""
    return f"{one.topic} at {shown_step(one.step, '')}: {one.jobs:,}{ends}"


def _failing_schedules(page: Page, found: Trouble) -> list[Problem]:
    lines = []
    for one in found.schedules:
        times_ = "failed the last time" if one.failures == 1 else f"has failed {one.failures} times in a row"
        next_ = (
            f"Next run in {words.duration(one.next_ms - found.now.at)}." if one.next_ms else "It does not run again."
        )
        more = " ".join(filter(None, (one.error, next_)))
        actions = [ProblemAction("Open last failure", page.url(f"/jobs/{one.job_id}"))]
        url = page.url("/schedules", open=one.id)
        lines.append(Problem("warn", f"Schedule {{}} {times_}.", more, actions, one.id, url))
    return lines


# -- webhooks --------------------------------------------------------------------------------------


def _webhooks(page: Page, found: Trouble) -> list[Problem]:
    """What was switched off by itself, and what has failed for so long that it will be."""
    lines = []
    for one in found.webhooks:
        state, url = one.state, page.url("/webhooks", open=one.id)
        actions = [ProblemAction("Look at it", url)]
        if not one.endpoint.enabled and one.endpoint.disabled_reason is not None:
            more = f"{one.endpoint.disabled_reason[:200]}. Everything since can be sent again."
            lines.append(Problem("fail", "Webhook {} was switched off.", _sentence(more), actions, one.id, url))
        elif one.endpoint.enabled and state.warned and state.failing_since_ms is not None:
            line = f"Webhook {{}} has failed for {words.duration(found.now.at - state.failing_since_ms)}."
            off = words.duration(state.failing_since_ms + DISABLE_AFTER_MS - found.now.at)
            more = f"If it goes on failing it is switched off in {off}."
            lines.append(Problem("warn", line, more, actions, one.id, url))
    return lines


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
