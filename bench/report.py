"""The table: each target with what was measured, in one run."""

from __future__ import annotations

import statistics
from pathlib import Path

from bench.targets import TARGETS

NOTES = Path(__file__).parent / "notes.md"


def render(results: dict[str, list[dict[str, float]]], about: str, quick: bool) -> tuple[str, int]:
    """The report and how many targets were missed."""
    lines = ["# Benchmarks", ""]
    if quick:
        lines += ["A quick run with small loads: it shows that measuring works, nothing else.", ""]
    lines += [
        f"Measured with `make bench` on {about}. Every figure is the median of three rounds (memory, idle cost, the",
        "old snapshot and the ten million ended jobs: one); a ratio is taken within each round. The job is a no-op",
        "with a typed payload of about 100 bytes of JSON; results and history are kept; durability is the safe default",
        "(`synchronous_commit=on`, SQLite `synchronous=FULL`). Absolute figures say what to expect of this machine.",
        "",
        "| what | store | target | measured | |",
        "|---|---|---|---|---|",
    ]
    missed = 0
    for target in TARGETS:
        value = target.value(results.get(target.store, []))
        if value is None or (target.at_least is None and target.at_most is None):
            continue
        met = target.met(value)
        missed += not met
        mark = "met" if met else "**missed**"
        lines.append(f"| {target.label} | {target.store} | {target.bound()} | {value:,.{target.digits}f} | {mark} |")
    for name, rounds in results.items():
        lines += ["", f"## {name}: all figures", "", "| figure | median | rounds |", "|---|---|---|"]
        for key in rounds[0]:
            values = [figures[key] for figures in rounds if key in figures]
            shown = " · ".join(f"{value:,.2f}" for value in values)
            lines.append(f"| {key} | {statistics.median(values):,.2f} | {shown} |")
    if NOTES.exists() and not quick:
        lines += ["", NOTES.read_text().rstrip()]
    return "\n".join(lines) + "\n", missed
