"""Records that change together, and with what depends on them: a schedule with the jobs of its slots, a template with
what stores know of its topic.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.model.errors import Refused, VersionConflict
from treadle.store.sql.scripts.common import Script
from treadle.store.sql.scripts.insert import insert
from treadle.store.values import Inserted, NewJob, Record, RecordWrite, TopicOptions


def write_records(
    writes: Sequence[RecordWrite], *, atomic: bool = False, topics: Sequence[TopicOptions] = ()
) -> Script[list[Record | None]]:
    answers = yield from _write_each(writes)
    if atomic:
        for one, record in zip(writes, answers, strict=True):
            if record is None:
                raise VersionConflict(f"{one.kind} {one.id} was changed by another process", kind=one.kind, id=one.id)
    if topics:
        yield "set_topics", [one._asdict() for one in sorted(topics, key=lambda one: one.topic)]
    return answers


def _write_each(writes: Sequence[RecordWrite]) -> Script[list[Record | None]]:
    names = [(one.kind, one.id) for one in writes]
    keys = [(one.kind, one.key) for one in writes]
    if len(set(names)) == len(names) and len(set(keys)) == len(keys):
        written = yield from _write(writes)
        return [written.get(name) for name in names]
    answers: list[Record | None] = []
    for one, name in zip(writes, names, strict=True):  # of two writes for one name or key, the first wins
        answers.append((yield from _write([one])).get(name))
    return answers


def _write(writes: Sequence[RecordWrite]) -> Script[dict[tuple[str, str], Record]]:
    written: list[Record] = []
    for query, known in (("add_records", False), ("change_records", True)):
        # Sorted, or two batches deadlock.
        if rows := [one._asdict() for one in sorted(writes) if (one.version is not None) is known]:
            written += [Record(*row) for row in (yield query, rows)]
    return {(one.kind, one.id): one for one in written}


def insert_with_records(
    jobs: Sequence[NewJob], atomic: bool, records: Sequence[RecordWrite]
) -> Script[list[Inserted | Refused]]:
    """The records come first: two schedulers with the same slots meet there, before they take any key."""
    yield from write_records(records, atomic=True)
    return (yield from insert(jobs, atomic)) if jobs else []
