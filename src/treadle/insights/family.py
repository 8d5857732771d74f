"""The parents and the children of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.insights.lists import listing
from treadle.model.job import Job
from treadle.store.protocol import Store

# Jobs that enqueue themselves again and again have no end of parents.
MOST_PARENTS = 20
MOST_CHILDREN = 50


class Family(NamedTuple):
    parents: Sequence[Job] = ()
    """The nearest last."""
    children: Sequence[Job] = ()
    """The newest first."""
    total: int = 0
    """How many children there are, up to the store's limit for counting."""


NO_FAMILY = Family()


async def family(store: Store, job: Job, most: int = MOST_CHILDREN) -> Family:
    """`most`: how many of its children."""
    wanted = listing(None, None, None, None, most, 0, parent_id=job.id)
    children = await store.list(wanted)
    total = len(children) if len(children) < most else await store.count(wanted)
    return Family(await _parents(store, job), children, total)


async def _parents(store: Store, job: Job) -> Sequence[Job]:
    found: list[Job] = []
    above = job.parent_id
    while above is not None and len(found) < MOST_PARENTS:
        parent = (await store.get([above]))[0]
        if parent is None or any(one.id == parent.id for one in found):
            break
        found.insert(0, parent)
        above = parent.parent_id
    return found
