"""`--processes N`: started together, started again, ended together."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.waiting import until
from treadle import Queue
from treadle.worker import supervisor
from treadle.worker.supervisor import Member

SUPERVISE = (
    "import sys; from treadle.worker.supervisor import supervise; sys.exit(supervise(sys.argv[2:], int(sys.argv[1])))"
)


DEAF = """
import signal, sys, time

def hear(number, frame):
    with open(sys.argv[1], "a") as heard:
        print(int(number), file=heard)

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, hear)
open(sys.argv[1], "a").close()
time.sleep(60)  # until it is killed
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What the supervisor and its workers tell."""
    return tmp_path / "log"


@pytest.fixture
def supervise(log: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def supervise(processes: int, *command: str) -> subprocess.Popen[bytes]:
        with log.open("w") as output:
            boss = [sys.executable, "-c", SUPERVISE, str(processes), *command]
            running.append(subprocess.Popen(boss, stderr=output))
        return running[-1]

    yield supervise
    for process in running:
        for child in psutil.Process(process.pid).children() if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait()


def children(process: subprocess.Popen[bytes]) -> set[int]:
    return {child.pid for child in psutil.Process(process.pid).children() if child.status() != psutil.STATUS_ZOMBIE}


def a_worker(url: str, **options: Any) -> list[str]:
    return [sys.executable, "-m", "tests.worker.program", url, json.dumps(options)]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_the_processes_share_the_work_and_end_together(
    queue: Queue, url: str, supervise: Callable[..., subprocess.Popen[bytes]]
) -> None:
    boss = supervise(2, *a_worker(url, slots=1))
    await until(lambda: len(children(boss)) == 2)
    seen: set[int] = set()

    async def both() -> bool:
        jobs = await queue.enqueue_many("echo", [{}] * 20)
        seen.update([(await job.result("60s"))["pid"] for job in jobs])
        return len(seen) == 2

    await until(both, 30)
    assert seen == children(boss)
    boss.send_signal(signal.SIGTERM)
    await until(lambda: boss.poll() is not None)
    assert boss.returncode == 0
    assert all(gone(pid) for pid in seen)


async def test_a_process_that_dies_is_started_again(
    queue: Queue, url: str, supervise: Callable[..., subprocess.Popen[bytes]]
) -> None:
    boss = supervise(1, *a_worker(url))
    (first,) = await until(lambda: children(boss))
    os.kill(first, signal.SIGKILL)
    (second,) = await until(lambda: children(boss) - {first})
    assert (await (await queue.enqueue("echo", {})).result("60s"))["pid"] == second


async def test_the_first_signal_drains_and_the_second_gives_the_jobs_back(
    queue: Queue, url: str, supervise: Callable[..., subprocess.Popen[bytes]], files: dict[str, str], log: Path
) -> None:
    boss = supervise(1, *a_worker(url, drain="60s"))
    job = await queue.enqueue("wait", files)
    await until(lambda: Path(files["started"]).exists())
    (child,) = children(boss)
    boss.send_signal(signal.SIGINT)
    await until(lambda: "draining 1 job" in log.read_text())
    left = await queue.enqueue("echo", {})
    assert not gone(child)
    boss.send_signal(signal.SIGTERM)
    await until(lambda: boss.poll() is not None)
    assert gone(child)
    job = await job.refresh()
    assert (job.status, job.attempt) == ("pending", 0)
    assert (await left.refresh()).status == "pending"


async def test_the_third_signal_kills_what_hears_none(
    supervise: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    heard = tmp_path / "heard"

    def has_heard(told: str) -> bool:
        return heard.exists() and heard.read_text().split() == told.split()

    boss = supervise(1, sys.executable, "-c", DEAF, str(heard))
    for told in ("", "15", "15 2"):
        await until(partial(has_heard, told))
        (child,) = children(boss)
        boss.send_signal(signal.SIGTERM)
    await until(lambda: boss.poll() is not None)
    assert boss.returncode == 1
    assert gone(child)


async def test_a_process_that_is_still_starting_when_it_is_stopped_is_no_failure(
    supervise: Callable[..., subprocess.Popen[bytes]],
) -> None:
    boss = supervise(2, sys.executable, "-c", "import time; time.sleep(60)")
    await until(lambda: len(children(boss)) == 2)
    boss.send_signal(signal.SIGTERM)
    await until(lambda: boss.poll() is not None)
    assert boss.returncode == 0


async def test_workers_end_when_their_supervisor_is_killed(
    url: str, queue: Queue, supervise: Callable[..., subprocess.Popen[bytes]]
) -> None:
    boss = supervise(2, *a_worker(url))
    workers = await until(lambda: len(children(boss)) == 2 and children(boss))
    await (await queue.enqueue("echo", {})).result("60s")
    boss.kill()
    await until(lambda: all(gone(pid) for pid in workers))


def test_a_command_that_is_wrong_is_not_tried_again(supervise: Callable[..., subprocess.Popen[bytes]]) -> None:
    boss = supervise(2, sys.executable, "-c", "import sys; sys.exit(2)")
    assert boss.wait(20) == 2


def test_one_that_dies_young_again_and_again_waits_longer_but_not_after_a_long_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(supervisor, "_end_with_parent", None)
    member = Member([sys.executable, "-S", "-c", ""])

    def lives(seconds: float) -> None:
        clock.now += 60
        member.start_when_due()
        assert member._process
        member._process.wait()
        clock.now += seconds
        assert member.ended() == 0
        assert not member.alive

    def starts_after(seconds: float) -> bool:
        clock.now += seconds
        member.start_when_due()
        return member.alive

    for _ in range(3):
        lives(seconds=1)
    assert not starts_after(0.2)
    lives(seconds=31)
    assert starts_after(0.2)
    member.send(signal.SIGKILL)
    assert member._process
    member._process.wait()
