"""mypy and pyright accept what is right and reject what is wrong, line by line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def mypy_errors(file: Path) -> set[int]:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", file],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    print(done.stdout)
    return {int(line) for line in re.findall(rf"{file.name}:(\d+): error", done.stdout)}


def pyright_errors(file: Path) -> set[int]:
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, file],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    for one in found:
        print(one["range"]["start"]["line"] + 1, one["message"])
    return {one["range"]["start"]["line"] + 1 for one in found}


@pytest.mark.parametrize("checker", [mypy_errors, pyright_errors])
@pytest.mark.parametrize("name", ["accepted", "rejected"])
def test_a_type_checker_rejects_what_is_wrong_and_nothing_else(name: str, checker: object) -> None:
    assert callable(checker)
    file = HERE / f"{name}.py"
    lines = file.read_text().splitlines()
    assert checker(file) == {number for number, line in enumerate(lines, 1) if line.endswith("# reject")}
