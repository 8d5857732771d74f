"""Which settlements may take a faster way, and the others: one transaction per lease, or per job if a follow-up may be
refused."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial

from treadle.model.errors import Refused, StoreBusy
from treadle.policy.consequences import MORE, PLAIN
from treadle.store import batches
from treadle.store.sql import scripts
from treadle.store.sql.rows import HOOKED, extent_of
from treadle.store.sql.runner import SqlRunner
from treadle.store.values import FollowUpsBusy, Settlement

HookedTopics = Container[str]
"""Topics whose completions some webhook wants."""
NO_TOPICS: HookedTopics = frozenset()

# Follow-up jobs with a locked key that one call tries to store: other endings wait for each of them.
BUSY_TRIES = 2


def is_plain(one: Settlement, hooked: HookedTopics = NO_TOPICS) -> bool:
    """Whether nothing is to be written but an ending and its tally."""
    transition = one.transition
    flags = one.job.flags | HOOKED if one.job.topic in hooked else one.job.flags
    return one.effects is None and extent_of(transition.to, transition.event, flags) is PLAIN


def is_done_flow(one: Settlement, hooked: HookedTopics = NO_TOPICS) -> bool:
    """Whether nothing else is to be written but the job's last steps."""
    transition, effects = one.transition, one.effects
    flags = one.job.flags | HOOKED if one.job.topic in hooked else one.job.flags
    if effects is None or extent_of(transition.to, transition.event, flags) is MORE:
        return False
    return batches.has_only_steps(effects)


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
