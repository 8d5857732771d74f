"""What the reader of a stream wants to hear: which jobs, and which of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from treadle.events.frames import snapshot_listing
from treadle.events.ring import FeedEvent
from treadle.http.errors import bad_field
from treadle.model.fields import JSON_NAMES
from treadle.model.told_job import without_step_results
from treadle.policy.rules import Condition
from treadle.store.views import Listing

MOST_IDS = 100
# Without these, a job in an event is never too large.
_LARGE = frozenset(("payload", "result"))
# Events as the readers with the same fields get them, for a moment: many readers often want the same.
MOST_NARROWED = 1_000
_NARROWED: dict[tuple[int, frozenset[str]], tuple[FeedEvent, bytes]] = {}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Both `ids` and `topic`: jobs that match both. None of them: all jobs."""

    ids: frozenset[str] | None = None
    topic: str | None = None
    fields: frozenset[str] | None = None
    """What jobs carry besides their id; None: everything."""

    @classmethod
    def of(cls, ids: Sequence[str] | None, topic: str | None, fields: str | None) -> Wanted:
        return cls(frozenset(ids) if ids else None, topic, None if fields is None else _names(fields))

    def includes(self, job: Mapping[str, Any]) -> bool:
        return (self.ids is None or job["id"] in self.ids) and self.topic in (None, job["topic"])

    def listing(self, condition: Condition | None) -> Listing | Sequence[str]:
        """What to read for a snapshot; jobs that are read by id must still be checked."""
        return snapshot_listing(topic=self.topic, condition=condition) if self.ids is None else sorted(self.ids)

    def narrowed(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """A job of a snapshot."""
        return self._kept(without_step_results(job))

    def _kept(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.fields is None:
            return job
        kept = {name: job[name] for name in job if name in self.fields}
        return {**kept, "truncated": True} if "truncated" in job and self.fields & _LARGE else kept

    def data(self, told: FeedEvent) -> bytes:
        """The event's JSON. Without `fields` it is the text that all readers share."""
        if self.fields is None or "job" not in told.payload:
            return told.data
        known = _NARROWED.get((told.id, self.fields))
        if known is None or known[0] is not told:  # ids of two databases may be equal
            if len(_NARROWED) >= MOST_NARROWED:
                _NARROWED.clear()
            known = _NARROWED[told.id, self.fields] = told, self._narrowed_data(told)
        return known[1]

    def _narrowed_data(self, told: FeedEvent) -> bytes:
        job = self._kept(told.payload["job"])
        payload = {name: value for name, value in told.payload.items() if name != "truncated" or name in job}
        return to_json({**payload, "job": job})


def _names(text: str) -> frozenset[str]:
    names = {name.strip() for name in text.split(",")} - {""}
    if unknown := sorted(names - JSON_NAMES):
        raise bad_field("fields", f"a job has no field {unknown[0][:100]}")
    return frozenset(names | {"id"})
