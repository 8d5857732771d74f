"""The short form of `make bench`: it measures, compares and reports. Its speed does not matter here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_figure_is_measured(store: str, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    sections = "limits,enqueue,drain,pickup,flows,http,webhooks,imports"
    command = [sys.executable, "-m", "bench", "--quick", "--store", store, "--only", sections, "--output", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = report.read_text()
    figures = dict(re.findall(r"^\| ([^|]+) \| ([\d,.]+) \| [\d,. ·]+ \|$", text, re.MULTILINE))
    for name in (
        "bare insert 1 /s",
        "bare drain 100 /s",
        "enqueue one /s",
        "enqueue_many /s",
        "drain /s",
        "flow steps /s",
        "import treadle ms",
        "import and enqueue ms",
        "webhooks /s",
    ):
        assert float(figures[name].replace(",", "")) > 0, name
    for name in ("bare FastAPI /s", "http enqueue /s", "http get /s", "http get, user, p99 ms"):
        assert float(figures[name].replace(",", "")) > 0, name
    assert "| drain, 1 worker, of" in text
    assert "| steps of 1,000 ten-step flows, 1 worker, of plain drained jobs" in text
    assert "| drain with 10,000 waiting jobs, of the empty database" in text
    assert "| POST enqueue, requests/s, of a bare FastAPI route" in text
    assert "a quick run" in text.lower(), "nobody shall take it for a result"


def test_a_ratio_is_taken_within_its_round() -> None:
    target = Target("drain", "sqlite", "drain", at_least=0.5, of="bare")
    rounds = [
        {"drain": 50.0, "bare": 100.0},
        {"drain": 30.0, "bare": 40.0},
        {"drain": 9.0, "bare": 10.0},
        {"bare": 7.0},
    ]
    assert target.value(rounds) == 0.75
    assert target.met(0.75)
    assert not target.met(0.4)
    assert Target("x", "sqlite", "not measured").value(rounds) is None


def test_every_target_has_a_bound_or_is_there_for_its_ratio() -> None:
    assert all(one.of or one.at_least is not None or one.at_most is not None for one in TARGETS)
    assert len({(one.label, one.store) for one in TARGETS}) == len(TARGETS)
