"""The part of `doctor` that every SQL store shares: each job in one place, each concurrency key counted right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.store.views import Finding

if TYPE_CHECKING:
    from treadle.store.sql.store import SqlStore

_REPORT = "this is a bug in treadle or an edit by hand; please report it, with the job's history"


async def examine(store: SqlStore) -> list[Finding]:
    """Each check is one statement, so it sees one state of the database while jobs keep moving."""
    return [await _places(store), await _limits(store)]


async def _places(store: SqlStore) -> Finding:
    lost = await store.read(store.queries["misplaced"].sql, [])
    if not lost:
        return Finding("places", "ok", "every job is in exactly one place")
    some = ", ".join(f"{id_} ({places} places)" for id_, places in lost[:3])
    return Finding("places", "fail", f"{len(lost)} jobs are in no place or in several: {some}", _REPORT)


async def _limits(store: SqlStore) -> Finding:
    keys = await store.read(store.queries["limit_drift"].sql, [])
    wrong = [(key, counted, running) for key, counted, running in keys if counted != running]
    if not wrong:
        return Finding("concurrency", "ok", f"{len(keys)} keys in use, all counted right")
    some = ", ".join(f"{key} counts {counted}, not {running}" for key, counted, running in wrong[:3])
    return Finding("concurrency", "fail", f"{len(wrong)} keys are counted wrong: {some}", _REPORT)
