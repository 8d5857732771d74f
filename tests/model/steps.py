"""The steps of a job, as the design describes them; part of the model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

ENDED = ("completed", "failed", "cancelled")
UNFINISHED = ("pending", "processing", "waiting")
# What a name shows of its keys, the first that any of them is in.
SHOWN = ("processing", "waiting", "failed", "pending", "cancelled", "completed")
Step = tuple[str, str]
"""A name and a key."""


@dataclass
class ModelStep:
    declared: bool
    place: int
    after: tuple[str, ...] | None = None
    """The steps that a declared one comes after; None: the one declared before it."""
    state: str = "pending"
    result: str | None = None
    until: int | None = None
    waits: bool = False
    """It has waited for an answer, so its failure is an answer too."""
    child: str | None = None
    """The job that it waits for, or has its result from."""


@dataclass
class ModelSteps:
    steps: dict[Step, ModelStep] = field(default_factory=dict)
    answers: dict[Step, str | None] = field(default_factory=dict)
    """Early ones: their results, or None for an error."""

    def place(self, step: Step) -> int:
        """Where it is, or where it would be as the next one."""
        if step in self.steps:
            return self.steps[step].place
        return max((one.place for one in self.steps.values()), default=-1) + 1

    def write(self, step: Step, place: int, state: str, result: str | None = None) -> ModelStep:
        one = self.steps.setdefault(step, ModelStep(declared=False, place=place))
        one.state, one.result = state, result
        return one

    def wait(self, step: Step, place: int, until: int | None) -> None:
        one = self.write(step, place, "waiting")
        one.until, one.waits = until, True

    def waiting(self) -> list[Step]:
        return [step for step, one in self.steps.items() if one.state == "waiting"]

    def progress(self) -> int | None:
        """How many of the declared steps have finished, in percent; None: none is declared."""
        declared = [step.state for step in self.steps.values() if step.declared]
        return declared.count("completed") * 100 // len(declared) if declared else None

    def overdue(self, now: int) -> bool:
        """The first of its waits is over."""
        limits = [step.until for step in self.steps.values() if step.state == "waiting" and step.until is not None]
        return bool(limits) and min(limits) <= now

    def awaited(self) -> list[str]:
        """The children that steps wait for."""
        return [one.child for one in self.steps.values() if one.state == "waiting" and one.child]

    def refusal(self, step: Step, ended: bool, unannounced: bool) -> str:
        one = self.steps.get(step)
        if one and one.child:
            return "UnknownStep"
        if one and one.state in ENDED and (one.state != "failed" or one.waits):
            return "StepEnded"
        if ended:
            return "WrongState" if one else "UnknownStep"
        if one is None and not unannounced:
            return "UnknownStep"
        if step in self.answers:
            return "StepEnded"
        return ""

    def interrupt(self, to: str) -> None:
        """Its job's attempt ended in the middle of a step."""
        for step in self.steps.values():
            if step.state == "processing" or (to == "cancelled" and step.state in UNFINISHED):
                step.state = to

    # -- again -----------------------------------------------------------------------------------

    def chosen(self, mode: str, name: str | None, completed: bool) -> list[Step]:
        """The steps that a requeue repeats."""
        if mode == "from":
            return self._from(name)
        return [step for step, one in self.steps.items() if mode == "all" or completed or one.state != "completed"]

    def _from(self, name: str | None) -> list[Step]:
        """That one and all that come after it. Of a flow they are whole steps, of a handler single runs."""
        first = min(one.place for step, one in self.steps.items() if step[0] == name)
        after = [step for step, one in self.steps.items() if one.place >= first]
        declared = {step[0]: one for step, one in self.steps.items() if one.declared}
        if not declared:
            return after
        names = {name for name, _ in after}
        if name in declared:
            names = (names - declared.keys()) | self._depending(declared, name)
        return [step for step in self.steps if step[0] in names]

    def _depending(self, declared: dict[str, ModelStep], name: str) -> set[str]:
        found, last = {name}, ""
        for one, step in sorted(declared.items(), key=lambda item: item[1].place):
            before = {last} if step.after is None else set(step.after)
            if before & found:
                found.add(one)
            last = one
        return found

    def has(self, name: str | None) -> bool:
        return any(step[0] == name for step in self.steps)

    def names(self, chosen: Collection[Step]) -> list[str]:
        """In the order of their places."""
        return list(dict.fromkeys(name for name, _ in sorted(chosen, key=lambda step: self.steps[step].place)))

    def run_again(self, chosen: Collection[Step], mode: str) -> None:
        """Declared ones start anew, the others are forgotten. What is unfinished keeps its answers."""
        if mode == "all":
            self.answers.clear()
        for step in chosen:
            if mode == "unfinished" and self.steps[step].child:
                self._look_again(self.steps[step])
                continue
            one = self.steps.pop(step)
            if mode == "from":
                self.answers.pop(step, None)
            if one.declared:
                self.steps[step] = ModelStep(True, one.place, one.after, waits=one.waits)

    def _look_again(self, one: ModelStep) -> None:
        """A live child is waited for as before; what became of another one is seen when the step runs."""
        if one.state != "waiting":
            one.state = "pending"

    def shown(self) -> dict[str, Any]:
        """One entry for each name: its state, whether it has a result, and its keys."""
        named: dict[str, dict[str, ModelStep]] = {}
        for (name, key), one in self.steps.items():
            named.setdefault(name, {})[key] = one
        return {name: _shown(keys) for name, keys in named.items()}


def _shown(keys: dict[str, ModelStep]) -> tuple[str, bool, dict[str, int] | None]:
    states = [one.state for one in keys.values()]
    status = next(state for state in SHOWN if state in states)
    items = {"total": len(states), "done": states.count("completed"), "failed": states.count("failed")}
    return status, bool("" in keys and keys[""].result), items if any(keys) else None
