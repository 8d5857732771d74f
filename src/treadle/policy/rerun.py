"""What a requeue repeats of a job's steps, and which answers it keeps, as pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from treadle.model.errors import InvalidInput, UnknownStep
from treadle.model.steps import DONE, StepState
from treadle.policy.graph import depending
from treadle.policy.lifecycle import Requeued

MODES = ("unfinished", "all", "from")


class Rerun(NamedTuple):
    """What a requeue repeats."""

    mode: str
    names: tuple[str, ...] | None
    """The steps that run again; with `unfinished` only those of their runs that have not completed. None: all."""
    runs: frozenset[tuple[str, str]] | None = None
    """If given, only these runs of them, by name and key."""


class Ran(NamedTuple):
    """A run of a step, as far as a requeue has to know it."""

    name: str
    place: int
    done: bool
    key: str = ""
    declared: bool = False
    after: tuple[str, ...] | None = None
    """Of a declared step in a graph."""


def rerun(steps: Sequence[Ran], mode: str, step: str | None, completed: bool) -> Rerun:
    """The steps that a requeue runs again. A job that has completed has nothing unfinished: all of it runs again."""
    check_mode(mode, step)
    if step is not None:
        found = [one for one in steps if one.name == step]
        if not found:
            raise UnknownStep(f"the job has no step {step[:100]!r}", step=step[:100])
        if any(one.declared for one in steps):
            return Rerun(mode, _names(_depending(steps, found)))
        return _rerun_after(steps, step)
    if mode == "all" or completed:
        return Rerun("all", None)
    return Rerun(mode, _names(one for one in steps if not one.done))


class StepRun(Protocol):
    """A run of a step, as a store finds it."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def state(self) -> StepState: ...


StepRunT = TypeVar("StepRunT", bound=StepRun)


def repeated(steps: Iterable[StepRunT], requeued: Requeued) -> list[StepRunT]:
    """The runs that a requeue makes undone, as `rerun` has chosen them."""
    names, runs = requeued.steps, requeued.runs
    if names is None:
        return list(steps)
    if runs is not None:
        return [one for one in steps if (one.name, one.key) in runs]
    again = [one for one in steps if one.name in names]
    return [one for one in again if one.state not in DONE] if requeued.mode == "unfinished" else again


def check_mode(mode: str, step: str | None) -> None:
    if mode not in MODES:
        raise InvalidInput(f"mode: {mode[:40]!r} is not one of {', '.join(MODES)}", field="mode")
    if (step is not None) is not (mode == "from"):
        hint = "mode from needs a step" if step is None else f"mode {mode} takes no step; use mode from"
        raise InvalidInput(f"step: {hint}", field="step")


def _rerun_after(steps: Sequence[Ran], step: str) -> Rerun:
    """What depends on a handler's step is unknown, so everything counts that began after its first run or is around it.

    A loop uses the same names again and again, so single runs of a name may be from before.
    """
    first = min(one.place for one in steps if one.name == step)
    after = [one for one in steps if one.place >= first or step.startswith(f"{one.name}/")]
    return Rerun("from", _names(after), frozenset((one.name, one.key) for one in after))


def _depending(steps: Sequence[Ran], found: Sequence[Ran]) -> list[Ran]:
    """Of a flow: the declared steps that depend on one, with what was made in them. What was made in none of them, by
    other code, depends on what is before it."""
    declared = [one for one in _ordered(steps) if one.declared]
    names, first = {one.name for one in declared}, min(one.place for one in found)
    start = _outermost(found[0])
    again = depending(declared, start) if start in names else names
    return [
        one
        for one in steps
        if (_outermost(one) in again if start in names and _outermost(one) in names else one.place >= first)
    ]


def _outermost(step: Ran) -> str:
    """The declared step that it is, or that it was made in."""
    return step.name if step.declared else step.name.partition("/")[0]


def _ordered(steps: Iterable[Ran]) -> list[Ran]:
    return sorted(steps, key=lambda one: one.place)


def _names(steps: Iterable[Ran]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.name for one in _ordered(steps)))
