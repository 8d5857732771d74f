"""Reading what jobs have emitted."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import from_json

from treadle.model.job import is_job_id
from treadle.model.status import Status
from treadle.policy.output import ChannelState
from treadle.store.sql.overview import Ask
from treadle.store.sql.rows import storable
from treadle.store.views import OutputPage, OutputPiece, OutputState


async def page(ask: Ask, id: str, channel: str, after: int, max_bytes: int) -> OutputPage | None:
    """The job first: if it has ended by then, the values read afterwards are all that it has emitted."""
    if not is_job_id(id) or not storable(channel):
        return None
    found = await ask("output_job", [{"id": id, "channel": channel}])
    if not found:
        return None
    n, status, last = found[0]
    wanted = {"n": n, "channel": channel, "after": after, "most": max_bytes}
    rows = await ask("output_page", [wanted]) if (last or 0) > after else []
    pieces = [_piece(after, *row) for row in rows]
    return OutputPage(pieces, last or 0, None if status is None else Status(status))


def _piece(after: int, last: int, count: int, attempt: int, resets: bool, items: str) -> OutputPiece:
    """A row, without the values up to `after`."""
    first = last - count + 1
    values = from_json(items)
    if first > after:
        return OutputPiece(first, attempt, bool(resets), values)
    return OutputPiece(after + 1, attempt, False, values[after + 1 - first :])


async def states(ask: Ask, ids: Sequence[str]) -> dict[str, OutputState]:
    known = [{"id": id} for id in dict.fromkeys(ids) if is_job_id(id)]
    found: dict[str, tuple[Status | None, dict[str, ChannelState]]] = {}
    for id, status, channel, last, size, attempt in await ask("output_states", known) if known else []:
        _, channels = found.setdefault(id, (None if status is None else Status(status), {}))
        if channel is not None:
            channels[channel] = ChannelState(last, size, attempt)
    return {id: OutputState(status, channels) for id, (status, channels) in found.items()}
