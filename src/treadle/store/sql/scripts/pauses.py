"""Pauses of groups of topics. The pattern is kept for topics that come later: a trigger pauses them with their first
lane (migration 0014). Those that exist are paused one by one, so that a claim looks at a topic's own row only."""

from __future__ import annotations

from treadle.model.topic_patterns import is_pattern, matching
from treadle.store.sql.scripts.common import Script


def keep_pause(pattern: str, until: int) -> Script[None]:
    """Commit this before `pause_group`: topics that are made meanwhile find the pattern."""
    yield "drop_pauses", [{"pattern": pattern}]
    if until:
        yield "add_pauses", [{"pattern": pattern, "until": until}]


def pause_group(pattern: str, until: int) -> Script[None]:
    names = [row[0] for row in (yield "list_topics", []) if not is_pattern(row[0])]
    if found := matching(names, [pattern]):
        yield "pause_topic", [{"topic": topic, "until": until or None} for topic in found]
