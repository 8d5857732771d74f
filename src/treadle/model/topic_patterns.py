"""Patterns for groups of topics: `shop.*` is every topic that begins with `shop.`, `*` is every one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from treadle.model.errors import InvalidInput
from treadle.model.job import checked_topic

_PATTERN = re.compile(r"[A-Za-z0-9_.:*]{1,255}")


def is_pattern(text: str) -> bool:
    return "*" in text


def checked_pattern(text: str) -> str:
    """A topic or a pattern of topics."""
    if not isinstance(text, str) or not is_pattern(text):
        return checked_topic(text)
    if not _PATTERN.fullmatch(text):
        raise InvalidInput(
            f"topic: {text[:60]!r} is not a pattern; use the letters of a topic and * for any others, such as 'shop.*'",
            field="topic",
        )
    return text


def matching(topics: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """The topics that one of these names or patterns means, in their order."""
    return [topic for topic in topics if any(fnmatchcase(topic, one) for one in wanted)]
