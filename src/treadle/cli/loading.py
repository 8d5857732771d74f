"""Loads a queue from the user's code by its name, `module:queue`."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.model.errors import InvalidInput

if TYPE_CHECKING:
    from treadle.queue import Queue


def load_queue(target: str) -> Queue:
    """Import the module from the current folder or the path and return its queue."""
    from treadle.queue import Queue

    module_name, _, path = target.partition(":")
    words = (*module_name.split("."), *path.split("."))
    if not all(word.isidentifier() for word in words) or module_name.endswith(".py"):
        raise InvalidInput(f"{target!r} does not name a queue; write module:queue{_hint(target)}")
    module = _import(module_name)
    found: object = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise InvalidInput(f"module {module_name} has no {path!r}{_queues_in(module)}")
        found = getattr(found, name)
    if not isinstance(found, Queue):
        raise InvalidInput(f"{target} is of type {type(found).__name__}, not a treadle.Queue{_queues_in(module)}")
    return found


def include_modules(names: Iterable[str]) -> None:
    """Import modules whose handlers register themselves on a queue."""
    for name in names:
        if not all(word.isidentifier() for word in name.split(".")):
            raise InvalidInput(f"--include: {name!r} does not name a module; write it like app.jobs")
        _import(name)


def _hint(target: str) -> str:
    """For `app.py`, `app.py:queue`, `pkg/app.py:queue` and `app`."""
    file, _, name = target.partition(":")
    module = file.removesuffix(".py").strip("./").replace("/", ".")
    return f", such as {module}:{name or 'queue'}" if module.replace(".", "_").isidentifier() else ""


def _import(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidInput(f"there is no module {error.name!r} here or on the path") from None
        raise InvalidInput(f"module {name} can't be imported: {error}{_place(error)}") from None
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"module {name} can't be imported: {_told(error)}{_place(error)}") from None


def _told(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({Path(error.filename or '?').name}, line {error.lineno})"
    return f"{type(error).__name__}: {error}"


def _place(error: BaseException) -> str:
    """Where the user's code raised it: the last traceback line outside Treadle and libraries."""
    if isinstance(error, SyntaxError):
        return ""
    here = Path.cwd()
    frames = [one for one in traceback.extract_tb(error.__traceback__) if here in Path(one.filename).parents]
    return f" ({Path(frames[-1].filename).relative_to(here)}, line {frames[-1].lineno})" if frames else ""


def _queues_in(module: object) -> str:
    from treadle.queue import Queue

    names = [name for name, value in vars(module).items() if isinstance(value, Queue)]
    return f"; it has {', '.join(names)}" if names else "; make one with queue = Queue(…)"
