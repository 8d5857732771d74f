"""What handlers emit: written by the job's owner, in order and once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.policy.output import EMPTY, ChannelState, Chunk, number_all
from treadle.store.sql.scripts.common import Rows, Script, numbers
from treadle.store.values import OutputWrite, Touch


def write_output(lease: int, writes: Sequence[OutputWrite]) -> Script[list[tuple[int, int]]]:
    """Under one lease, each job once; the lost ones. Nothing is written for a job that its owner has lost."""
    rows = [Touch(one.n, one.token, one.ran_ms, None, None)._asdict() | {"lease": lease} for one in writes]
    touched = yield "touch_running", rows
    mine = {(row[0], row[1]) for row in touched}
    if touched:
        now = max(row[3] for row in touched)
        yield from keep_output({one.n: one.chunks for one in writes if (one.n, one.token) in mine}, now)
    return [(one.n, one.token) for one in writes if (one.n, one.token) not in mine]


def keep_output(chunks: Mapping[int, Sequence[Chunk]], now: int) -> Script[None]:
    """By job, with the jobs locked. A chunk that was written before, by a write without an answer, is not repeated."""
    if not chunks:
        return
    states = _channel_states((yield "channels_of", numbers(chunks)))
    rows = [_row(n, one) for n, some in sorted(chunks.items()) for one in number_all(some, states.get(n, {}))]
    written = yield "add_output", rows
    news: dict[tuple[int, str], ChannelState] = {}
    for n, channel, last, size, attempt in sorted(written):
        news[n, channel] = ChannelState(last, news.get((n, channel), EMPTY).bytes + size, attempt)
    if news:
        yield "put_channels", [_channel_row(n, channel, state, now) for (n, channel), state in sorted(news.items())]


def _channel_states(rows: Rows) -> dict[int, dict[str, ChannelState]]:
    found: dict[int, dict[str, ChannelState]] = defaultdict(dict)
    for n, channel, last, size, attempt in rows:
        found[n][channel] = ChannelState(last, size, attempt)
    return found


def _row(n: int, chunk: Chunk) -> dict[str, Any]:
    return {
        "n": n,
        "channel": chunk.channel,
        "last": chunk.last,
        "count": chunk.amount,
        "attempt": chunk.attempt,
        "resets": chunk.resets,
        "size": chunk.size,
        "items": chunk.values,
    }


def _channel_row(n: int, channel: str, state: ChannelState, now: int) -> dict[str, Any]:
    row = {"n": n, "channel": channel, "last": state.last, "size": state.bytes, "attempt": state.attempt}
    return row | {"created_at": now}


def prune_output(age_ms: int, limit: int) -> Script[int]:
    """Returns the number of channels; those of a job that was requeued since are left alone."""
    old = [row[0] for row in (yield "old_channels", [{"age": age_ms, "top": limit}])]
    for query in ("drop_output", "drop_channels") if old else ():
        yield query, numbers(set(old))
    return len(old)
