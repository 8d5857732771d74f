"""Jobs that are stored with the end of a step."""

from __future__ import annotations

from treadle.store.sql.scripts.common import Script, as_facts
from treadle.store.sql.scripts.insert import insert
from treadle.store.sql.scripts.steps import checkpoint
from treadle.store.values import Checkpoint


def checkpoint_and_follow_up(lease: int, one: Checkpoint) -> Script[list[tuple[int, int]]]:
    """Raises the refusal of any of the jobs, which undoes the transaction."""
    lost = yield from checkpoint(lease, [one])
    if lost:
        return lost
    # An owner reports again if the answer was lost with the connection. It has made the ids.
    there = {job.id for job in as_facts((yield "find_jobs", [{"id": job.id} for job in one.jobs]))}
    if new := [job for job in one.jobs if job.id not in there]:
        yield from insert(new, atomic=True)
    return lost
