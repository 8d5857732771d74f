"""The README's code works as it stands, from its first block to its last."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.blocks import ROOT, Block, blocks

RUNNABLE = [block for block in blocks("README.md") if block.language in ("python", "sh")]
SECONDS = 120


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    """The workers that the README starts; stopped at the end."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for worker in started:
        worker.terminate()
        worker.wait(SECONDS)
        assert worker.stderr
        worker.stderr.close()


def test_the_readme_works_from_top_to_bottom(tmp_path: Path, workers: list[subprocess.Popen[str]]) -> None:
    printed = [run(block, tmp_path, workers) for block in RUNNABLE]
    text = "".join(printed)
    assert 'completed: "Hello, Zoë!"' in text
    assert text.endswith("100\n")
    jobs = re.findall(r" greet +(\w+) ", text)
    assert jobs == ["completed", "completed"]  # the one from Python waited for the worker


def run(block: Block, folder: Path, workers: list[subprocess.Popen[str]]) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TREADLE_", "COLUMNS"))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    if block.language == "sh" and block.code.startswith("treadle worker"):
        worker = subprocess.Popen(
            block.code.split(), cwd=folder, env=environment, stderr=subprocess.PIPE, encoding="utf-8"
        )
        workers.append(worker)
        assert worker.stderr
        assert " runs greet " in worker.stderr.readline()
        return ""
    if named := re.match(r"# (\w+\.py)\n", block.code):
        (folder / named[1]).write_text(block.code)
        words = [sys.executable, "-W", "error", named[1]]
    elif block.language == "python":
        (folder / "block.py").write_text(block.code)
        words = [sys.executable, "-W", "error", "block.py"]
    else:
        words = ["bash", "-euc", block.code]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"README.md, line {block.line}: {done.stderr}"
    return done.stdout


HOME = re.compile(r"https://github\.com/treadle-queue/treadle/(?:blob|tree|raw)/main/")


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if HOME.match(target):
                assert (ROOT / HOME.sub("", target)).exists(), f"{page.name}: {target}"
            else:
                assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_links_of_the_readme_work_on_the_package_index_too() -> None:
    assert not re.findall(r"\]\((?!https://|#)[^)]*\)", (ROOT / "README.md").read_text())


def test_the_project_says_where_it_lives() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert {"Source", "Documentation", "Changelog"} <= urls.keys()


def test_the_settings_table_has_every_setting() -> None:
    from dataclasses import fields

    from treadle.model.durations import format_ms
    from treadle.model.settings import Settings

    text = (ROOT / "README.md").read_text()
    for field in fields(Settings):
        name = field.name.removesuffix("_ms")
        default = format_ms(getattr(Settings(), field.name)) if field.name.endswith("_ms") else field.default
        shown = str(default).lower() if isinstance(default, bool) else default
        cell = f" `{shown}` " if shown else " "
        assert f"| `{name}` | `TREADLE_{name.upper()}` |{cell}|" in text
