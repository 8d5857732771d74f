"""Secret payload fields of schedules: stored for the jobs, and `***` for everyone who reads or edits a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from treadle.model.errors import InvalidInput
from treadle.model.secrets import Path, hide, restore, secret_paths
from treadle.policy.saved_template import KIND, secret_fields
from treadle.policy.schedule import Schedule
from treadle.store.protocol import Store

if TYPE_CHECKING:
    from treadle.model.handler import Handler

Secrets = Mapping[str, tuple[Path, ...]]
"""The secret fields of each topic."""


async def secrets_of(store: Store, handlers: Mapping[str, Handler], topics: Iterable[str]) -> Secrets:
    """From the saved templates and from the handlers of this process, which may not be saved yet."""
    names = sorted(set(topics))
    records = await store.get_records([(KIND, topic) for topic in names]) if names else []
    saved = {record.id: secret_fields(record.body) for record in records if record}
    own = {topic: handlers[topic].template.secret for topic in names if topic in handlers}
    return {topic: secret_paths([*saved.get(topic, ()), *own.get(topic, ())]) for topic in names}


def hidden(schedule: Schedule, secrets: Secrets) -> Schedule:
    paths = secrets[schedule.topic]
    return replace(schedule, payload=hide(schedule.payload, paths)) if paths else schedule


def with_old_secrets(schedule: Schedule, changes: Mapping[str, Any], paths: Sequence[Path]) -> Mapping[str, Any]:
    """The changes with the stored values in place of `***`. `paths` are the secrets of its topic before the change.

    Another topic may show the field to everyone, so a new topic takes no secret along.
    """
    if not paths:
        return changes
    if changes.get("topic", schedule.topic) == schedule.topic:
        if "payload" not in changes:
            return changes
        return {**changes, "payload": restore(changes["payload"], schedule.payload, paths)}
    if "payload" not in changes and hide(schedule.payload, paths) != schedule.payload:
        message = f"payload: it has secrets of {schedule.topic}; give the payload for the new topic too"
        raise InvalidInput(message, field="payload")
    return changes
