"""The branches of a handler: which of them can go on, and when none can, so that its job is set aside.

A handler that gathers waits and steps has many branches. A wait costs nothing while it lasts: what ends it (another
branch that was the last to go on, a timer, the end of the handler) wakes it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from treadle.policy.flow import Pause, StepChange, left_of
from treadle.queue.handlers.steps import TURNS
from treadle.store.values import StepKey


class Blocked(NamedTuple):
    """A branch that can't go on."""

    pause: Pause
    outer: frozenset[StepKey]
    """The steps around it: they can't go on either."""
    wait: StepChange | None
    """Written if the attempt ends because of it."""
    since: float
    """By the monotonic clock."""
    call: object = None
    """The call whose handler it is a branch of."""

    def passed_ms(self) -> int:
        return int((time.monotonic() - self.since) * 1000)

    def rest(self) -> Pause:
        """What is left of the pause. The next try of a step counts from the end of the attempt."""
        pause = self.pause
        return pause if pause.kind == "retry" else pause._replace(delay_ms=left_of(pause.delay_ms, self.passed_ms()))

    def rest_of_wait(self) -> StepChange | None:
        wait = self.wait
        return wait and wait._replace(wait_ms=left_of(wait.wait_ms, self.passed_ms()))


class _Sleeper(NamedTuple):
    blocked: Blocked
    woken: asyncio.Future[bool]
    timer: asyncio.TimerHandle | None


class Branches:
    """Used on the worker's loop only."""

    def __init__(self, on_stuck: Callable[[], None]) -> None:
        self._on_stuck = on_stuck
        """Called when no branch can go on: the attempt is over."""
        self._active: dict[StepKey, object] = {}
        """Steps that have not ended, each with the call whose handler made it."""
        self._held: Counter[StepKey] = Counter()
        """In how many of their branches steps are blocked."""
        self._free = 0
        """Active steps that can go on."""
        self._blocked: dict[StepKey, _Sleeper] = {}
        self._moving = 0
        """Branches that have heard how a step or a wait ended, or are about to."""
        self._moves = 0
        """How often a branch could go on."""
        self._when_idle: dict[object, Callable[[], Awaitable[None]]] = {}
        """By call, if it runs in another process."""
        self.start_more: Callable[[], bool] = lambda: False
        """Begins other steps of the job, if there are any, before the attempt is given up as stuck."""
        self._looking: asyncio.Task[None] | None = None
        self._stuck = False
        self._all_left: dict[object, asyncio.Future[None]] = {}
        """By call, if it waits for its steps to end."""

    # -- steps -------------------------------------------------------------------------------------

    def enter(self, step: StepKey, call: object = None) -> None:
        self._active[step] = call
        self._free += step not in self._held

    def leave(self, step: StepKey) -> None:
        """The step is over; its branch goes on with what follows."""
        if step in self._active:
            del self._active[step]
            self._free -= step not in self._held
        self._moves += 1
        if self._blocked:
            self._look()
        if self._all_left:
            self._tell_left()

    @contextmanager
    def moving(self) -> Iterator[None]:
        """A branch that goes on as soon as this is done."""
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
            self._moves += 1
            self._look()

    def moves_until(self, done: asyncio.Future[None]) -> None:
        """A branch that goes on after this."""
        self._moving += 1
        done.add_done_callback(self._moved)

    def _moved(self, _: object) -> None:
        self.moved()

    # -- waits -------------------------------------------------------------------------------------

    def blocked(self) -> list[Blocked]:
        return [one.blocked for one in self._blocked.values()]

    def blocked_steps(self) -> list[tuple[StepKey, Blocked]]:
        return [(step, one.blocked) for step, one in self._blocked.items()]

    def outer(self) -> list[StepKey]:
        """Steps in which a wait was reached."""
        return list(self._held)

    async def block(
        self, step: StepKey, blocked: Blocked, when_idle: Callable[[], Awaitable[None]] | None = None
    ) -> bool:
        """Returns when no branch can go on; True if its time came before that, because it sleeps: then it moves,
        until `moved` is called.

        `when_idle` returns when the branches of a handler in another process have gone as far as they can.
        """
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        pause, timer = blocked.pause, None
        if pause.kind == "sleep" and pause.delay_ms is not None:
            timer = loop.call_later(pause.delay_ms / 1000, self._wake, step)
        self._blocked[step] = _Sleeper(blocked, woken, timer)
        for outer in blocked.outer:
            self._held[outer] += 1
            if self._held[outer] == 1 and outer in self._active:
                self._free -= 1
        self._moves += 1
        if when_idle is not None:
            self._when_idle[blocked.call] = when_idle
        if self._stuck:
            self._set_aside()
        else:
            self._look()
        try:
            return await woken
        except BaseException:
            if woken.done() and not woken.cancelled() and woken.result():
                self.moved()
            elif not self._stuck:  # then its wait is written, no matter how its branch ends
                self._unblock(step)
            raise

    def moved(self) -> None:
        """A branch that slept, or waited for its turn, has gone on."""
        self._moving -= 1
        self._moves += 1
        self._look()

    def _wake(self, step: StepKey) -> None:
        sleeper = self._unblock(step)
        if sleeper is not None and not sleeper.woken.done():
            self._moving += 1
            sleeper.woken.set_result(True)

    def _unblock(self, step: StepKey) -> _Sleeper | None:
        sleeper = self._blocked.pop(step, None)
        if sleeper is None:
            return None
        if sleeper.timer is not None:
            sleeper.timer.cancel()
        for outer in sleeper.blocked.outer:
            self._held[outer] -= 1
            if not self._held[outer]:
                del self._held[outer]
                self._free += outer in self._active
        self._tell_left()
        return sleeper

    # -- when none can go on -----------------------------------------------------------------------

    @property
    def _can_go_on(self) -> bool:
        return self._moving > 0 or self._free > 0

    def _look(self) -> None:
        if self._looking is None and self._blocked and not self._can_go_on and not self._stuck:
            self._looking = asyncio.create_task(self._until_sure())

    async def _until_sure(self) -> None:
        """A branch that has just heard how its step or wait ended has time to do something."""
        try:
            while self._blocked and not self._can_go_on:
                seen = self._moves
                for until_idle in list(self._when_idle.values()):
                    await until_idle()
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                    if self._moves != seen:
                        break
                else:
                    if not self._can_go_on and self._blocked and not self.start_more():
                        self._set_aside()
                        return
        finally:
            self._looking = None

    def _set_aside(self) -> None:
        self._stuck = True
        self._on_stuck()
        for sleeper in self._blocked.values():
            if sleeper.timer is not None:
                sleeper.timer.cancel()
            if not sleeper.woken.done():
                sleeper.woken.set_result(False)

    # -- when the handler has ended ----------------------------------------------------------------

    def close(self, call: object) -> None:
        """The handler of this call is over: what still waits in it is told so."""
        self._when_idle.pop(call, None)
        mine = [one for one in self._blocked.values() if one.blocked.call is call]
        if self._looking is not None and len(mine) == len(self._blocked):
            self._looking.cancel()
        for sleeper in mine:
            if sleeper.timer is not None:
                sleeper.timer.cancel()
            if not sleeper.woken.done():
                sleeper.woken.cancel()

    def forget(self, call: object) -> None:
        """What was active in this call ran in a process that is done with it."""
        for step in self._steps_of(call):
            del self._active[step]
            self._free -= step not in self._held

    async def all_left(self, call: object) -> None:
        """Returns when no step of this call is active any more."""
        while self._steps_of(call):
            left = self._all_left[call] = asyncio.get_running_loop().create_future()
            await left
        self._all_left.pop(call, None)

    def _steps_of(self, call: object) -> list[StepKey]:
        return [step for step, made_by in self._active.items() if made_by is call]

    def _tell_left(self) -> None:
        for call, left in self._all_left.items():
            if not left.done() and call not in self._active.values():
                left.set_result(None)
