"""Build the distributions and try them as a user gets them: `python scripts/check_package.py [FOLDER]`.

It checks what is in the wheel and the source distribution and that a registry would take them (twine), installs the
wheel into an empty environment, and runs `treadle --version` and `treadle demo` there until the dashboard answers. What
was built stays in FOLDER (dist).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterable
from pathlib import Path

from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
TOOLS = ROOT / ".cache" / "package"
LOCK = ROOT / "requirements" / "dev.txt"
SECONDS = 300
DEMO_SECONDS = 60
# Everything of the package that is no Python, by where it is.
DATA = ("dashboard/templates", "dashboard/static", "store/sql")
LEFT_OUT = ("treadle/testing/contract/", "treadle/testing/workbench.py")
NEVER = re.compile(r"\.py[co]$|__pycache__|\.db(-|$)|\.venv|\.cache|node_modules|\.env$|\.key$")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("treadle-*"):
        old.unlink()
    wheel, archive = build(folder)
    check_wheel(wheel)
    check_archive(archive)
    check_with_twine(wheel, archive)
    with tempfile.TemporaryDirectory(prefix="treadle-package-") as empty:
        check_installed(wheel, Path(empty))
    print(f"{wheel.name} and {archive.name} are fit to be published")


def build(folder: Path) -> tuple[Path, Path]:
    [archive] = SdistBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(wheel), Path(archive)


def check_wheel(path: Path) -> None:
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        [metadata] = [wheel.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    wanted = {str(file.relative_to(SOURCES)) for file in _package_files()}
    wanted = {name for name in wanted if not name.startswith(LEFT_OUT)}
    found = {name for name in names if ".dist-info/" not in name}
    _same("the wheel", found, wanted)
    assert "treadle/py.typed" in found, "the wheel has no py.typed"
    for place in DATA:
        assert any(name.startswith(f"treadle/{place}/") and not name.endswith(".py") for name in found), place
    assert any(name.endswith("licenses/LICENSE") for name in names), "the wheel has no licence"
    assert f"Version: {_version()}\n" in metadata
    needed = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.M)
    assert not {"pytest", "hypothesis", "django", "mypy"} & set(needed), f"the wheel needs {needed}"
    _nothing_odd(names)


def check_archive(path: Path) -> None:
    with tarfile.open(path) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    tracked = {"Makefile", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "requirements/dev.txt"}
    tracked |= {str(file.relative_to(ROOT)) for file in _package_files()}
    tracked |= {str(file.relative_to(ROOT)) for file in (ROOT / "examples").rglob("*.py")}
    assert not (missing := tracked - names), f"the source distribution lacks {sorted(missing)}"
    _nothing_odd(names)


def check_with_twine(*paths: Path) -> None:
    """In an environment of its own: twine brings a dozen packages that nothing else here needs."""
    if not (TOOLS / "bin" / "twine").exists():
        _run(sys.executable, "-m", "venv", TOOLS)
        _run(TOOLS / "bin" / "pip", "install", "--quiet", "twine")
    _run(TOOLS / "bin" / "twine", "check", "--strict", *paths)


def check_installed(wheel: Path, folder: Path) -> None:
    _run(sys.executable, "-m", "venv", folder / "venv")
    bin = folder / "venv" / "bin"
    _run(bin / "pip", "install", "--quiet", "--constraint", LOCK, wheel)
    _run(bin / "pip", "check")
    said = _run(bin / "treadle", "--version", folder=folder)
    assert _version() in said, said
    _run(bin / "python", "-W", "error", "-c", "import treadle; [getattr(treadle, name) for name in treadle.__all__]")
    _try_the_demo(bin / "treadle", folder)


def _try_the_demo(treadle: Path, folder: Path) -> None:
    """Until the dashboard's first page answers; then it has to stop when asked."""
    log = folder / "demo.log"
    with log.open("w") as lines:
        demo = subprocess.Popen(
            [treadle, "demo", "--port", "0"], cwd=folder, env=_environment(), stdout=lines, stderr=subprocess.STDOUT
        )
    try:
        page = _fetched(demo, log)
        assert "Treadle" in page, page[:500]
        demo.send_signal(signal.SIGINT)
        assert demo.wait(DEMO_SECONDS) in (0, 130), log.read_text()
    finally:
        demo.kill()
        demo.wait()


def _fetched(demo: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + DEMO_SECONDS
    while time.monotonic() < until and demo.poll() is None:
        if found := re.search(r"http://[\w.:]+", log.read_text()):
            try:
                with urllib.request.urlopen(f"{found[0]}/_/", timeout=10) as answer:
                    return str(answer.read().decode())
            except OSError:
                pass
        time.sleep(0.1)  # until it serves
    raise AssertionError(f"the demo shows no dashboard:\n{log.read_text()}")


def _package_files() -> Iterable[Path]:
    files = (file for file in (SOURCES / "treadle").rglob("*") if file.is_file())
    return [file for file in files if not NEVER.search(str(file))]


def _same(what: str, found: set[str], wanted: set[str]) -> None:
    assert not (missing := wanted - found), f"{what} lacks {sorted(missing)}"
    assert not (more := found - wanted), f"{what} has {sorted(more)} too"


def _nothing_odd(names: Iterable[str]) -> None:
    assert not (odd := sorted(name for name in names if NEVER.search(name))), f"these must not be published: {odd}"


def _version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def _environment() -> dict[str, str]:
    """Nothing of the checkout, and no settings of whoever runs this."""
    kept = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR"}
    pip = {name: value for name, value in os.environ.items() if name in kept or name.startswith(("PIP_", "SSL_"))}
    return {name: value for name, value in pip.items() if name != "PIP_REQUIRE_VIRTUALENV"}


def _run(*command: str | Path, folder: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, encoding="utf-8", timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
