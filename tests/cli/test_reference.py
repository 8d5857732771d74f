"""docs/cli.md says what the command line does."""

import subprocess
import sys
from pathlib import Path

from tests.cli.test_usage import COMMANDS, GROUPED, GROUPS

ROOT = Path(__file__).parents[2]


def test_the_reference_is_up_to_date() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "docs.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_reference_has_every_command() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for command in {*COMMANDS} - {*GROUPS} | {" ".join(words) for words in GROUPED}:
        assert f"\n## treadle {command}\n" in text


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert all(f"`treadle {name}" in text for name in COMMANDS)
