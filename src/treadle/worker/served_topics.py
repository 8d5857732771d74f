"""Which topics a worker serves: names and patterns, resolved against the handlers of its queue once, so that a claim
costs the same however they were chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treadle.model.errors import InvalidInput
from treadle.model.topic_patterns import checked_pattern, is_pattern, matching


def served_topics(
    handlers: Iterable[str], topics: Sequence[str] | None, excepted: Sequence[str]
) -> tuple[str, ...] | None:
    """The chosen topics without the excepted ones. None if nothing was chosen: all topics, also later ones."""
    known = list(handlers)
    chosen = None if topics is None else _chosen(known, topics, "topics")
    if not excepted:
        return chosen
    left_out = set(_chosen(known, excepted, "except_topics"))
    kept = tuple(topic for topic in (known if chosen is None else chosen) if topic not in left_out)
    if not kept:
        raise InvalidInput("except_topics: no topic is left to serve", field="except_topics")
    return kept


def _chosen(known: Sequence[str], wanted: Sequence[str], option: str) -> tuple[str, ...]:
    """In the order in which they were named, those of a pattern sorted. What nobody handles is a mistake."""
    if isinstance(wanted, str):
        raise InvalidInput(f"{option}: a list, please: [{wanted!r}]", field=option)
    found: dict[str, None] = {}
    for one in wanted:
        if not is_pattern(one):
            found[one] = None
        elif topics := matching(sorted(known), [checked_pattern(one)]):
            found.update(dict.fromkeys(topics))
        else:
            raise InvalidInput(f"{option}: no handler is registered for a topic like {one}", field=option)
    if unknown := sorted(found.keys() - set(known)):
        raise InvalidInput(f"{option}: no handler is registered for {', '.join(unknown)}", field=option)
    return tuple(found)
