"""When an ended job is stale, and when it is deleted.

Two ages, each the same for all jobs unless an exception is made for a topic or a status; a topic's wins. `stale_after`
counts from the end of a job, `delete_after` from then on. Raising `stale_after` takes no mark back: the rules that were
in force before stay, with the time at which they were replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from treadle.model.settings import DAY_MS
from treadle.model.status import ENDED, Status

# How many replaced rules are kept: each one makes every search for stale jobs a little slower.
MOST_FORMER = 20


class Ages(NamedTuple):
    """An exception; None: as for other jobs."""

    stale_after_ms: int | None = None
    delete_after_ms: int | None = None

    def over(self, other: Ages) -> Ages:
        """These ages, and the other's where these say nothing."""
        return Ages(*(b if a is None else a for a, b in zip(self, other, strict=True)))

    def with_changes(self, changes: Mapping[str, int | None]) -> Ages:
        """`changes` by the names of the fields; None removes one."""
        return self._replace(**changes)

    def __bool__(self) -> bool:
        return any(one is not None for one in self)


NOTHING = Ages()


class Former(NamedTuple):
    """Rules that were replaced."""

    until_ms: int
    """Jobs that were stale then stay so."""
    rules: Rules


@dataclass(frozen=True)
class Rules:
    stale_after_ms: int = 7 * DAY_MS
    delete_after_ms: int = 7 * DAY_MS
    by_status: Mapping[str, Ages] = field(default_factory=dict)
    by_topic: Mapping[str, Ages] = field(default_factory=dict)
    former: Sequence[Former] = ()
    """Oldest first."""

    def stale_after(self, topic: str, status: str) -> int:
        for ages in (self.by_topic.get(topic, NOTHING), self.by_status.get(status, NOTHING)):
            if ages.stale_after_ms is not None:
                return ages.stale_after_ms
        return self.stale_after_ms

    def kept(self, topic: str, status: str) -> int:
        """How long a job is kept after its end."""
        for ages in (self.by_topic.get(topic, NOTHING), self.by_status.get(status, NOTHING)):
            if ages.delete_after_ms is not None:
                return self.stale_after(topic, status) + ages.delete_after_ms
        return self.stale_after(topic, status) + self.delete_after_ms

    def stale_at(self, topic: str, status: str, ended_at: int, now: int) -> int | None:
        """Since when a job is stale; None: it is not."""
        for until, rules in (*self.former, Former(now, self)):
            at = ended_at + rules.stale_after(topic, status)
            if at <= until:
                return at
        return None

    def replacing(self, before: Rules, now: int) -> Rules:
        """These rules, now in force instead of others."""
        plain = replace(before, former=())
        longest = max(one.stale_after_ms + one.delete_after_ms for one in (*classes(self), *classes(before)))
        known = [one for one in before.former if one.until_ms + longest > now]
        if _raises(plain, self):
            known.append(Former(now, plain))
        return replace(self, former=tuple(known[-MOST_FORMER:]))


class EndedClass(NamedTuple):
    """Ended jobs that are kept equally long."""

    topics: Sequence[str] | None
    """None: all but `other_topics`."""
    other_topics: Sequence[str]
    statuses: Sequence[Status]
    stale_after_ms: int
    delete_after_ms: int

    @property
    def kept_ms(self) -> int:
        return self.stale_after_ms + self.delete_after_ms


def classes(rules: Rules) -> list[EndedClass]:
    """Every ended job is in one of them."""
    named: dict[tuple[tuple[Status, ...], int, int], list[str]] = {}
    for topic in rules.by_topic:
        for statuses, stale, kept in _by_status(rules, topic):
            named.setdefault((statuses, stale, kept - stale), []).append(topic)
    others = tuple(rules.by_topic)
    return [
        *(EndedClass(None, others, statuses, stale, kept - stale) for statuses, stale, kept in _by_status(rules, "")),
        *(EndedClass(topics, (), *ages) for ages, topics in named.items()),
    ]


def exceptions_from(given: Mapping[str, Any] | None) -> dict[str, Ages]:
    """Exceptions as they are stored."""
    return {name: Ages(one.get("stale_after_ms"), one.get("delete_after_ms")) for name, one in (given or {}).items()}


def stored(exceptions: Mapping[str, Ages]) -> dict[str, dict[str, int]]:
    return {
        name: {field: ms for field, ms in ages._asdict().items() if ms is not None}
        for name, ages in exceptions.items()
        if ages
    }


def former_from(given: Sequence[Mapping[str, Any]] | None) -> tuple[Former, ...]:
    return tuple(
        Former(
            one["until_ms"],
            Rules(
                one["stale_after_ms"],
                one["delete_after_ms"],
                exceptions_from(one["by_status"]),
                exceptions_from(one["by_topic"]),
            ),
        )
        for one in given or ()
    )


def stored_former(former: Sequence[Former]) -> list[dict[str, Any]]:
    return [
        {
            "until_ms": until,
            "stale_after_ms": rules.stale_after_ms,
            "delete_after_ms": rules.delete_after_ms,
            "by_status": stored(rules.by_status),
            "by_topic": stored(rules.by_topic),
        }
        for until, rules in former
    ]


def _by_status(rules: Rules, topic: str) -> list[tuple[tuple[Status, ...], int, int]]:
    """The statuses of a topic by how long they are kept. No topic has an empty name."""
    found: dict[tuple[int, int], list[Status]] = {}
    for status in Status:
        if status in ENDED:
            found.setdefault((rules.stale_after(topic, status), rules.kept(topic, status)), []).append(status)
    return [(tuple(statuses), *ages) for ages, statuses in found.items()]


def _raises(before: Rules, after: Rules) -> bool:
    """Whether any job is stale later than before."""
    topics = {"", *before.by_topic, *after.by_topic}
    return any(
        after.stale_after(topic, status) > before.stale_after(topic, status) for topic in topics for status in ENDED
    )
