"""The part of `doctor` that every SQL store shares: is each job in exactly one place, does each gate count right?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.store.base import Finding

if TYPE_CHECKING:
    from treadle.store.relational import RelationalStore

_REPORT = "this is a bug in treadle or an edit by hand; please report it, with the job's history"


async def examine(store: RelationalStore) -> list[Finding]:
    """Each check is one statement, so it sees one state of the database whatever moves meanwhile."""
    return [await _places(store), await _gates(store)]


async def _places(store: RelationalStore) -> Finding:
    lost = await store.query(store.queries["misplaced"].sql, [])
    if not lost:
        return Finding("places", "ok", "every job is in exactly one place")
    some = ", ".join(f"{id_} ({places} places)" for id_, places in lost[:3])
    return Finding("places", "fail", f"{len(lost)} jobs are in no place or in several: {some}", _REPORT)


async def _gates(store: RelationalStore) -> Finding:
    gates = await store.query(store.queries["gate_drift"].sql, [])
    wrong = [(gate, used, right) for gate, used, right in gates if used != right]
    if not wrong:
        return Finding("concurrency", "ok", f"{len(gates)} keys in use, all counted right")
    some = ", ".join(f"{gate} counts {used}, not {right}" for gate, used, right in wrong[:3])
    return Finding("concurrency", "fail", f"{len(wrong)} keys are counted wrong: {some}", _REPORT)
