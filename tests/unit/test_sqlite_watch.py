"""The bell that rings when a file is written to."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.store.sqlite.watcher import FileWatcher

LONG = 20.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"")
    return path


@pytest.fixture
def bell(file: Path) -> Iterator[FileWatcher]:
    made = FileWatcher([str(file)])
    yield made
    made.close()


def test_it_rings_when_the_file_is_written_to(bell: FileWatcher, file: Path) -> None:
    assert bell.works
    with file.open("ab", buffering=0) as writing:
        threading.Timer(0.05, lambda: writing.write(b"x")).start()
        started = time.monotonic()
        assert bell.wait(LONG)
        assert time.monotonic() - started < LONG / 2
        assert not bell.wait(0.01)


def test_it_is_silent_when_nothing_happens(bell: FileWatcher) -> None:
    assert not bell.wait(0.01)


def test_a_waiting_caller_is_woken_by_stop(bell: FileWatcher) -> None:
    threading.Timer(0.05, bell.stop).start()
    started = time.monotonic()
    assert not bell.wait(LONG)
    assert not bell.wait(LONG), "from now on"
    assert time.monotonic() - started < LONG / 2


@pytest.mark.parametrize("trouble", ["another system", "no such call", "none left", "no such file"])
def test_without_inotify_it_never_rings(file: Path, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    class Libc:
        inotify_init1 = staticmethod(lambda flags: -1)

    paths = [str(file)]
    match trouble:
        case "another system":
            monkeypatch.setattr("treadle.store.sqlite.watcher.sys.platform", "darwin")
        case "no such call":
            monkeypatch.setattr("treadle.store.sqlite.watcher.ctypes.CDLL", lambda *_, **__: object())
        case "none left":
            monkeypatch.setattr("treadle.store.sqlite.watcher.ctypes.CDLL", lambda *_, **__: Libc)
        case "no such file":
            paths.append(str(file.with_name("missing")))
    bell = FileWatcher(paths)
    try:
        assert not bell.works
        file.write_bytes(b"x")
        assert not bell.wait(0.01)
    finally:
        bell.close()
