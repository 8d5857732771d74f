"""Which payload fields of which jobs are secret, as the saved templates say."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from treadle.model.errors import InvalidInput
from treadle.model.events import OLD_PAYLOAD, Event
from treadle.model.job import Job
from treadle.model.secrets import Path, hide, secret_paths, touches
from treadle.policy.rules import Condition, documents_in, looks_inside
from treadle.policy.saved_template import KIND, VERSION_KIND, secret_fields, version_id
from treadle.store.values import Record

REREAD_S = 5.0
Origin: TypeAlias = tuple[str, int | None]
"""A topic, and the version of its template that a job was made with."""
Names: TypeAlias = Sequence[tuple[str, str]]
"""Kinds and ids of records."""


class Secrets:
    """A field is secret if the job's own version of its template says so, or the current one.

    Both are read again after a while, and for every version that is new here. So no job shows a secret because this
    process has not heard of its template yet.
    """

    def __init__(self) -> None:
        self._paths: dict[Origin, tuple[Path, ...]] = {}
        self._since = float("-inf")

    async def hide_in(self, jobs: list[Job], read: Callable[[Names], Awaitable[Iterable[Record]]]) -> list[Job]:
        """`read`: the records that exist."""
        await self._know(jobs, read)
        for job in jobs:
            if paths := self._paths[job.topic, job.template_version]:
                job.payload = hide(job.payload, paths)
        return jobs

    async def hide_in_events(
        self, events: list[Event], job: Job, read: Callable[[Names], Awaitable[Iterable[Record]]]
    ) -> list[Event]:
        """The events of this job; those of a requeue have the payload that a new one replaced."""
        if not any(OLD_PAYLOAD in event.metadata for event in events):
            return events
        await self._know([job], read)
        paths = self._paths[job.topic, job.template_version]
        return [event._replace(metadata=_hidden(event.metadata, paths)) for event in events]

    async def _know(self, jobs: Sequence[Job], read: Callable[[Names], Awaitable[Iterable[Record]]]) -> None:
        # Until nothing is unknown: what was learned may be forgotten again during the read.
        while unknown := self._unknown(jobs):
            self._learn(unknown, await read(records_of(unknown)))

    def _unknown(self, jobs: Iterable[Job]) -> list[Origin]:
        if time.monotonic() - self._since > REREAD_S:
            self._paths.clear()
            self._since = time.monotonic()
        return list({(job.topic, job.template_version) for job in jobs} - self._paths.keys())

    def _learn(self, origins: Sequence[Origin], records: Iterable[Record]) -> None:
        """`records` come from `records_of` these names."""
        found = {(record.kind, record.id): paths_in(record) for record in records}
        for topic, version in origins:
            own = found.get((VERSION_KIND, version_id(topic, version)), ()) if version is not None else ()
            self._paths[topic, version] = (*found.get((KIND, topic), ()), *own)


def _hidden(metadata: dict[str, Any], paths: Sequence[Path]) -> dict[str, Any]:
    if OLD_PAYLOAD not in metadata:
        return metadata
    return {**metadata, OLD_PAYLOAD: hide(metadata[OLD_PAYLOAD], paths)}


def records_of(origins: Iterable[Origin]) -> list[tuple[str, str]]:
    """The kinds and ids of the records that say what is secret there."""
    wanted = {(KIND, topic) for topic, _ in origins}
    return [*wanted, *((VERSION_KIND, version_id(topic, one)) for topic, one in origins if one is not None)]


def paths_in(record: Record) -> tuple[Path, ...]:
    return secret_paths(secret_fields(record.body, record.kind))


async def check(condition: Condition | None, read: Callable[[str], Awaitable[Iterable[Record]]]) -> None:
    """Refuse to compare with a secret: by asking often enough, anyone would learn it. `read`: all records of a kind."""
    if condition is None or not looks_inside(condition):
        return
    templates = [record for kind in (KIND, VERSION_KIND) for record in await read(kind)]
    secret = [path for record in templates for path in paths_in(record)]
    for document, path in documents_in(condition):
        if document == "payload" and touches(path, secret):
            named = ".".join(map(str, (document, *path)))
            raise InvalidInput(f"{named} is secret and can't be searched", field=named[:200])
