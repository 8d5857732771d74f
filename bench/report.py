"""The table: each target with what was measured, in one run."""

from __future__ import annotations

from pathlib import Path

from bench.targets import TARGETS

NOTES = Path(__file__).parent / "notes.md"


def render(results: dict[str, dict[str, float]], about: str, quick: bool) -> tuple[str, int]:
    """The report and how many targets were missed."""
    lines = ["# Benchmarks", ""]
    if quick:
        lines += ["A quick run with small loads: it shows that measuring works, nothing else.", ""]
    lines += [
        f"Measured with `make bench` on {about}. Every figure is the median of three runs (memory, idle cost and the",
        "ten million ended jobs: one). The job is a no-op with a typed payload of about 100 bytes of JSON; results and",
        "history are kept; durability is the safe default (`synchronous_commit=on`, SQLite `synchronous=FULL`).",
        "Ratios are within this run; absolute figures only say what to expect of such a machine.",
        "",
        "| what | store | target | measured | |",
        "|---|---|---|---|---|",
    ]
    missed = 0
    for target in TARGETS:
        figures = results.get(target.store, {})
        value = target.value(figures)
        if value is None or (target.at_least is None and target.at_most is None):
            continue
        met = target.met(figures)
        missed += not met
        mark = "met" if met else "**missed**"
        lines.append(f"| {target.label} | {target.store} | {target.bound()} | {value:,.{target.digits}f} | {mark} |")
    for name, figures in results.items():
        lines += ["", f"## {name}: all figures", "", "| figure | value |", "|---|---|"]
        lines += [f"| {key} | {value:,.2f} |" for key, value in figures.items()]
    if NOTES.exists() and not quick:
        lines += ["", NOTES.read_text().rstrip()]
    return "\n".join(lines) + "\n", missed
