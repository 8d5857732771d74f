"""Concurrency by key: how many jobs of a key are ready or running, and who waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from treadle.store.scripts.common import Script, numbers


def enter_gates(candidates: Sequence[tuple[str, int, int]]) -> Script[None]:
    """Let (gate, n, attempt) into the queue as far as their gates have room; the others are held.

    Whoever already waits goes first: newcomers are held, then the gate is opened as far as it goes.
    """
    if not candidates:
        return
    yield "relock_gates", gate_rows(gate for gate, _, _ in candidates)
    yield "place_held", [{"n": n, "attempt": attempt} for _, n, attempt in candidates]
    yield from open_gates(gate for gate, _, _ in candidates)


def leave_gates(gates: Iterable[str]) -> Script[None]:
    """Jobs have left; let as many of those who wait in."""
    freed: dict[str, int] = defaultdict(int)
    for gate in gates:
        freed[gate] += 1
    if freed:
        # The row lock first, the look at `held` in a later statement: a job that is being held right now
        # commits before we look, and one that comes after us finds the room.
        yield "relock_gates", gate_rows(freed)
        yield "change_gates", [{"gate": gate, "change": -count} for gate, count in sorted(freed.items())]
        yield from open_gates(freed)


def open_gates(gates: Iterable[str]) -> Script[None]:
    """Move those who wait at gates (locked by the caller) into the queue as far as there is room."""
    rows = gate_rows(gates)
    while True:
        room = {gate: limit - used for gate, used, limit in (yield "relock_gates", rows)}
        roomy = [{"gate": gate, "room": left} for gate, left in sorted(room.items()) if left > 0]
        first: list[tuple[str, int]] = []
        for gate, n in (yield "next_held", roomy) if roomy else ():
            if room[gate] > 0:
                room[gate] -= 1
                first.append((gate, n))
        if not first:
            return
        taken = dict((yield "take_held", numbers(n for _, n in first)))
        counts = Counter(gate for gate, n in first if n in taken)
        if taken:
            yield "place_ready", [{"n": n, "attempt": attempt} for n, attempt in sorted(taken.items())]
            yield "change_gates", [{"gate": gate, "change": count} for gate, count in sorted(counts.items())]
        if len(taken) == len(first):
            return
        # Somebody cancelled or deleted one of them before we took it (that needs no gate): there is room for another.


def gate_rows(gates: Iterable[str]) -> list[dict[str, str]]:
    return [{"gate": gate} for gate in sorted(set(gates))]
