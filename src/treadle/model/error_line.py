"""One line of an error's text: the type of the exception and the first line of its message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_HEADER = "Traceback (most recent call last):"


def error_line(text: str, type_: str = "") -> str:
    """The line with the exception in a traceback; for any other text, its first line.

    A message may have many lines, and even a traceback of its own. So the type, if it is known, tells which line it is.
    """
    lines = [_outside_group(line) for line in text.splitlines() if line.strip()]
    if not lines:
        return type_
    ends = list(_after_frames(lines))
    named = [line for line in ends if _names(line, type_)][-1:] or [line for line in lines if _names(line, type_)][:1]
    return (named or ends[-1:] or lines)[0].strip()


def _after_frames(lines: Sequence[str]) -> Iterator[str]:
    """The first line after the frames of each traceback."""
    in_frames = False
    for line in lines:
        if line.endswith(_HEADER):
            in_frames = True
        elif in_frames and not line.startswith(" "):
            in_frames = False
            yield line


def _names(line: str, type_: str) -> bool:
    """Whether the line begins with this type, with its module or without."""
    head = line.partition(":")[0].strip()
    return bool(type_) and head.rpartition(".")[2] == type_.rpartition(".")[2]


def _outside_group(line: str) -> str:
    """An exception group is drawn with a margin."""
    return line[4:] if line.startswith(("  | ", "  + ")) else line
