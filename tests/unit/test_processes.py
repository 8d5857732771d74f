"""Which processes are dead for certain: gone, a zombie, or followed by another one with their pid."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import until_blocking
from treadle.maintenance import processes
from treadle.maintenance.processes import is_dead, this_process
from treadle.store.views import ProcessId

pytestmark = pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="needs Linux's /proc")

SAYS_WHO_IT_IS = "from treadle.maintenance.processes import this_process; print(*this_process(), sep='|', flush=True)"
WAITS = "; input()"
LEADER_ENDS = """
import ctypes, threading
threading.Thread(target=input).start()
ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with _program(SAYS_WHO_IT_IS + WAITS) as process:
        yield process
        process.kill()


def _program(code: str, *before: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*before, sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)


def _who_it_is(process: subprocess.Popen[str]) -> ProcessId:
    assert process.stdout
    home, pid, started = process.stdout.readline().strip().split("|")
    return ProcessId(home, int(pid), int(started))


def test_a_live_process_is_not_dead(process: subprocess.Popen[str]) -> None:
    told = _who_it_is(process)
    here = this_process()
    assert here is not None
    assert (told.home, told.pid) == (here.home, process.pid)
    assert not is_dead(told)
    assert not is_dead(here)


def test_a_killed_process_is_dead_as_a_zombie_and_when_it_is_gone(process: subprocess.Popen[str]) -> None:
    told = _who_it_is(process)
    process.kill()
    until_blocking(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert is_dead(told)
    process.wait()
    assert is_dead(told)


def test_a_stopped_process_is_not_dead(process: subprocess.Popen[str]) -> None:
    told = _who_it_is(process)
    process.send_signal(signal.SIGSTOP)
    until_blocking(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    assert not is_dead(told)


def test_another_process_with_its_pid_does_not_keep_it_alive() -> None:
    here = this_process()
    assert here is not None
    assert is_dead(here._replace(started=here.started - 1))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a system call")
def test_a_process_that_lost_only_its_main_thread_is_not_dead() -> None:
    with _program(SAYS_WHO_IT_IS + LEADER_ENDS) as process:
        told = _who_it_is(process)
        until_blocking(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert not is_dead(told)
        process.kill()


def test_a_process_that_may_not_be_seen_is_not_dead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """/proc hides the processes of other users, and sending them a signal is refused."""

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    here = this_process()
    assert here is not None
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    monkeypatch.setattr(os, "kill", refuse)
    assert not is_dead(here)


@pytest.mark.parametrize("pid", [0, -1])
def test_a_number_that_means_a_group_is_no_process(pid: int) -> None:
    here = this_process()
    assert here is not None
    assert not is_dead(here._replace(pid=pid))


def test_a_system_without_proc_proves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert this_process() is None


def test_a_kernel_without_time_namespaces_still_names_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = str(os.getpid())
    (tmp_path / pid).mkdir()
    (tmp_path / pid / "stat").write_text(Path(f"/proc/{pid}/stat").read_text())
    (tmp_path / pid / "ns").mkdir()
    (tmp_path / pid / "ns/pid").symlink_to("pid:[1]")
    (tmp_path / "self").symlink_to(pid)
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("boot\n")
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    here = this_process()
    assert here is not None
    assert here.home.startswith("boot pid:[1] - ")


def test_a_name_with_parentheses_and_spaces_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    here = this_process()
    own = Path(f"/proc/{os.getpid()}/comm")
    before = own.read_text().strip()
    named = threading.main_thread() is threading.current_thread()
    try:
        own.write_text(") Z (")
        assert named
        assert this_process() == here
    finally:
        own.write_text(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a pid namespace")
def test_processes_of_two_pid_namespaces_have_two_homes() -> None:
    with _program(SAYS_WHO_IT_IS + WAITS, "unshare", "--pid", "--fork", "--mount-proc") as process:
        told = _who_it_is(process)
        here = this_process()
        assert here is not None
        assert told.home != here.home
        process.communicate("\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a pid namespace")
def test_the_proc_of_another_namespace_proves_nothing() -> None:
    code = "from treadle.maintenance.processes import this_process; print(this_process())"
    with _program(code, "unshare", "--pid", "--fork") as process:
        assert process.communicate()[0].strip() == "None"
