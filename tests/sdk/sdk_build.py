"""Installs the development tools of the SDK as its lock says, and compiles it with its tests."""

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.servers import ServerMissing

ROOT = Path(__file__).parents[2]
SDK = ROOT / "sdk" / "js"
CACHE = ROOT / ".cache"
INSTALL_SECONDS = 300
BUILD_SECONDS = 120


def program(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise ServerMissing(f"{name}: install Node.js 20 or newer")
    return Path(found)


def built() -> Path:
    """The folder of the package, compiled; once for each state of its sources, whatever processes ask."""
    npm = program("npm")
    with _one_at_a_time():
        _once("installed", (SDK / "package-lock.json", SDK / "package.json"), lambda: _install(npm))
        sources = sorted((*SDK.glob("src/*"), *SDK.glob("test/*"), *SDK.glob("tsconfig*.json"), SDK / "package.json"))
        _once("compiled", sources, lambda: _compile(npm))
    return SDK


def _install(npm: Path) -> None:
    try:
        done = _run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", seconds=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise ServerMissing("the npm packages of sdk/js: no answer from the registry") from None
    if done.returncode:
        raise ServerMissing(f"the npm packages of sdk/js: {done.stderr.strip().partition(chr(10))[0]}")


def _compile(npm: Path) -> None:
    for script in ("build", "build:test"):
        done = _run(npm, "run", "--silent", script, seconds=BUILD_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr


def _run(npm: Path, *words: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(npm), *words], cwd=SDK, capture_output=True, encoding="utf-8", timeout=seconds, check=False
    )


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "sdk.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _once(what: str, inputs: Iterable[Path], work: Callable[[], None]) -> None:
    digest = hashlib.sha256()
    for path in inputs:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    mark = SDK / "node_modules" / f".treadle-{what}"
    if mark.exists() and mark.read_text() == digest.hexdigest():
        return
    work()
    mark.write_text(digest.hexdigest())
