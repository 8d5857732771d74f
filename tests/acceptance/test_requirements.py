"""docs/requirements.md names a test for every requirement, and every test that it names is there."""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "requirements.md"

# Seed 000: how many acceptance scenarios each user story has, and the other numbered statements.
STORIES = {"US1": 5, "US2": 5, "US3": 3, "US4": 5, "US5": 4, "US6": 6, "US7": 7, "US8": 5, "US9": 4, "US10": 5}
SUCCESS_CRITERIA = [f"SC-{n:03}" for n in range(1, 9)]
EDGE_CASES = [f"EC-{n}" for n in range(1, 8)]
ASSUMPTIONS = ["A-1", "A-3", "A-4", "A-5", "A-6", "A-7", "A-8", "A-9", "A-10"]  # the second is about goroutines
FUNCTIONAL = [f"FR-{n:03}" for n in range(1, 21)]

SEED_001 = {
    "001-1": "no other service than the database",
    "001-2": "persistence across restarts",
    "001-3": "columns: progress, stage, events, worker, claim, attempts, error",
    "001-4": "priority, then age",
    "001-5": "batch claim",
    "001-6": "claim by job types",
    "001-7": "a claim writes worker, time and attempt",
    "001-8": "SKIP LOCKED",
    "001-9": "Complete",
    "001-10": "Fail",
    "001-11": "progress tracking",
    "001-12": "RecoverStaleJobs",
    "001-13": "strict order with one worker per type",
    "001-never-1": "never SELECT then UPDATE",
    "001-never-2": "never claim without SKIP LOCKED",
    "001-never-3": "never store large payloads",
    "001-never-4": "never forget the partial index",
}
SEED_003 = {
    "003-1": "survive restarts",
    "003-2": "basic job, typed",
    "003-3": "attribute name",
    "003-4": "attribute timeout",
    "003-5": "attribute priority",
    "003-6": "attribute max_attempts",
    "003-7": "attribute worker_capability",
    "003-8": "attribute idempotent",
    "003-9": "durations",
    "003-10": "backoffs",
    "003-11": "max_backoff",
    "003-12": "context fields",
    "003-13": "is_retry, is_last_attempt",
    "003-14": "progress()",
    "003-15": "heartbeat()",
    "003-16": "db()",
    "003-17": "http()",
    "003-18": "priority levels",
    "003-19": "order of processing",
    "003-20": "lifecycle to completed",
    "003-21": "lifecycle to the dead letter",
    "003-22": "dispatch from mutations",
    "003-23": "dispatch from actions",
    "003-24": "dispatch from jobs",
    "003-25": "dispatch over HTTP",
    "003-26": "now or later",
    "003-27": "registering",
    "003-28": "no two workers, one job",
    "003-29": "no blocking between workers",
    "003-30": "worker id",
    "003-31": "worker capabilities",
    "003-32": "worker max_concurrent",
    "003-33": "worker poll_interval",
    "003-34": "worker batch_size",
    "003-35": "worker stale_threshold",
    "003-36": "existing key, existing id",
    "003-37": "stored fields",
    "003-38": "front end",
}
# So many rows: one for each rule, field, status, event and example.
SEED_002 = 153
SEED_004 = 86
# What no test shows yet, by the feature that brings it.
LATER: dict[str, list[str]] = {
    "MongoDB": ["002-8"],
    "MongoDB with Redis": [f"002-{n}" for n in (9, 140, 149, 150, 151, 153)],
    "external workers on steps": [f"002-{n}" for n in (13, 116, 135)],
}
FEATURES = {id: feature for feature, ids in LATER.items() for id in ids}
# Functional requirements that are only another name for a user story.
SEE_THERE = {f"FR-{n:03}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 18, 19)}
ALL = {
    *(f"{story}-{n}" for story, count in STORIES.items() for n in range(1, count + 1)),
    *SUCCESS_CRITERIA,
    *EDGE_CASES,
    *ASSUMPTIONS,
    *SEED_001,
    *SEED_003,
    *FUNCTIONAL,
    *(f"002-{n}" for n in range(1, SEED_002 + 1)),
    *(f"004-{n}" for n in range(1, SEED_004 + 1)),
}

# Latency and throughput are figures of the benchmark: the section that measures each.
MEASURED = {"SC-001": "enqueue", "SC-002": "pickup", "SC-006": "http", "SC-007": "drain"}


class Row(NamedTuple):
    id: str
    cells: list[str]

    @property
    def shown_by(self) -> str:
        return self.cells[-1]

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`(tests/[^`]+::[^`]+)`", self.shown_by)


def read_map() -> list[Row]:
    rows = []
    for line in MAP.read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| id "):
            id, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
            rows.append(Row(id.strip(), [cell.removesuffix(" |") for cell in cells]))
    return rows


ROWS = read_map()


@functools.cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name.startswith("test_")}


def test_every_requirement_stands_in_the_map_once() -> None:
    ids = [row.id for row in ROWS]
    assert sorted(ids) == sorted(set(ids))
    assert set(ids) == ALL


def test_what_is_not_for_later_is_shown_by_a_test() -> None:
    for row in ROWS:
        if row.id in FEATURES:
            assert row.shown_by == f"later: {FEATURES[row.id]}", row.id
        elif row.id in SEE_THERE:
            assert row.shown_by == "see there", row.id
        else:
            assert row.tests, row.id


def test_every_test_that_the_map_names_is_there() -> None:
    missing = []
    for row in ROWS:
        for test in row.tests:
            path, name = test.split("::")
            if not (ROOT / path).exists() or name not in names_in(path):
                missing.append(test)
    assert missing == []


def test_every_acceptance_test_stands_in_the_map() -> None:
    named = {test for row in ROWS for test in row.tests}
    folder = Path(__file__).parent
    for file in sorted(folder.glob("test_*.py")):
        if file != Path(__file__):
            path = file.relative_to(ROOT).as_posix()
            assert {f"{path}::{name}" for name in names_in(path)} <= named, path


@pytest.mark.parametrize("id", MEASURED)
def test_what_is_measured_names_its_section_of_the_benchmark(id: str) -> None:
    (row,) = [row for row in ROWS if row.id == id]
    assert f"`docs/benchmarks.md` (`{MEASURED[id]}`)" in row.cells[0]
    assert MEASURED[id] in (ROOT / "bench" / "__main__.py").read_text()
