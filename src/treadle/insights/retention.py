"""What retention would do by given rules, before anybody saves them."""

from __future__ import annotations

from typing import NamedTuple

from treadle.insights.lists import COUNT_CAP
from treadle.policy.retention import Rules, classes
from treadle.store.protocol import Store


class RetentionEffect(NamedTuple):
    """Each counted up to one more than the cap of counts."""

    stale: int
    """Jobs that would be stale and kept."""
    deleted: int


async def effect_of(store: Store, rules: Rules) -> RetentionEffect:
    most, stale, deleted = COUNT_CAP + 1, 0, 0
    for one in classes(rules):
        stale += await store.count_old(one, one.stale_after_ms, most)
        deleted += await store.count_old(one, one.kept_ms, most)
    if stale >= most:
        return RetentionEffect(most, min(deleted, most))
    return RetentionEffect(stale - deleted, deleted)
