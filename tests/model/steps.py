"""The steps of a job, as the design describes them; part of the model."""

from __future__ import annotations

from dataclasses import dataclass, field

ENDED = ("completed", "failed", "cancelled")
UNFINISHED = ("pending", "processing", "waiting")


@dataclass
class ModelStep:
    declared: bool
    state: str = "pending"
    result: str | None = None
    until: int | None = None
    waits: bool = False
    """It has waited for an answer, so its failure is an answer too."""


@dataclass
class ModelSteps:
    """Without keys: a name is a step."""

    steps: dict[str, ModelStep] = field(default_factory=dict)
    answers: dict[str, str | None] = field(default_factory=dict)
    """Early ones: their results, or None for an error."""

    def write(self, name: str, state: str, result: str | None = None) -> ModelStep:
        step = self.steps.setdefault(name, ModelStep(declared=False))
        step.state, step.result = state, result
        return step

    def wait(self, name: str, until: int | None) -> None:
        step = self.write(name, "waiting")
        step.until = step.until if until is None else until
        step.waits = True

    def waiting(self) -> list[str]:
        return [name for name, step in self.steps.items() if step.state == "waiting"]

    def progress(self) -> int:
        """How many of the declared steps have finished, in percent."""
        declared = [step.state for step in self.steps.values() if step.declared]
        return declared.count("completed") * 100 // max(len(declared), 1)

    def overdue(self, now: int) -> bool:
        """The first of its waits is over."""
        limits = [step.until for step in self.steps.values() if step.state == "waiting" and step.until is not None]
        return bool(limits) and min(limits) <= now

    def refusal(self, name: str, ended: bool, unannounced: bool) -> str:
        step = self.steps.get(name)
        if step and step.state in ENDED and (step.state != "failed" or step.waits):
            return "StepEnded"
        if ended:
            return "WrongState" if step else "UnknownStep"
        if step is None and not unannounced:
            return "UnknownStep"
        if name in self.answers and name not in self.waiting():
            return "StepEnded"
        return ""

    def interrupt(self, to: str) -> None:
        """Its job's attempt ended in the middle of a step."""
        for step in self.steps.values():
            if step.state == "processing" or (to == "cancelled" and step.state in UNFINISHED):
                step.state = to

    def run_again(self) -> None:
        """Declared ones start anew, the others are forgotten."""
        for name in self.steps:
            self.answers.pop(name, None)
        self.steps = {name: ModelStep(True, waits=step.waits) for name, step in self.steps.items() if step.declared}
