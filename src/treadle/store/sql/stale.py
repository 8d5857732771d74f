"""Since when a job is stale, in SQL: the same answers as `policy.retention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from treadle.policy.retention import Ages, Former, Rules


def is_uniform(rules: Rules) -> bool:
    """Whether the same age holds for every job, and has always done so."""
    return not (rules.former or _ages(rules.by_status) or _ages(rules.by_topic))


def stale_at(rules: Rules, ended: str, clock: str, bind: Callable[[str], str]) -> str:
    """An expression over the table `ended` of ended jobs; null if the job is not stale."""
    whens = []
    for until, one in (*((str(until), one) for until, one in rules.former), (clock, rules)):
        age = _stale_after(one, ended, bind)
        # The age is bound once for each of the two.
        whens.append(
            f"WHEN {ended}.ended_at + {age} <= {until} THEN {ended}.ended_at + {_stale_after(one, ended, bind)}"
        )
    return f"CASE {' '.join(whens)} END"


def may_be_stale(rules: Rules, ended: str, clock: str, bind: Callable[[int], str]) -> str:
    """A condition that every stale job meets, for the index on the time of the end."""
    now = f"{ended}.ended_at <= {clock} - {bind(_least(rules))}"
    if not rules.former:
        return now
    before = max(_last_stale(one) for one in rules.former)
    return f"({now} OR {ended}.ended_at <= {bind(before)})"


def _last_stale(former: Former) -> int:
    return former.until_ms - _least(former.rules)


def _least(rules: Rules) -> int:
    return min([rules.stale_after_ms, *_ages(rules.by_status), *_ages(rules.by_topic)])


def _stale_after(rules: Rules, ended: str, bind: Callable[[str], str]) -> str:
    by_topic, by_status = _ages(rules.by_topic), _ages(rules.by_status)
    if not by_topic and not by_status:
        return str(rules.stale_after_ms)
    whens = [
        *(f"WHEN {ended}.topic IN ({', '.join(map(bind, topics))}) THEN {ms}" for ms, topics in by_topic.items()),
        *(f"WHEN {ended}.status IN ({', '.join(map(bind, names))}) THEN {ms}" for ms, names in by_status.items()),
    ]
    return f"CASE {' '.join(whens)} ELSE {rules.stale_after_ms} END"


def _ages(exceptions: Mapping[str, Ages]) -> dict[int, list[str]]:
    """The names with an age of their own, by that age."""
    found: dict[int, list[str]] = {}
    for name, ages in exceptions.items():
        if ages.stale_after_ms is not None:
            found.setdefault(ages.stale_after_ms, []).append(name)
    return found
