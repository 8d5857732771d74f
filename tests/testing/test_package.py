"""What is published: `make package` passes, refuses what must not be published, and runs before a release."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import check_package
from tests.examples.blocks import ROOT

WORKFLOW = (ROOT / ".github/workflows/release.yml").read_text()


def test_the_package_is_built_checked_installed_and_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/check_package.py", tmp_path],
        capture_output=True,
        encoding="utf-8",
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "fit to be published" in done.stdout


def test_a_wheel_with_something_odd_is_refused(tmp_path: Path) -> None:
    wheel, _ = check_package.build(tmp_path)
    check_package.check_wheel(wheel)
    for name in ("treadle/jobs.db", "treadle/left_over.py"):
        changed = tmp_path / f"{Path(name).stem}.whl"
        changed.write_bytes(wheel.read_bytes())
        with zipfile.ZipFile(changed, "a") as archive:
            archive.writestr(name, "")
        with pytest.raises(AssertionError, match=Path(name).name):
            check_package.check_wheel(changed)


def test_a_wheel_that_lacks_something_is_refused(tmp_path: Path) -> None:
    wheel, _ = check_package.build(tmp_path)
    lacking = tmp_path / "lacking.whl"
    with zipfile.ZipFile(wheel) as full, zipfile.ZipFile(lacking, "w") as less:
        for name in full.namelist():
            if name != "treadle/store/sql/common.sql":
                less.writestr(name, full.read(name))
    with pytest.raises(AssertionError, match=r"common\.sql"):
        check_package.check_wheel(lacking)


def test_a_release_runs_every_check_before_it_publishes() -> None:
    jobs = WORKFLOW.split("\njobs:\n")[1]
    publish = jobs[jobs.index("  publish:") :]
    assert "needs: [test, package]" in publish
    assert "run: make test-all" in jobs
    assert "run: make package" in jobs
    assert "password" not in publish.replace("without a stored password", "")
