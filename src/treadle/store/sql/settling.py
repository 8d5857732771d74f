"""Settlements other than plain completions: one transaction per lease, or per job if a follow-up may be refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from treadle.model.errors import Refused, StoreBusy
from treadle.store import batches
from treadle.store.sql import scripts
from treadle.store.sql.runner import SqlRunner
from treadle.store.values import FollowUpsBusy, Settlement

# Follow-up jobs with a locked key that one call tries to store: other endings wait for each of them.
BUSY_TRIES = 2


async def settle(store: SqlRunner, settlements: Sequence[Settlement], refused: list[Settlement]) -> list[Settlement]:
    """Returns the lost ones; `refused` is filled with those that a refused follow-up job turned into failures."""
    lost: list[Settlement] = []
    sure = [one for one in settlements if not batches.may_be_refused(one)]
    for _, mine in batches.by_lease(sure):
        lost += await store.transact(partial(scripts.settle, mine), batches.hints(mine))
    left: list[Settlement] = []
    tried = 0
    for one in settlements:
        if not batches.may_be_refused(one):
            continue
        if tried == BUSY_TRIES:
            left.insert(0, one)  # before the ones that were tried
            continue
        try:
            lost += await _settle_with_effects(store, one, refused)
        except StoreBusy:
            left.append(one)
            tried += 1
    if left:
        raise FollowUpsBusy(left, lost)
    return lost


async def _settle_with_effects(store: SqlRunner, one: Settlement, refused: list[Settlement]) -> list[Settlement]:
    """In a separate transaction: a refused follow-up job undoes this outcome and no other."""
    try:
        return await store.transact_or_busy(lambda: scripts.settle([one]), batches.hints([one]))
    except Refused as refusal:
        instead = batches.without_follow_ups(one, refusal)
        lost = await store.transact(lambda: scripts.settle([instead]), batches.hints([instead]))
        if lost:
            return [one]
        refused.append(instead)
        return []
