"""A draft of an access rule, tried for one user and one job before it is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.accounts import USERS, AccountNotFound, Accounts
from treadle.http.access import PUBLIC, parsed
from treadle.model.errors import JobNotFound
from treadle.policy import rules
from treadle.policy.rules import Clause, RequestFacts
from treadle.queue import Queue

MAX_SHOWN = 80


@dataclass(frozen=True, slots=True)
class ClauseRow:
    text: str
    holds: bool | None
    values: str


@dataclass(frozen=True, slots=True)
class Verdict:
    allowed: bool
    title: str
    text: str
    today: str
    clauses: Sequence[ClauseRow] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """What was typed: an e-mail address or nothing, "manage" or "enqueue", a job id or nothing."""

    as_: str
    may: str
    on: str


async def verdict(accounts: Accounts, queue: Queue, trial: Trial, draft: str, in_force: str) -> Verdict:
    try:
        record = (await accounts.get(USERS, trial.as_)).as_json() if trial.as_ else {}
        job = (await queue.get(trial.on)).as_json() if trial.on else None
    except (AccountNotFound, JobNotFound) as error:
        return Verdict(False, "Not tried.", error.message, "")
    allowed, today = _allows(draft, record, job), _allows(in_force, record, job)
    who = trial.as_ or "A visitor who has not signed in"
    what = "see and manage" if trial.may == "manage" else "enqueue"
    which = f"this {job['topic']}" if job else "jobs"
    refused = "401" if not record else "404" if job and trial.may == "manage" else "403"
    return Verdict(
        allowed,
        "Allowed." if allowed else f"Refused, {refused}.",
        f"{who} {'may' if allowed else 'may not'} {what} {which} with this draft.",
        f"Today the answer is {'allowed' if today else 'refused'}: {in_force or 'superusers only'}",
        [_row(one) for one in _clauses(draft, record, job)],
    )


def _allows(text: str, record: Mapping[str, Any], job: Mapping[str, Any] | None) -> bool:
    if text == PUBLIC:
        return True
    rule = parsed(text)
    if rule is None:
        return False
    condition = rule.bind(RequestFacts(auth=record))
    return rules.matches(condition, job) if job else condition != rules.never


def _clauses(text: str, record: Mapping[str, Any], job: Mapping[str, Any] | None) -> list[Clause]:
    return [] if text in ("", PUBLIC) else rules.clauses(text, RequestFacts(auth=record), job)


def _row(clause: Clause) -> ClauseRow:
    told = ", ".join(f"{name} is {_shown(value)}" for name, value in clause.values)
    if clause.holds is None:
        told = f"{told}; it depends on the job" if told else "it depends on the job"
    return ClauseRow(clause.text, clause.holds, told)


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "empty"
    text = str(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
