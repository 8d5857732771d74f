"""Runs the command in this process, for tests of what it says and does; each call leaves the process as it was."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from treadle.cli import main
from treadle.queue import listeners

ROOT = Path(__file__).parents[2]


def call(words: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place) / name for name in ("in", "out", "err")]
        files[0].write_text(stdin, encoding="utf-8")
        with _at(folder, environment), _imports_of_its_own(), _streams(files), _logging_of_its_own(), _listeners_kept():
            code = _code(words)
        return code, files[1].read_text(encoding="utf-8"), files[2].read_text(encoding="utf-8")


def _code(words: Sequence[str]) -> int:
    sys.argv = ["treadle", *words]
    code: object = 1
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    return code if isinstance(code, int) else int(code is not None)


@contextlib.contextmanager
def _at(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    place, before, arguments = Path.cwd(), dict(os.environ), sys.argv
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # as in a process that is no test
            yield
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(before)
        sys.argv = arguments


@contextlib.contextmanager
def _imports_of_its_own() -> Iterator[None]:
    """Modules of the folder are imported anew by the next call, and none comes from the checkout."""
    path, modules, writes = list(sys.path), set(sys.modules), sys.dont_write_bytecode
    sys.path[:] = [place for place in path if Path(place or ".").resolve() != ROOT]
    sys.dont_write_bytecode = True
    folder = Path.cwd()
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, writes
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]


@contextlib.contextmanager
def _streams(files: Sequence[Path]) -> Iterator[None]:
    """Of this process too, for what writes to them without Python."""
    before = sys.stdin, sys.stdout, sys.stderr
    kept = [os.dup(number) for number in range(3)]
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(file.open("r+" if file.exists() else "w+", encoding="utf-8")) for file in files]
        try:
            for number, stream in enumerate(opened):
                os.dup2(stream.fileno(), number)
            sys.stdin, sys.stdout, sys.stderr = opened
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
            for number, descriptor in enumerate(kept):
                os.dup2(descriptor, number)
                os.close(descriptor)


@contextlib.contextmanager
def _logging_of_its_own() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@contextlib.contextmanager
def _listeners_kept() -> Iterator[None]:
    """Commands call no listeners of their process; those of other tests shall be called."""
    before = listeners._silenced
    try:
        yield
    finally:
        listeners._silenced = before
