"""Parses an error's text for display: its type, its message, and the frames of its traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from treadle.model.error_line import error_line

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|<frozen |/treadle/(?:worker|queue|model|handler)")


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    name: str
    source: str
    own: bool

    @property
    def at(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An error for display: its type, its message, and where it came from."""

    type: str
    message: str
    frames: list[Frame]
    raw: str

    @property
    def line(self) -> str:
        return f"{self.type}: {self.message}" if self.type and self.message else self.type or self.message

    @property
    def groups(self) -> list[list[Frame]]:
        """Consecutive frames of the same kind: application code is shown, library code is folded."""
        groups: list[list[Frame]] = []
        for frame in self.frames:
            if groups and not frame.own and not groups[-1][0].own:
                groups[-1].append(frame)
            else:
                groups.append([frame])
        return groups

    @property
    def last_own_frame(self) -> Frame | None:
        return next((frame for frame in reversed(self.frames) if frame.own), None)


def read_error(text: str | None, type_: str | None = None) -> ErrorText | None:
    """The exception's line and the frames of a Python traceback; for any other text, the first line."""
    if not text:
        return None if not type_ else ErrorText(type_, "", [], "")
    lines = text.splitlines()
    frames = list(_frames(lines))
    told = error_line(text, type_ or "")
    name = type_ or ""
    head, colon, rest = told.partition(": ")
    if colon and _is_type(head, name):
        return ErrorText(name or head, rest.strip(), frames, text)
    message = "" if told.strip() in (name, head) and _is_type(told, name) else told.strip()
    return ErrorText(name, message, frames, text)


def _is_type(head: str, name: str) -> bool:
    last = head.rpartition(".")[2]
    return (
        last == name.rpartition(".")[2]
        if name
        else bool(re.fullmatch(r"[A-Za-z_]\w*(?:Error|Exception|Warning)", last))
    )


def _frames(lines: list[str]) -> Iterable[Frame]:
    for number_, line in enumerate(lines):
        if found := _FRAME.match(line):
            source = lines[number_ + 1].strip() if number_ + 1 < len(lines) else ""
            if (
                source.startswith("File ")
                or not lines[number_ + 1 : number_ + 2]
                or not lines[number_ + 1].startswith("    ")
            ):
                source = ""
            file = found["file"]
            yield Frame(_short_path(file), int(found["line"]), found["name"] or "", source, not _LIBRARY.search(file))


def _short_path(file: str) -> str:
    for mark in ("site-packages/", "dist-packages/"):
        if mark in file:
            return file.rpartition(mark)[2]
    if found := re.search(r"/lib/python3[^/]*/", file):
        return file[found.end() :]
    return "/".join(file.split("/")[-3:])
