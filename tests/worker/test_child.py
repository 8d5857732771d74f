"""The child's side of a process handler, in this process: what it does when its worker no longer listens."""

import logging
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from treadle import JobCancelled, LeaseLost
from treadle.store.values import Claimed
from treadle.worker.child import wire
from treadle.worker.child.main import ChildCall, ChildServices, WorkerLine, _forward_logs

JOB = Claimed(1, "01890000-0000-7000-8000-000000000000", "mail", "{}", 1, 3, 0, None, None, None, token=1, lease=1)


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, WorkerLine]]:
    """The worker's end of the line, and the child's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, WorkerLine(theirs)


def silent(worker: socket.socket) -> bool:
    worker.setblocking(False)
    try:
        return not worker.recv(1)
    except BlockingIOError:
        return True


def test_an_idle_child_leaves_when_its_worker_is_gone(line: tuple[socket.socket, WorkerLine]) -> None:
    _, link = line
    link.listen(parent=os.getpid())  # a process that is not the parent of this one
    assert link.work.get() is None


def test_a_busy_child_ends_with_all_that_it_started_when_the_line_ends(
    line: tuple[socket.socket, WorkerLine], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *arguments: killed.append(arguments))
    worker, link = line
    link.call = ChildCall(JOB, link)
    worker.close()
    link.listen(os.getppid())
    assert killed == [(0, signal.SIGKILL)], "its own process group"


def test_an_interrupt_that_comes_after_the_job_is_over_does_not_hit_the_next_one(
    line: tuple[socket.socket, WorkerLine],
) -> None:
    _, link = line
    late = {"is": "interrupt", "cause": "cancel", "reason": "enough"}
    for message in (late, {"is": "from a newer worker"}, {"is": "run", "job": list(JOB)}):
        assert link._hear(message)
    attempt, _ = link.work.get() or pytest.fail("there is no work")
    attempt.check()
    assert link._hear(late)
    with pytest.raises(JobCancelled, match="enough"):
        attempt.check()


def test_what_a_handlers_thread_says_after_the_job_is_over_is_not_taken_for_the_next_ones(
    line: tuple[socket.socket, WorkerLine],
) -> None:
    worker, link = line
    old, link.call = ChildCall(JOB, link), ChildCall(JOB, link)
    assert old.over
    old.report(50, "still here")
    with pytest.raises(LeaseLost, match="is over"):
        ChildServices(old).heartbeat(old)
    assert silent(worker)


def test_a_log_line_belongs_to_a_job_or_to_none(line: tuple[socket.socket, WorkerLine]) -> None:
    worker, link = line
    logger = logging.getLogger("treadle.jobs")
    before = logger.level, logger.propagate, logger.handlers[:]
    try:
        _forward_logs(link, logging.INFO)
        logger.info("between two jobs")
        assert silent(worker)
        link.call = ChildCall(JOB, link)
        logger.info("in a job")
    finally:
        logger.level, logger.propagate, logger.handlers = before
    worker.setblocking(True)
    assert wire.receive(worker) == {"is": "log", "level": logging.INFO, "message": "in a job"}
