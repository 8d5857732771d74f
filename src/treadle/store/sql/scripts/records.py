"""Jobs and records that commit together: a schedule's slots and the schedule itself."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.model.errors import Refused, VersionConflict
from treadle.store.sql.scripts.common import Script
from treadle.store.sql.scripts.insert import insert
from treadle.store.values import Inserted, NewJob, RecordWrite


def insert_with_records(
    jobs: Sequence[NewJob], atomic: bool, records: Sequence[RecordWrite]
) -> Script[list[Inserted | Refused]]:
    """The records come first: two schedulers with the same slots meet there, before they take any key."""
    rows = [one._asdict() for one in sorted(records)]
    changed = {(kind, id_) for kind, id_ in (yield "change_records", rows)}
    for one in records:
        if (one.kind, one.id) not in changed:
            raise VersionConflict(f"{one.kind} {one.id} was changed by another process", kind=one.kind, id=one.id)
    return (yield from insert(jobs, atomic)) if jobs else []
