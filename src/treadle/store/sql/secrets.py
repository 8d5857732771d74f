"""Which payload fields of which topics are secret, as the saved templates say."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import chain

from pydantic_core import from_json

from treadle.model.errors import InvalidInput
from treadle.model.job import Job
from treadle.model.secrets import Path, hide, secret_paths, touches
from treadle.policy.rules import Condition, documents_in

REREAD_S = 5.0


class Secrets:
    """Read again after a while, and for every template version that is new here: a job never shows a secret because
    this process has not heard of its template yet.
    """

    def __init__(self) -> None:
        self._paths: dict[str, tuple[Path, ...]] = {}
        self._seen: set[tuple[str, int | None]] = set()
        self._read_at = float("-inf")

    def are_known(self, jobs: Iterable[Job] = ()) -> bool:
        fresh = time.monotonic() - self._read_at < REREAD_S
        return fresh and all((job.topic, job.template_version) in self._seen for job in jobs)

    def learn(self, templates: Mapping[str, tuple[str, int]], jobs: Iterable[Job] = ()) -> None:
        self._paths = {
            topic: secret_paths(from_json(text).get("secret", ()))
            for topic, (text, _) in templates.items()
            if '"secret":[' in text
        }
        self._seen = {(job.topic, job.template_version) for job in jobs} | (self._seen if self._recent() else set())
        self._read_at = time.monotonic()

    def _recent(self) -> bool:
        return time.monotonic() - self._read_at < REREAD_S

    def hide_in(self, jobs: Iterable[Job]) -> None:
        if self._paths:
            for job in jobs:
                job.payload = hide(job.payload, self._paths.get(job.topic, ()))

    def check(self, condition: Condition | None) -> None:
        """Refuse to compare with a secret: whoever may ask often enough would learn it."""
        if not self._paths or condition is None:
            return
        for document, path in documents_in(condition):
            if document == "payload" and touches(path, chain.from_iterable(self._paths.values())):
                named = ".".join(map(str, (document, *path)))
                raise InvalidInput(f"{named} is secret and can't be searched", field=named[:200])
