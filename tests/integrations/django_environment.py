"""A Python with Django 6, which needs 3.12: this one, or a virtual environment made of another."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers import ServerMissing

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "django"
PACKAGES = ["django>=6", "asyncpg", "psycopg[binary]", "pytest"]
MINUTES = 600


def find_django_python() -> Path:
    """The interpreter; else `ServerMissing`, which a test turns into a failure in CI and a loud skip elsewhere."""
    if sys.version_info >= (3, 12) and int(importlib.metadata.version("django").split(".")[0]) >= 6:
        return Path(sys.executable)
    FOLDER.parent.mkdir(exist_ok=True)
    with FOLDER.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may want it at the same time
        python, lockfile = FOLDER / "bin/python", ROOT / "requirements/dev.txt"
        ready = FOLDER / "ready"
        if not ready.exists() or ready.stat().st_mtime < lockfile.stat().st_mtime:
            _run([_newer_python(), "-m", "venv", str(FOLDER)])
            pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(lockfile)]
            _run([*pip, *PACKAGES])
            _run([*pip, "--editable", str(ROOT)])
            ready.touch()
        return python


def _newer_python() -> str:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    names = [f"python3.{minor}" for minor in (12, 13, 14)]
    found = [path for name in names if (path := shutil.which(name))] + [str(one) for one in pyenv.glob("*/bin/python")]
    for path in found:
        version = "import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 15))"
        if subprocess.run([path, "-c", version], capture_output=True, check=False).returncode == 0:
            return path
    raise ServerMissing("Python 3.12 or newer, which Django 6 needs: install one as python3.12")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=MINUTES, check=False)
    if done.returncode:
        raise ServerMissing(f"Django 6: {' '.join(command)} failed: {done.stderr[-500:]}")
