"""Records that change together, and with what depends on them: a schedule with the jobs of its slots, a template with
the rate limit of its topic.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.model.errors import Refused, VersionConflict
from treadle.store.sql.scripts.common import Script
from treadle.store.sql.scripts.insert import insert
from treadle.store.values import Inserted, NewJob, RecordWrite, TopicRate


def insert_with_records(
    jobs: Sequence[NewJob], atomic: bool, records: Sequence[RecordWrite]
) -> Script[list[Inserted | Refused]]:
    """The records come first: two schedulers with the same slots meet there, before they take any key."""
    yield from write_records(records)
    return (yield from insert(jobs, atomic)) if jobs else []


def write_records(records: Sequence[RecordWrite], rates: Sequence[TopicRate] = ()) -> Script[None]:
    """New records before changes and each in their order, so that two writers of the same records don't deadlock."""
    ordered = sorted(records, key=lambda one: (one.kind, one.id))
    new = [{**one._asdict(), "key": one.id} for one in ordered if one.version is None]
    old = [one._asdict() for one in ordered if one.version is not None]
    written = {(row[0], row[1]) for row in (yield "add_record", new)} if new else set()
    written |= {(row[0], row[1]) for row in (yield "change_records", old)} if old else set()
    for one in records:
        if (one.kind, one.id) not in written:
            raise VersionConflict(f"{one.kind} {one.id} was changed by another process", kind=one.kind, id=one.id)
    if rates:
        yield "set_rates", [one._asdict() for one in sorted(rates, key=lambda one: one.topic)]
