"""Worker processes of a test: started, killed, frozen, and known by name, so that every lost lease can be explained."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.fault.journal import Journal
from tests.fault.zygote import Zygote
from tests.waiting import until


class Hand:
    """One process."""

    def __init__(self, name: str, pid: int, zygote: Zygote, log: Path, signed: str | None) -> None:
        self.name = name
        self._signed = signed
        self.pid = pid
        self.log = log
        self.killed_at: float | None = None
        self._zygote = zygote

    def kill(self) -> None:
        self.killed_at = time.time()
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def freeze(self) -> None:
        self.send(signal.SIGSTOP)
        process = psutil.Process(self.pid)
        await until(lambda: process.status() == psutil.STATUS_STOPPED)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    @property
    def code(self) -> int | None:
        """How it ended, as subprocess says it; None: it has not."""
        return self._zygote.ended(self.pid)

    async def gone(self, seconds: float = 60) -> int:
        """The exit code, once it has one and no request of it is still in progress."""
        await until(lambda: self.code is not None, seconds, self.tail)
        if signed := self._signed:
            await until(lambda: not _served(signed, self.name), seconds, self.tail)
        code = self.code
        assert code is not None
        return code

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return f"{self.name} says:\n" + "\n".join(lines[-15:])


class Crew:
    def __init__(self, url: str, folder: Path, zygote: Zygote, *, pooled: bool = False) -> None:
        """`pooled`: connections outlive their clients."""
        self.url = url
        self._pooled = pooled
        self.journal = Journal(folder / "journal")
        self.hands: list[Hand] = []
        self._folder = folder
        self._zygote = zygote
        self._numbers = itertools.count(1)

    def hire(self, command: str = "work", name: str | None = None, url: str | None = None, **options: Any) -> Hand:
        """Start a process, which PostgreSQL knows by name; options are the program's (`lease="1s"`)."""
        number = next(self._numbers)
        name = name or f"{command}-{number}"
        log = self._folder / f"{number}-{name}.log"
        url = url or self.url
        signed = url.startswith("postgres") and not self._pooled
        if signed:
            url += f"{'&' if '?' in url else '?'}application_name={name}"
        argv = [command, url, "--name", name, "--journal", str(self.journal.path)]
        for option, value in options.items():
            flag = f"--{option.replace('_', '-')}"
            argv += [flag] if value is True else [] if value in (None, False) else [flag, str(value)]
        hand = Hand(name, self._zygote.start(argv, log), self._zygote, log, url if signed else None)
        self.hands.append(hand)
        return hand

    @property
    def alive(self) -> list[Hand]:
        return [hand for hand in self.hands if hand.code is None]

    def lost(self) -> set[str]:
        """Workers that may have lost a lease: killed ones, and ones that log a loss."""
        return {hand.name for hand in self.hands if hand.killed_at or hand.code not in (None, 0) or _admits(hand)}

    async def dismiss(self) -> None:
        """SIGTERM to all live workers; they must exit cleanly (one that has not started may just end)."""
        leaving = self.alive
        for hand in leaving:
            hand.send(signal.SIGTERM)
        for hand in leaving:
            assert await hand.gone() in (0, -signal.SIGTERM), hand.tail()

    def tails(self) -> str:
        return "\n".join(hand.tail() for hand in self.alive)

    def kill_all(self) -> None:
        for hand in self.alive:
            hand.kill()


def _served(url: str, name: str) -> bool:
    """Whether PostgreSQL still works for this process: a COMMIT goes on after its client has died."""
    try:
        with psycopg.connect(url.replace(f"application_name={name}", "application_name=test")) as connection:
            found = connection.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = %s LIMIT 1", [name])
            return found.fetchone() is not None
    except psycopg.OperationalError:
        return False  # it is away itself


def _admits(hand: Hand) -> bool:
    log = hand.log.read_text(errors="replace")
    return "lease is lost" in log or "no longer ours" in log or "lease that is lost" in log
