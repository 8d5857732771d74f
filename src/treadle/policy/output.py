"""Numbers for the values that jobs emit: in each channel they count up from 1, over all attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class ChannelState(NamedTuple):
    """What is stored of a channel."""

    last: int = 0
    """The number of its last value."""
    bytes: int = 0
    """Of its values as JSON."""
    attempt: int = 0
    """The attempt that wrote it last; 0: none since the job was made or requeued."""


EMPTY = ChannelState()


class Chunk(NamedTuple):
    """Values that are written together, as their job's owner reports them."""

    channel: str
    values: str
    """A JSON array."""
    amount: int
    attempt: int
    last: int | None = None
    """The number of its last value. None: the store numbers it when it is written."""
    resets: bool = False
    """What other attempts wrote to the channel before is out of date."""

    @property
    def size(self) -> int:
        """In bytes, as the channel's limit counts them."""
        return len(self.values) if self.values.isascii() else len(self.values.encode())


def numbered(chunk: Chunk, before: ChannelState) -> Chunk:
    """The chunk as it follows what is stored. One that has its numbers keeps them, so it can be written twice."""
    if chunk.last is not None:
        return chunk
    return chunk._replace(last=before.last + chunk.amount, resets=before.last > 0 and before.attempt != chunk.attempt)


def state_after(chunk: Chunk, before: ChannelState) -> ChannelState:
    return ChannelState(chunk.last or 0, before.bytes + chunk.size, chunk.attempt)


def number_all(chunks: Iterable[Chunk], states: Mapping[str, ChannelState]) -> list[Chunk]:
    """The chunks of one job, in the order in which it wrote them, as they follow what is stored."""
    after = dict(states)
    done = []
    for chunk in chunks:
        before = after.get(chunk.channel, EMPTY)
        new = numbered(chunk, before)
        after[chunk.channel] = state_after(new, before)
        done.append(new)
    return done
