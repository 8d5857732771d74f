"""Why the due jobs of a topic have not started, grouped by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic_core import from_json

from treadle.insights.overview import Now
from treadle.model.job import Job
from treadle.store.views import FOREVER, BusyKey, LiveWorker, RateUsed, Topic


class Cause(StrEnum):
    NO_WORKER = "no worker"
    KEY = "key"
    RATE = "rate"
    DRAINING = "draining"
    SLOTS = "slots"
    UNCLAIMED = "unclaimed"
    """Nothing keeps them from starting: a worker will claim them."""


@dataclass(frozen=True, slots=True)
class Delay:
    """The due jobs of one topic, and what most of them wait for."""

    cause: Cause
    jobs: int
    """How many wait for that."""
    due: int
    first: int
    """The due time of the one that has waited longest."""
    slots: int
    """Of the workers that serve the topic."""
    free: int
    """How many of those are free."""
    keys: Sequence[BusyKey] = ()
    rate: RateUsed | None = None


def delay(now: Now, topic: Topic) -> Delay | None:
    """The largest group of the topic's due jobs; None if none is due."""
    due = [one for one in topic.backlog if one.due and one.jobs]
    if not due:
        return None
    serving = [worker for worker in now.serving(topic.topic) if not worker.draining]
    slots, free = sum(one.slots for one in serving), sum(max(one.slots - one.running, 0) for one in serving)
    counts = dict.fromkeys(Cause, 0)
    for one in due:
        able = now.serving(topic.topic, one.capability)
        if not able:
            counts[Cause.NO_WORKER] += one.jobs
            continue
        counts[Cause.KEY] += one.held
        counts[_cause_of_ready(able, topic)] += one.jobs - one.held
    cause = max(counts, key=lambda one: counts[one])
    first = min(one.first for one in due)
    return Delay(cause, counts[cause], sum(counts.values()), first, slots, free, topic.busy_keys, topic.rate)


def _cause_of_ready(able: Sequence[LiveWorker], topic: Topic) -> Cause:
    if topic.rate and topic.rate.used >= topic.rate.most:
        return Cause.RATE
    working = [worker for worker in able if not worker.draining]
    if not working:
        return Cause.DRAINING
    # A worker that claims over HTTP has no slots: it takes a job when it wants one.
    full = all(worker.slots and worker.running >= worker.slots for worker in working)
    return Cause.SLOTS if full else Cause.UNCLAIMED


def why_late(now: Now, job: Job) -> str:
    """The most obvious reason why a due job has not started, without reading that job from the database."""
    until = now.paused_until(job.topic)
    if until is not None:
        return "Its topic is paused" + (" until it is resumed." if until >= FOREVER else ".")
    if not now.serving(job.topic):
        return "No running worker serves its topic."
    if job.capability and not now.serving(job.topic, job.capability):
        return f"No running worker has the capability {job.capability}."
    topic = next((one for one in now.topics if one.topic == job.topic), None)
    waits = delay(now, topic) if topic else None
    if waits is None or waits.jobs < waits.due:
        return "Others are ahead of it, or its key is busy."
    return _ALL[waits.cause]


_ALL = {
    Cause.NO_WORKER: "No running worker takes it.",
    Cause.KEY: "Its key is busy.",
    Cause.RATE: "The rate limit of its topic is used up.",
    Cause.DRAINING: "Every worker that takes it is draining.",
    Cause.SLOTS: "All slots of its workers are taken.",
    Cause.UNCLAIMED: "Others are ahead of it.",
}


def key_name(key: str) -> str:
    """The values of a concurrency key, as people know them; empty for a long key, which is stored as its hash."""
    if not key.startswith("["):
        return ""
    _topic, *values = from_json(key)
    return ", ".join(str(value) for value in values if value is not None)
